"""Study E: the long tail."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple_lab.evaluation.probe import nearest_mean
from tricouple_lab.experiments.studies.features import frozen
from tricouple_lab.experiments.studies.findings import (
    LEVEL,
    against,
    by_seed,
    complete,
    lines_panel,
    methods_table,
)
from tricouple_lab.experiments.studies.methods import (
    METHODS,
    Budget,
    class_accuracies,
    held_out,
    train_head,
)
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
from tricouple_lab.report.chart import Chart

BALANCED, MANY, MEDIUM, FEW = "balanced", "many", "medium", "few"
MEASURES = {BALANCED: "balanced accuracy", MANY: "the third of the classes with most samples",
            MEDIUM: "the middle third", FEW: "the third with fewest"}  # fmt: skip
OURS, RIVALS = "pushpull_classes", ("infonce", "bcl")


class Tail(Study):
    """Do class marginals help when classes have very different sizes?"""

    name = "tail"
    title = "The long tail"
    hours = "40 minutes"

    def plan(self, scale: str) -> Plan:
        """CIFAR-100 cut to a long tail, and CLINC150 as published with one."""
        smoke = scale == "smoke"
        sets = [("mixture", 10)] if smoke else [
            ("cifar100", 10), ("cifar100", 50), ("cifar100", 100), ("clinc150_imbalanced", 1)
        ]  # fmt: skip
        plan = Plan(
            hypothesis="With unbalanced classes, class marginals (every class has the same mass) "
            "give a higher balanced accuracy than uniform and target marginals, than InfoNCE, and "
            "than class-averaged InfoNCE, each at its own best sharpness.",
            refuted="In the majority of the data sets PushPull with class marginals is not "
            "significantly above the better of InfoNCE and class-averaged InfoNCE (paired, Holm "
            "over the methods, 5 %).",
            conditions=tuple({"data": name, "imbalance": ratio} for name, ratio in sets),
            methods=("infonce", "bcl", "iot", "pushpull", "pushpull_target", "pushpull_classes"),
            sharpness=(3.0, 10.0, 30.0),
            chosen_by=BALANCED,
            changed="the first one also had Neg-MMIOT with log-sigmoid ψ, with uniform and with "
            "class marginals, and judged the better of it and PushPull. A run of it takes 5 to 15 "
            "times as long as one of PushPull, the longer the sharper, and on validation data it "
            "was 6 points or more behind every other loss at c = 3 and 10, so that its grid would "
            "have gone on to sharper ones. It was taken out before any run of it on test data. "
            "Other runs are those of both plans; its few runs stay among them.",
        )
        return first_look(plan) if smoke else plan

    def measure(self, trial: Trial, budget: Budget) -> dict[str, float]:
        """Train a head on the cut data; accuracy class by class, by the nearest class mean."""
        data = frozen(trial.condition["data"])
        x, y = data.train
        test, truth = data.test
        kept = long_tail(y, trial.condition["imbalance"], trial.seed)
        if trial.part == CHOOSE:
            held = held_out(y, trial.seed)
            test, truth = x[held], y[held]
            kept = kept[~held[kept]]
        x, y = x[kept], y[kept]
        known = torch.isin(truth, y)
        test, truth = test[known], truth[known]
        criterion = METHODS[trial.method].build(trial.sharpness)
        embed = train_head(x, y, criterion, budget, trial.seed)
        classes, shares = class_accuracies(nearest_mean(embed(x), y, embed(test))[0], truth)
        sizes = y.bincount(minlength=int(classes.max()) + 1)[classes]
        few, medium, many = shares[sizes.argsort(stable=True)].tensor_split(3)
        parts = {BALANCED: shares, MANY: many, MEDIUM: medium, FEW: few}
        return {name: float(part.mean()) for name, part in parts.items()}

    def judge(self, plan: Plan, results: Results) -> Verdict:
        """Class marginals against InfoNCE and BCL, data set by data set."""
        cut = [c for c in plan.conditions if c["imbalance"] > 1]  # others are as published
        columns = {
            describe(c): f"{c['data']}, {c['imbalance']}:1" if c in cut else c["data"]
            for c in plan.conditions
        }
        tables = [
            methods_table(words, plan.methods, columns, results.chosen(measure))
            for measure, words in MEASURES.items()
        ]
        accuracy = results.chosen(BALANCED)
        better, sentences = [], []
        for where, words in columns.items():
            if not complete(plan, where, accuracy):
                continue
            means = {how: sum(by_seed(accuracy, where, how).values()) for how in RIVALS}
            rival = max(RIVALS, key=means.__getitem__)
            caption = f"{words}: balanced accuracy against {METHODS[rival].name}"
            table, gaps = against(caption, plan.methods, rival, where, accuracy)
            tables.append(table)
            gap, p = gaps[OURS]
            better.append(gap.mean > 0 and p < LEVEL)
            sentences.append(
                f"{words}: {METHODS[OURS].name} minus {METHODS[rival].name} is {gap} points of "
                f"balanced accuracy (corrected p = {p:.2g})."
            )
        if len(better) < len(columns):
            sentences.append(
                f"Runs are missing: {len(better)} of {len(columns)} sets are complete."
            )
        # A majority is decided when what is missing cannot change it.
        half, won = len(columns) / 2, sum(better)
        lost = len(better) - won
        word = "supported" if won > half else "refuted" if lost >= half else "open"
        axis, unit = "largest class over smallest", "balanced accuracy, %"
        panels = [
            lines_panel(data, plan.methods, places, accuracy, axis, log=True, unit=unit)
            for data in dict.fromkeys(c["data"] for c in cut)
            for places in [{describe(c): c["imbalance"] for c in cut if c["data"] == data}]
            if len(places) > 1  # one is no line
        ]
        chart = Chart(
            "tail",
            "Balanced accuracy over imbalance",
            "Nearest class mean on balanced test data; mean over seeds and its standard deviation, "
            f"each loss at its own c; {plan.budget.steps} steps.",
            panels,
        )
        return Verdict(word, sentences, tables, [chart] if panels else [])


def long_tail(labels: Tensor, ratio: float, seed: int) -> Tensor:
    """Indices of a subset whose class sizes fall exponentially, the largest ``ratio`` the smallest.

    Which classes are large is drawn anew for every seed; every class keeps two samples at least.

    Example:
        >>> labels = torch.arange(3).repeat_interleave(16)
        >>> labels[long_tail(labels, 4, 0)].bincount().sort().values
        tensor([ 4,  8, 16])
    """
    if ratio == 1:
        return torch.arange(len(labels))
    generator = torch.Generator().manual_seed(seed + 104_729)
    classes = labels.unique()
    places = torch.randperm(len(classes), generator=generator) / max(1, len(classes) - 1)
    kept = []
    for label, place in zip(classes, places.tolist(), strict=True):
        own = (labels == label).nonzero()[:, 0]
        size = max(2, round(len(own) * ratio**-place))
        kept.append(own[torch.randperm(len(own), generator=generator)[:size]])
    return torch.cat(kept).sort().values
