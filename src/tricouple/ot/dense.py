"""The paper's algorithms as written: dense, float64, differentiated by autograd.

Every other file computes the same numbers in O(N²); here a triplet plan is an N×M×M tensor. Use it
to read what a loss is and to check a fast one. Formulas: docs/mathematics.md, §1, 2, 5 and 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple.shaping import SHAPINGS, Shaping

__all__ = ["info_nce", "iot", "neg_mmiot", "push_pull", "sinkhorn", "triplet_sinkhorn"]

NONE = -1e30  # for −∞ in logarithms, and less it for +∞ in costs: autograd has no way through them


def neg_mmiot(
    embeddings: Tensor, labels: Tensor | None = None, references: Tensor | None = None,
    ref_labels: Tensor | None = None, *, own: Tensor | None = None,
    triplets: Sequence[Tensor] | None = None, temperature: float | Tensor, epsilon: float,
    shaping: str | Shaping = "linear", n_iters: int = 10, marginals: str = "uniform",
) -> Tensor:  # fmt: skip
    """Neg-MMIOT-CL: KL(P̃‖P), P the three-marginal plan for C_ijk = ψ((s_ij − s_ik)/τ).

    Args:
        embeddings: Anchors, shape (N, d), of any length.
        labels: Identities of the anchors, shape (N,).
        references: Shape (M, d); None for the anchors themselves.
        ref_labels: Identities of the references, shape (M,).
        own: The reference that each anchor is, shape (N,), −1 for none; by default every anchor is
            itself within one set, and none is a reference across two.
        temperature: τ.
        epsilon: ε.
        shaping: ψ, a name of ``tricouple.shaping.SHAPINGS`` or a function.
        n_iters: Sweeps over anchors, positives and negatives.
        marginals: Of P: ``"uniform"``, ``"target"`` (those of P̃) or ``"classes"`` (§11).
        triplets: Instead of labels: triplets (a, p, n), or pairs (a1, p, a2, n), of which every
            positive of an anchor goes with every negative of it.

    Example:
        >>> z, y = torch.eye(3), torch.tensor([0, 0, 1])
        >>> neg_mmiot(z, y, temperature=1.0, epsilon=0.1)  # log 6 − log 2: six triplets, two in A
        tensor(1.0986, dtype=torch.float64)
    """
    batch = _Batch.of(embeddings, labels, references, ref_labels, own, triplets)
    s, positive, negative, itself = batch[:4]
    if triplets is not None and len(triplets) == 3:
        target = torch.zeros(*s.shape, s.shape[1], dtype=torch.float64)
        target[tuple(triplets)] = 1 / len(torch.stack(tuple(triplets)).unique(dim=1)[0])
    else:  # P̃_ijk = p_i · 1/n⁺_i · v_k/Z_i
        mass, weights = batch.masses(positive.sum(1) * negative.sum(1), marginals)
        far = _with_sums(negative * weights, torch.ones_like(mass))
        target = _with_sums(positive, mass)[:, :, None] * far[:, None, :]
    t = (s[:, :, None] - s[:, None, :]) / temperature  # (N, M, M)
    same = torch.eye(s.shape[1], dtype=torch.bool)
    cost = _psi(shaping)(t).masked_fill(itself[:, :, None] | itself[:, None, :] | same, -NONE)
    f, g, h = triplet_sinkhorn(cost, epsilon, _imposed(target, marginals), n_iters)
    return _divergence(target, (f[:, None, None] + g[:, None] + h - cost) / epsilon)


def push_pull(
    embeddings: Tensor, labels: Tensor | None = None, references: Tensor | None = None,
    ref_labels: Tensor | None = None, *, own: Tensor | None = None,
    triplets: Sequence[Tensor] | None = None, temperature: float | Tensor, epsilon_pos: float,
    epsilon_neg: float, shaping: str | Shaping = "linear", n_iters: int = 10,
    marginals: str = "uniform", negatives: str = "projected",
) -> Tensor:  # fmt: skip
    """Neg-IOT-CL-PushPull: KL(P̃₊‖P₊) + KL(P̃₋‖P₋), plans for C_ij = ψ(s_ij/τ) and −C_ij.

    Arguments are those of ``neg_mmiot``, and ``negatives``: A⁻ is ``"projected"``, the pairs (i, k)
    of admissible triplets, or ``"all"`` pairs of unequal identity.

    Example:
        >>> z, y = torch.eye(3), torch.tensor([0, 0, 1])
        >>> push_pull(z, y, temperature=1.0, epsilon_pos=0.1, epsilon_neg=0.1)  # 2 log 3
        tensor(2.1972, dtype=torch.float64)
    """
    batch = _Batch.of(embeddings, labels, references, ref_labels, own, triplets)
    s, positive, negative = batch[:3]
    near, far = positive.sum(1), negative.sum(1)
    attracting, _ = batch.masses(near * (far > 0), marginals)
    pairs = far * (near > 0) if negatives == "projected" else far
    repelling, weights = batch.masses(pairs, marginals)
    pull, push = _with_sums(positive, attracting), _with_sums(negative * weights, repelling)
    cost = _psi(shaping)(s / temperature)
    attracted = batch.divergence(pull, cost, epsilon_pos, marginals, n_iters)
    return attracted + batch.divergence(push, -cost, epsilon_neg, marginals, n_iters)


def iot(
    embeddings: Tensor, labels: Tensor | None = None, references: Tensor | None = None,
    ref_labels: Tensor | None = None, *, own: Tensor | None = None,
    triplets: Sequence[Tensor] | None = None, epsilon: float | Tensor, n_iters: int = 10,
    marginals: str = "uniform",
) -> Tensor:  # fmt: skip
    """IOT-CL: KL(P̃‖P), P the plan for C_ij = 1 − s_ij, P̃ on the positive pairs.

    Arguments are those of ``neg_mmiot``.

    Example:
        >>> iot(torch.eye(3), torch.tensor([0, 0, 1]), epsilon=0.1)  # log 6 − log 2
        tensor(1.0986, dtype=torch.float64)
    """
    batch = _Batch.of(embeddings, labels, references, ref_labels, own, triplets)
    mass, _ = batch.masses(batch.positive.sum(1), marginals)
    target = _with_sums(batch.positive, mass)
    return batch.divergence(target, 1 - batch.s, epsilon, marginals, n_iters)


def info_nce(
    embeddings: Tensor, labels: Tensor | None = None, references: Tensor | None = None,
    ref_labels: Tensor | None = None, *, own: Tensor | None = None,
    triplets: Sequence[Tensor] | None = None, temperature: float | Tensor,
) -> Tensor:  # fmt: skip
    """InfoNCE: the mean over anchors of −1/n⁺_i Σ_j log softmax_j(s_ij/τ), j positive.

    Arguments are those of ``neg_mmiot``; anchors without a positive do not count.

    Example:
        >>> info_nce(torch.eye(3), torch.tensor([0, 0, 1]), temperature=0.1)  # log 2
        tensor(0.6931, dtype=torch.float64)
    """
    s, positive, _, itself = _Batch.of(embeddings, labels, references, ref_labels, own, triplets)[
        :4
    ]
    has = (positive.sum(1) > 0).double()
    logs = torch.log_softmax((s / temperature).masked_fill(itself, NONE), 1)
    return -(_with_sums(positive, has / has.sum()) * logs).sum()


def sinkhorn(
    cost: Tensor, epsilon: float | Tensor, masses: Sequence[Tensor], n_iters: int, *,
    anti: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Potentials of P_ij = exp((f_i + g_j − C_ij)/ε) after some sweeps, each axis set in turn.

    Args:
        cost: C, shape (N, M); +∞, or 10³⁰, where nothing is to go.
        epsilon: ε.
        masses: p of each axis, zeros allowed; the potential of a sample without mass is −10³⁰ ε.
        n_iters: Sweeps: f = ε log p¹ − ε log Σ_j exp((g_j − C_ij)/ε), then g likewise; from 0.
        anti: Whether −C is transported, so that the plan seeks large costs.

    Example:
        >>> uniform = torch.full((2,), 0.5, dtype=torch.float64)
        >>> f, g = sinkhorn(torch.zeros(2, 2), 1.0, (uniform, uniform), n_iters=1)
        >>> (f[:, None] + g).exp()
        tensor([[0.2500, 0.2500],
                [0.2500, 0.2500]], dtype=torch.float64)
    """
    allowed = cost < -NONE
    scores = torch.where(allowed, cost.double(), 0.0) / epsilon
    kernel = torch.where(allowed, scores if anti else -scores, NONE)
    logs = [mass.double().log().clamp_min(NONE) for mass in masses]
    axes = range(cost.dim())
    shapes = [[-1 if other == axis else 1 for other in axes] for axis in axes]
    scalings = [torch.zeros_like(log).view(shape) for log, shape in zip(logs, shapes, strict=True)]
    for _ in range(n_iters):
        for axis, log_mass in enumerate(logs):
            others = [other for other in axes if other != axis]
            total = torch.logsumexp(sum((scalings[k] for k in others), start=kernel), others)
            there = log_mass > NONE / 2
            scaling = log_mass - torch.where(there, total, 0.0)
            scalings[axis] = torch.where(there, scaling, NONE).view(shapes[axis])
    return tuple(scaling.flatten() * epsilon for scaling in scalings)


def triplet_sinkhorn(
    cost: Tensor, epsilon: float | Tensor, masses: Sequence[Tensor], n_iters: int
) -> tuple[Tensor, ...]:
    """Potentials of P_ijk = exp((f_i + g_j + h_k − C_ijk)/ε), as ``sinkhorn`` with three axes.

    The cost has the shape (N, M, M) and is +∞, or 10³⁰, where two of the three may not meet.

    Example:
        >>> uniform = torch.full((2,), 0.5, dtype=torch.float64)
        >>> f, g, h = triplet_sinkhorn(torch.zeros(2, 2, 2), 1.0, [uniform] * 3, n_iters=1)
        >>> (f[:, None, None] + g[:, None] + h).exp().sum().round(decimals=6)
        tensor(1., dtype=torch.float64)
    """
    return sinkhorn(cost, epsilon, masses, n_iters)


class _Batch(NamedTuple):
    s: Tensor  # cosines, shape (N, M)
    positive: Tensor  # 1 for positive pairs, 0 for others, shape (N, M)
    negative: Tensor  # likewise
    itself: Tensor  # whether anchor i is reference j, shape (N, M)
    labels: Tensor | None
    ref_labels: Tensor | None

    @classmethod
    def of(
        cls, embeddings: Tensor, labels: Tensor | None, references: Tensor | None,
        ref_labels: Tensor | None, own: Tensor | None, triplets: Sequence[Tensor] | None,
    ) -> _Batch:  # fmt: skip
        anchors = others = normalize(embeddings.double(), dim=1, eps=0.0)
        if references is None:
            own, ref_labels = torch.arange(len(anchors)) if own is None else own, labels
        else:
            others = normalize(references.double(), dim=1, eps=0.0)
            own = torch.full((len(anchors),), -1) if own is None else own
        itself = own[:, None] == torch.arange(len(others))
        positive, negative = torch.zeros(2, *itself.shape, dtype=torch.float64)
        if triplets is not None:
            a1, p = triplets[:2]
            a2, n = triplets[-2:] if len(triplets) == 4 else triplets[::2]
            positive[a1, p], negative[a2, n] = 1.0, 1.0
        else:
            assert labels is not None
            assert ref_labels is not None
            same = labels[:, None] == ref_labels
            positive[same & ~itself], negative[~same] = 1.0, 1.0
        return cls(anchors @ others.T, positive, negative, itself, labels, ref_labels)

    def masses(self, counts: Tensor, marginals: str) -> tuple[Tensor, Tensor | float]:
        """p_i, (N,), of anchors with so many pairs or triplets, and v_k, (M,) (§11)."""
        if marginals != "classes":
            return counts / counts.sum(), 1.0
        assert self.labels is not None
        assert self.ref_labels is not None
        taken = (counts > 0).double()
        alike = (self.labels[:, None] == self.labels).double()
        mass = taken / (alike @ taken).clamp_min(1.0)  # 1/m_g
        anchor_class = torch.isin(self.ref_labels, self.labels[counts > 0])  # of G⁺
        others = max(1, len(self.ref_labels[anchor_class].unique()) - 1)  # k⁺ − 1
        share = 1 + anchor_class.double() / others  # k⁺/(k⁺ − 1) in G⁺
        return mass / mass.sum(), share / (self.ref_labels[:, None] == self.ref_labels).sum(1)

    def divergence(
        self, target: Tensor, cost: Tensor, epsilon: float | Tensor, marginals: str, n_iters: int
    ) -> Tensor:
        """KL(P̃‖P), P the plan of pairs for this cost, (N, M), without those of itself."""
        cost = cost.masked_fill(self.itself, -NONE)
        f, g = sinkhorn(cost, epsilon, _imposed(target, marginals), n_iters)
        return _divergence(target, (f[:, None] + g - cost) / epsilon)


def _psi(shaping: str | Shaping) -> Shaping:
    return SHAPINGS[shaping] if isinstance(shaping, str) else shaping


def _with_sums(entries: Tensor, sums: Tensor) -> Tensor:
    """Rows in proportion to the entries, (N, M), with these sums, (N,)."""
    totals = entries.sum(1)
    return entries * torch.where(totals > 0, sums / totals, 0.0)[:, None]


def _imposed(target: Tensor, marginals: str) -> list[Tensor]:
    """The marginals of P, one vector per axis: uniform, or those of P̃."""
    if marginals == "uniform":
        return [torch.full((n,), 1 / n, dtype=torch.float64) for n in target.shape]
    axes = range(target.dim())
    return [target.sum([other for other in axes if other != axis]) for axis in axes]


def _divergence(target: Tensor, log_plan: Tensor) -> Tensor:
    """KL(P̃‖P) = Σ P̃ (log P̃ − log P), with 0 log 0 = 0; P need not sum to one."""
    return (target * (target.clamp_min(1e-300).log() - log_plan)).sum()
