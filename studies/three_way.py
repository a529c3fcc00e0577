"""When does a triplet say more than its two pairs? Gradients of Neg-MMIOT and PushPull compared."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import tricouple as tc
from studies.study import Plan, Runs

DIM, MARGIN = 64, 0.5  # of the embeddings; of the hinge, in cosines
CONVERGED: dict[str, Any] = {"n_iters": 20_000, "tol": 1e-10, "gradient": "implicit"}


def run(plan: Plan, runs: Runs) -> None:
    """Compare the gradients on every batch."""
    for name, cell in plan["draws"].items():
        for row, c, seed in itertools.product(plan["rows"], plan["sharpness"], plan["seeds"]):
            config = {"cell": f"{name}, c = {c:g}", "row": row, "seed": seed}
            runs("final", config, lambda one=(cell, row, c, seed): compared(*one))  # type: ignore[misc]


def compared(cell: Mapping[str, Any], row: str, c: float, seed: int) -> dict[str, float]:
    """Cosine and relative difference, in percent, of the gradients on one batch."""
    embeddings, labels, triplets = draw(cell["labels"], cell["n"], seed)
    how = CONVERGED if cell["sweeps"] == "converged" else {}
    psi: dict[str, Any] = {
        "Neg-MMIOT, linear": {"shaping": "linear", "epsilon": 0.1},
        "Neg-MMIOT, log-sigmoid": {"shaping": "log_sigmoid", "epsilon": 1.0, "kernel_tol": 1e-6},
        "Neg-MMIOT, hinge": {"shaping": tc.shaping.Hinge(margin=MARGIN * c), "epsilon": 1.0},
    }[row]
    gradients = []
    for criterion in (tc.NegMMIOT(sharpness=c, **psi, **how), tc.PushPull(sharpness=c, **how)):
        own = embeddings.clone().requires_grad_()
        criterion(own, labels, triplets).backward()
        assert own.grad is not None
        gradients.append(own.grad.flatten())
    first, second = gradients
    cosine = torch.nn.functional.cosine_similarity(first, second, dim=0)
    gap = (first - second).norm() / second.norm()
    return {"cosine": float(cosine), "difference": 100 * float(gap)}


def draw(kind: str, n: int, seed: int) -> tuple[Tensor, Tensor | None, Any]:
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
