"""When does a triplet say more than its two pairs?"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import joblib
import pandas as pd
import torch
from torch import Tensor

import tricouple as tc
from studies.methods import MARGIN
from studies.study import Verdict, describe
from tricouple_lab.files import provenance
from tricouple_lab.runs.folder import Record

TITLE = "What is three-way about it"
HYPOTHESIS = (
    "With a linear ψ, equal class sizes and converged Sinkhorn iterations Neg-MMIOT and PushPull "
    "are one loss up to O(1/N); with a ψ that is not affine, or with mined triplets, they are not."
)
REFUTED = (
    "The gradients differ by more than 1 % at N ≥ 128, balanced classes or two views, linear ψ, "
    "converged, at any c of the grid."
)
METHODS = ("neg_mmiot", "log_sigmoid", "hinge")
LABELS = ("views", "balanced", "unbalanced", "mined")
SIZES, SHARPNESS = (32, 128, 512), (3.0, 10.0, 30.0, 100.0)
SEEDS, DIM, LIMIT = (0, 1, 2), 64, 0.01  # of the relative difference of the gradients
CONVERGED: dict[str, Any] = {"n_iters": 20_000, "tol": 1e-10, "gradient": "implicit"}


def measure(scale: str, workers: int) -> list[Record]:
    """Compare the gradients on every batch."""
    sizes, grid, seeds = (
        (SIZES, SHARPNESS, SEEDS) if scale == "cpu" else (SIZES[:1], SHARPNESS[:1], SEEDS[:1])
    )
    conditions = [
        {"labels": labels, "n": n, "sweeps": sweeps}
        for labels, n, sweeps in itertools.product(LABELS, sizes, ("ten", "converged"))
    ]
    cases = itertools.product(conditions, METHODS, grid, seeds)
    origin = {**provenance(), "scale": scale}
    calls = (joblib.delayed(compared)(*case, origin) for case in cases)
    return list(joblib.Parallel(n_jobs=workers)(calls))


def judge(runs: pd.DataFrame) -> Verdict:
    """The largest difference where both should be one loss."""
    final = runs[runs["stage"] == "final"]
    same = [
        describe({"labels": labels, "n": n, "sweeps": "converged"})
        for labels in ("views", "balanced")
        for n in SIZES
        if n >= 128
    ]
    rows = final[final["condition"].isin(same) & (final["method"] == "neg_mmiot")]
    largest = rows.groupby("condition", sort=False)["after/difference"].max()
    table = pd.DataFrame({"": largest.index, "largest relative difference": largest.values})
    cases = len(rows.drop_duplicates(["condition", "loss.sharpness", "seed"]))
    if cases < len(same) * len(SHARPNESS) * len(SEEDS):
        return Verdict("open", table)
    return Verdict("supported" if largest.max() <= LIMIT else "refuted", table)


def compared(
    condition: Mapping[str, Any], method: str, c: float, seed: int, origin: Mapping[str, Any]
) -> Record:
    """Cosine and relative difference of the gradients of Neg-MMIOT and PushPull on one batch."""
    embeddings, labels, triplets = batch(condition["labels"], condition["n"], seed)
    how = CONVERGED if condition["sweeps"] == "converged" else {}
    psi: dict[str, Any] = {
        "neg_mmiot": {"shaping": "linear", "epsilon": 0.1},
        "log_sigmoid": {"shaping": "log_sigmoid", "epsilon": 1.0, "kernel_tol": 1e-6},
        "hinge": {"shaping": tc.shaping.Hinge(margin=MARGIN * c), "epsilon": 1.0},
    }[method]
    gradients = []
    for criterion in (tc.NegMMIOT(sharpness=c, **psi, **how), tc.PushPull(sharpness=c, **how)):
        own = embeddings.clone().requires_grad_()
        criterion(own, labels, triplets).backward()
        assert own.grad is not None
        gradients.append(own.grad.flatten())
    first, second = gradients
    cosine = torch.nn.functional.cosine_similarity(first, second, dim=0)
    gap = (first - second).norm() / second.norm()
    return Record(
        id=f"{'-'.join(map(str, condition.values()))}-{method}-c{c:g}-seed{seed}",
        task="three-way",
        config={"condition": describe(condition), "loss": {"name": method, "sharpness": c},
                "seed": seed, "scale": origin["scale"]},
        data={"digest": ""}, metric="difference", chance={}, before={},
        after={"cosine": float(cosine), "difference": float(gap)},
        validation=None, curves=[], per_class={}, steps=0, seconds=0.0, provenance=dict(origin),
    )  # fmt: skip


def batch(kind: str, n: int, seed: int) -> tuple[Tensor, Tensor | None, Any]:
    """Unit vectors around class directions; labels, or the hardest triplet of each anchor."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"views": [2] * (n // 2), "unbalanced": halving(n)}
    counts = torch.tensor(sizes.get(kind, [n // 8] * 8))
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    means = torch.randn(len(counts), DIM, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), DIM, generator=generator, dtype=torch.float64)
    embeddings = torch.nn.functional.normalize(means[labels] + noise, dim=1)
    if kind != "mined":
        return embeddings, labels, None
    similarity = embeddings @ embeddings.T
    same = labels[:, None] == labels
    own = torch.eye(len(labels), dtype=torch.bool)
    positive = similarity.masked_fill(~same | own, torch.inf).argmin(1)
    negative = similarity.masked_fill(same, -torch.inf).argmax(1)
    return embeddings, None, (torch.arange(len(labels)), positive, negative)


def halving(n: int) -> list[int]:
    """Class sizes that halve: n/2, n/4, …, with the rest in the last.

    Example:
        >>> halving(32)
        [16, 8, 4, 2, 2]
    """
    sizes = [n // 2]
    while sizes[-1] >= 4:
        sizes.append(sizes[-1] // 2)
    return [*sizes, n - sum(sizes)] if sum(sizes) < n else sizes
