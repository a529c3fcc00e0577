"""Study D: hubs in retrieval."""

from __future__ import annotations

import torch
from torch import Tensor

import tricouple as tc
from tricouple_lab.evaluation.retrieval import best_rank
from tricouple_lab.experiments.studies.features import FrozenPairs, frozen_pairs
from tricouple_lab.experiments.studies.findings import by_seed, complete, methods_table, paired
from tricouple_lab.experiments.studies.methods import METHODS, Budget, Head, train_heads
from tricouple_lab.experiments.studies.plan import (
    CHOOSE,
    Plan,
    Results,
    Study,
    Trial,
    Verdict,
    describe,
    first_look,
)

RECALL, SKEW, NEVER = "recall1", "skewness", "never"
NORMALISED = "_normalised"
MEASURES = {RECALL: ("recall@1, mean of both directions", 100.0),
            "recall5": ("recall@5", 100.0), "recall10": ("recall@10", 100.0),
            SKEW: ("skewness of N₁₀, texts retrieved by images and images by texts", 1.0),
            NEVER: ("share of items never among the first ten", 100.0)}  # fmt: skip
COUPLED = ("pushpull", "hinge")
SHARPNESS = 30.0  # of the test-time normalisation


class Hubs(Study):
    """Do column marginals make fewer hubs at equal recall?"""

    name = "hubs"
    title = "Hubs in retrieval"
    hours = "about 1 hour"

    def plan(self, scale: str) -> Plan:
        """Flickr8k, frozen images and captions, two small heads."""
        smoke = scale == "smoke"
        plan = Plan(
            hypothesis="Couplings with prescribed column marginals (IOT, PushPull, Neg-MMIOT with "
            "a hinge ψ) make fewer hubs than InfoNCE at equal recall: a lower skewness of N₁₀, how "
            "often an item is among the first ten.",
            refuted="The skewness of the best three-way or two-plan loss (by recall@1) is not "
            "significantly below InfoNCE's, or InfoNCE with test-time Sinkhorn normalisation is "
            "better in both recall@1 and skewness.",
            conditions=({"data": "mixture" if smoke else "flickr8k"},),
            methods=("infonce", "iot", *COUPLED),
            sharpness=(10.0, 30.0, 100.0),
            chosen_by=RECALL,
            budget=Budget(steps=500, dim=128),
            changed="before any run, log-sigmoid ψ was taken out: one run of it takes as long as "
            "all others of its seed together.",
        )
        return first_look(plan) if smoke else plan

    def measure(self, trial: Trial, budget: Budget) -> dict[str, float]:
        """Train two heads in both directions; retrieval on a whole split, both ways."""
        parts = frozen_pairs(trial.condition["data"])
        of_images, of_texts = train_both(parts["train"], trial, budget)
        held = parts["validation" if trial.part == CHOOSE else "test"]
        similarity = of_images(held.images) @ of_texts(held.texts).T
        own = held.owners == torch.arange(len(held.images))[:, None]
        found = retrieval(similarity, own)
        again = retrieval(normalised(similarity), own)
        return found | {f"{name}{NORMALISED}": value for name, value in again.items()}

    def judge(self, plan: Plan, results: Results) -> Verdict:
        """Skewness at each method's best recall, and against test-time normalisation."""
        where = describe(plan.conditions[0])
        tables = []
        for suffix, words in (("", ""), (NORMALISED, ", after test-time Sinkhorn normalisation")):
            for name, (title, scale) in MEASURES.items():
                column, found = {where: f"{title}{words}"}, results.chosen(name + suffix)
                tables.append(methods_table("", plan.methods, column, found, scale=scale))
        if not complete(plan, where, results.chosen(RECALL)):
            return Verdict("open", ["Not all runs are there."], tables)

        def values(name: str, how: str) -> list[float]:
            own = by_seed(results.chosen(name), where, how)
            return [own[seed] for seed in plan.seeds]

        best = max(COUPLED, key=lambda how: sum(values(RECALL, how)))
        gap = paired(values(SKEW, best), values(SKEW, "infonce"))
        level = paired(values(RECALL, best), values(RECALL, "infonce")).times(100)
        after = {name: paired(values(f"{name}{NORMALISED}", "infonce"), values(name, best))
                 for name in (RECALL, SKEW)}  # fmt: skip
        dominated = after[RECALL].low > 0 and after[SKEW].high < 0
        lower = gap.high < 0
        sentences = [
            f"{METHODS[best].name} minus InfoNCE: skewness {gap}, recall@1 {level} points.",
            "InfoNCE with test-time normalisation minus "
            f"{METHODS[best].name} without: recall@1 {after[RECALL].times(100)} points, skewness "
            f"{after[SKEW]}.",
        ]
        return Verdict("supported" if lower and not dominated else "refuted", sentences, tables)


def train_both(pairs: FrozenPairs, trial: Trial, budget: Budget) -> list[Head]:
    """Heads for images and texts, a random caption of an image in every batch."""
    counts = pairs.owners.bincount(minlength=len(pairs.images))
    first = counts.cumsum(0) - counts
    criterion = METHODS[trial.method].build(trial.sharpness)

    def loss_of(chosen: Tensor, of_images: Head, of_texts: Head) -> Tensor:
        turn = (torch.rand(len(chosen)) * counts[chosen]).long()
        images, texts = of_images(chosen), of_texts(first[chosen] + turn)
        there = criterion(images, chosen, ref_emb=texts, ref_labels=chosen)
        back = criterion(texts, chosen, ref_emb=images, ref_labels=chosen)
        loss: Tensor = (there + back) / 2
        return loss

    return train_heads([pairs.images, pairs.texts], loss_of, budget, trial.seed)


def retrieval(similarity: Tensor, own: Tensor) -> dict[str, float]:
    """Recall and hubness, the mean of both directions."""
    found: dict[str, float] = {}
    for scores, right in ((similarity, own), (similarity.T, own.T)):
        ranks = best_rank(scores, right)
        hubs = tc.geometry.hubness_of(scores, 10)
        values = {f"recall{k}": float((ranks < k).double().mean()) for k in (1, 5, 10)}
        values |= {SKEW: hubs.skewness, NEVER: hubs.never}
        for name, value in values.items():
            found[name] = found.get(name, 0.0) + value / 2
    return found


def normalised(similarity: Tensor) -> Tensor:
    """Scores after test-time Sinkhorn normalisation: the log of a plan with uniform marginals."""
    return tc.ot.sinkhorn(-similarity.double(), 1 / SHARPNESS, n_iters=50).dense().log()
