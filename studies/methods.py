"""The losses that the studies compare, each by its words, and baselines that tricouple lacks.

A saturating ψ has ε = 1 and τ = 1/c, so that its largest slope over ε is c.
"""

from __future__ import annotations

import math

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import tricouple as tc
from tricouple_lab import names
from tricouple_lab.names import LossName

MARGIN = 0.5  # of the hinge, in cosines


class RINCE(nn.Module):
    """Robust InfoNCE (Chuang and others 2022): ``−e^{q·cs⁺}/q + (λ(e^{cs⁺} + Σ e^{cs⁻}))^q/q``.

    Args:
        sharpness: c.
        q: Between 0, InfoNCE, and 1, the most robust.
        weight: λ, of the negatives.
    """

    def __init__(self, sharpness: float = 10.0, q: float = 0.5, weight: float = 0.025) -> None:
        super().__init__()
        self.sharpness, self.q, self.weight = sharpness, q, weight

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over positive pairs, times e^{−qc}; 0 without triplets."""
        scores, positive, negative = _pairs(embeddings, labels, self.sharpness)
        if not bool(positive.any() and negative.any()):
            return scores.sum() * 0
        others = scores.masked_fill(~negative, -torch.inf).logsumexp(1)  # (N,)
        rows, columns = positive.nonzero(as_tuple=True)
        own = scores[rows, columns]
        every = torch.logaddexp(own, others[rows]) + math.log(self.weight)
        top = self.q * self.sharpness  # no exponential overflows
        robust = torch.exp(self.q * every - top) - torch.exp(self.q * own - top)
        return robust.mean() / self.q


class ClassAveraged(nn.Module):
    """InfoNCE of BCL (Zhu and others 2022): the denominator is a sum over classes of means."""

    def __init__(self, sharpness: float = 10.0) -> None:
        super().__init__()
        self.sharpness = sharpness

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over anchors that have positives; 0 without triplets."""
        scores, positive, negative = _pairs(embeddings, labels, self.sharpness)
        if not bool(positive.any() and negative.any()):
            return scores.sum() * 0
        same = labels[:, None] == labels
        # Samples of the reference's class in a row, without the anchor.
        size = same.sum(1)[None] - positive.to(scores)
        terms = (scores - size.log()).masked_fill(~(positive | negative), -torch.inf)
        count = positive.sum(1)
        pull = (scores * positive).sum(1) / count.clamp(min=1)
        return (terms.logsumexp(1) - pull)[count > 0].mean()


class LogitAdjusted(nn.Module):
    """Softmax over class prototypes with logits ``c·cos + log prior`` (Menon and others 2021)."""

    prior: Tensor

    def __init__(self, sharpness: float = 10.0) -> None:
        super().__init__()
        self.sharpness = sharpness

    def attach(self, counts: Tensor, dim: int) -> None:
        """Take the number of training samples of each class, and the dimensions of embeddings."""
        self.register_buffer("prior", counts.clamp_min(1) / counts.sum())
        self.prototypes = nn.Parameter(torch.randn(len(counts), dim))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean cross entropy."""
        cosines = normalize(embeddings, dim=1) @ normalize(self.prototypes, dim=1).T
        logits = self.sharpness * cosines + self.prior.log()
        return nn.functional.cross_entropy(logits, labels)


def hinge(sharpness: float = 10.0, empty: str = "zero") -> tc.NegMMIOT:
    """Neg-MMIOT with a hinge ψ of margin 0.5 in cosines."""
    shaping = tc.shaping.Hinge(margin=MARGIN * sharpness)  # τ = 1/c
    return tc.NegMMIOT(sharpness=sharpness, epsilon=1.0, shaping=shaping, empty=empty)  # type: ignore[arg-type]


def _pairs(embeddings: Tensor, labels: Tensor, c: float) -> tuple[Tensor, Tensor, Tensor]:
    """The scores c·cos of all pairs, and the positives and negatives of each anchor, (N, N)."""
    unit = normalize(embeddings, dim=1)
    same = labels[:, None] == labels
    own = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return c * unit @ unit.T, same & ~own, ~same


def register() -> None:
    """Let ``loss=`` choose the baselines in runs on images and texts."""
    for name, title, path in (
        ("rince", "RINCE", "RINCE"),
        ("bcl", "class-averaged InfoNCE (BCL)", "ClassAveraged"),
        ("logit_adjusted", "logit-adjusted softmax", "LogitAdjusted"),
        ("hinge", "Neg-MMIOT, hinge ψ", "hinge"),
    ):
        row = LossName(title, f"studies.methods.{path}", tasks=("images", "text", "mixture"))
        names.add_loss(name, row)


register()

# The words of each method; the keys are those of the committed runs.
ROWS: dict[str, tuple[str, ...]] = {
    **{
        name: (f"loss={name}",)
        for name in ("infonce", "iot", "pushpull", "hinge", "rince", "bcl", "logit_adjusted")
    },
    "pushpull_target": ("loss=pushpull", "loss.marginals=target"),
    "pushpull_classes": ("loss=pushpull", "loss.marginals=classes"),
}


def method_of(runs: pd.DataFrame) -> pd.Series:
    """The key in ``ROWS`` of each run, new or committed."""
    found = runs["loss.name"].astype(str)
    if "loss.marginals" in runs:
        marginals = runs["loss.marginals"].fillna("")
        found = found.where(marginals == "", found + "_" + marginals)
    return found
