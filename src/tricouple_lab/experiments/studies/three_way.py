"""Study A: what is three-way about it."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import tricouple as tc
from tricouple_lab.experiments.studies.methods import MARGIN, METHODS, Budget
from tricouple_lab.experiments.studies.plan import Plan, Results, Study, Trial, Verdict, describe
from tricouple_lab.report.chart import Axis, Chart, Line, Panel
from tricouple_lab.report.numbers import number, plain
from tricouple_lab.report.tables import Table

COSINE, DIFFERENCE = "cosine", "difference"
DIM = 64
CONVERGED: dict[str, Any] = {"n_iters": 20_000, "tol": 1e-10, "gradient": "implicit"}
LIMIT = 0.01  # of the relative difference of the gradients


class ThreeWay(Study):
    """When does a triplet say more than its two pairs?"""

    name = "three-way"
    title = "What is three-way about it"
    hours = "some minutes"

    def plan(self, scale: str) -> Plan:
        """Gradients of Neg-MMIOT and PushPull on random batches."""
        smoke = scale == "smoke"
        return Plan(
            hypothesis="With a linear ψ, equal class sizes and converged sweeps Neg-MMIOT and "
            "PushPull are one loss up to O(1/N); with a ψ that is not affine, or with mined "
            "triplets, they are not.",
            refuted="The gradients differ by more than 1 % at N ≥ 128, balanced classes or two "
            "views, linear ψ, converged, at any c of the grid.",
            conditions=tuple(
                {"labels": labels, "n": n, "sweeps": sweeps}
                for labels in ("views", "balanced", "unbalanced", "mined")
                for n in ((32,) if smoke else (32, 128, 512))
                for sweeps in ("ten", "converged")
            ),
            methods=("neg_mmiot", "log_sigmoid", "hinge"),
            sharpness=(10.0,) if smoke else (3.0, 10.0, 30.0, 100.0),
            seeds=(0,) if smoke else (0, 1, 2),
            budget=Budget(steps=0, dim=DIM),
        )

    def measure(self, trial: Trial, budget: Budget) -> dict[str, float]:
        """Cosine and relative difference of the two gradients on one batch."""
        embeddings, labels, triplets = batch(trial.condition, trial.seed)
        how = CONVERGED if trial.condition["sweeps"] == "converged" else {}
        linear = {"shaping": "linear", "epsilon": 0.1}
        psi: dict[str, Any] = {
            "neg_mmiot": linear,
            "log_sigmoid": {"shaping": "log_sigmoid", "epsilon": 1.0, "kernel_tol": 1e-6},
            "hinge": {"shaping": tc.shaping.Hinge(margin=MARGIN * trial.sharpness), "epsilon": 1.0},
        }[trial.method]
        ours = tc.NegMMIOT(sharpness=trial.sharpness, **psi, **how)
        both = tc.PushPull(sharpness=trial.sharpness, **how)
        found = []
        for criterion in (ours, both):
            own = embeddings.clone().requires_grad_()
            criterion(own, labels, triplets).backward()
            assert own.grad is not None
            found.append(own.grad.flatten())
        first, second = found
        return {
            COSINE: float(torch.nn.functional.cosine_similarity(first, second, dim=0)),
            DIFFERENCE: float((first - second).norm() / second.norm()),
        }

    def judge(self, plan: Plan, results: Results) -> Verdict:
        """The largest difference where they should be one loss."""
        gaps, cosines = results.final(DIFFERENCE), results.final(COSINE)
        expected = len(plan.conditions) * len(plan.methods) * len(plan.sharpness)
        if len(gaps) < expected:
            return Verdict("open", ["Not all runs are there."], [])
        means = {key: fmean(own.values()) for key, own in gaps.items()}
        largest = max(
            (
                value
                for c in plan.conditions
                if c["n"] >= 128 and c["sweeps"] == "converged"
                if c["labels"] in ("views", "balanced")
                for sharp in plan.sharpness
                for value in gaps[(describe(c), "neg_mmiot", sharp)].values()
            ),
            default=float("nan"),
        )
        tables = []
        for c in plan.conditions:
            if c["n"] < max(own["n"] for own in plan.conditions):
                continue
            where = describe(c)
            rows = []
            for how in plan.methods:
                keys = [(where, how, sharp) for sharp in plan.sharpness]
                cells = (f"{number(means[k])} ({fmean(cosines[k].values()):.4f})" for k in keys)
                rows.append((METHODS[how].name, *cells))
            head = ("loss", *(f"c = {plain(sharp)}" for sharp in plan.sharpness))
            caption = f"{where}: relative difference of gradients to PushPull's (their cosine)"
            tables.append(Table(caption, head, rows))
        panels = []
        x, y = Axis("sharpness c", log=True), Axis("relative difference", log=True)
        for labels in dict.fromkeys(c["labels"] for c in plan.conditions):
            lines = [
                Line(
                    f"{METHODS[how].name}, N = {c['n']}",
                    plan.sharpness,
                    [means[(describe(c), how, sharp)] for sharp in plan.sharpness],
                )
                for c in plan.conditions
                if c["labels"] == labels and c["sweeps"] == "converged"
                for how in plan.methods
            ]
            words = "; ".join(f"{line.name}: {number(min(line.y))} at least" for line in lines)
            panels.append(Panel(labels, words, lines, x=x, y=y))
        chart = Chart("three-way", "Neg-MMIOT's gradient against PushPull's",
                      "Random batches, converged sweeps.", panels)  # fmt: skip
        sentences = [
            f"Linear ψ, balanced or two views, N ≥ 128, converged: the gradients differ by at most "
            f"{100 * largest:.2g} %."
        ]
        word = "supported" if largest <= LIMIT else "refuted" if largest > LIMIT else "open"
        return Verdict(word, sentences, tables, [chart])


def batch(condition: Any, seed: int) -> tuple[Tensor, Tensor | None, Any]:
    """Unit vectors around class directions; labels, or the hardest triplet of each anchor."""
    n, generator = condition["n"], torch.Generator().manual_seed(seed)
    sizes = {"views": [2] * (n // 2), "unbalanced": _halving(n)}
    counts = torch.tensor(sizes.get(condition["labels"], [n // 8] * 8))
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    means = torch.randn(len(counts), DIM, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), DIM, generator=generator, dtype=torch.float64)
    embeddings = torch.nn.functional.normalize(means[labels] + noise, dim=1)
    if condition["labels"] != "mined":
        return embeddings, labels, None
    similarity = embeddings @ embeddings.T
    same = labels[:, None] == labels
    own = torch.eye(len(labels), dtype=torch.bool)
    positive = similarity.masked_fill(~same | own, torch.inf).argmin(1)
    negative = similarity.masked_fill(same, -torch.inf).argmax(1)
    return embeddings, None, (torch.arange(len(labels)), positive, negative)


def _halving(n: int) -> list[int]:
    """Class sizes that halve: n/2, n/4, …, with the rest in the last."""
    sizes = [n // 2]
    while sizes[-1] >= 4:
        sizes.append(sizes[-1] // 2)
    return [*sizes, n - sum(sizes)] if sum(sizes) < n else sizes
