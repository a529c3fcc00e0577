"""The paper's algorithms as written: dense, float64, differentiated by autograd.

A triplet plan is an N×M×M tensor here. Use it to read what a loss is and to check a fast one.
Formulas: docs/mathematics.md, §1, 2, 5 and 11.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple.shaping import Shaping, resolve

__all__ = [
    "info_nce",
    "iot",
    "multimodal_iot",
    "neg_mmiot",
    "push_pull",
    "sinkhorn",
]

Number = float | Tensor
NONE = -1e30  # for −∞ in logarithms, and less it for +∞ in costs: autograd has no way through them


def neg_mmiot(
    *samples: Any, temperature: Number, epsilon: Number, shaping: str | Shaping = "linear",
    **how: Any,
) -> Tensor:  # fmt: skip
    """Neg-MMIOT-CL: KL(P̃‖P), P the three-marginal plan for C_ijk = ψ((s_ij − s_ik)/τ).

    Args:
        *samples: Embeddings of the anchors, (N, d), of any length; their labels, (N,); those of the
            references, (M, d), None for the anchors themselves; and their labels, (M,).
        temperature: τ.
        epsilon: ε.
        shaping: ψ, a name of ``tricouple.shaping.SHAPINGS`` or a function.
        **how: ``n_iters``: sweeps over anchors, positives and negatives, 10 by default.
            ``marginals``: of P, ``"uniform"``, ``"target"`` (those of P̃) or ``"classes"`` (§11).
            ``own``: the reference that each anchor is, (N,), −1 for none; by default itself within
            one set. ``triplets``: instead of labels, triplets (a, p, n), or pairs (a1, p, a2, n),
            where every positive of an anchor goes with every negative of it. ``pairs``: instead of
            labels, weights of the positives, (N, M), 0 at negatives. ``weights``: of anchors, (N,).

    Example:
        >>> z, y = torch.eye(3), torch.tensor([0, 0, 1])
        >>> neg_mmiot(z, y, temperature=1.0, epsilon=0.1)  # log 6 − log 2: six triplets, two in A
        tensor(1.0986, dtype=torch.float64)
    """
    batch = _Batch(*samples, **how)
    s, triplets = batch.s, batch.triplets
    if triplets is not None and len(triplets) == 3:
        target = torch.zeros(*s.shape, s.shape[1], dtype=torch.float64)
        target[tuple(triplets)] = 1.0
        target = target * batch.weights[:, None, None]
        target = target / target.sum()
    else:  # P̃_ijk = p_i · 1/n⁺_i · v_k/Z_i
        mass, weights = batch.masses(batch.positive.sum(1) * batch.negative.sum(1))
        far = _with_sums(batch.negative * weights, torch.ones_like(mass))
        target = _with_sums(batch.positive, mass)[:, :, None] * far[:, None, :]
    t = (s[:, :, None] - s[:, None, :]) / temperature  # (N, M, M)
    return batch.divergence(target, resolve(shaping)(t), epsilon)


def push_pull(
    *samples: Any, temperature: Number, epsilon_pos: float, epsilon_neg: float,
    shaping: str | Shaping = "linear", negatives: str = "projected", **how: Any,
) -> Tensor:  # fmt: skip
    """Neg-IOT-CL-PushPull: KL(P̃₊‖P₊) + KL(P̃₋‖P₋), plans for C_ij = ψ(s_ij/τ) and −C_ij.

    Arguments are those of ``neg_mmiot``, and ``negatives``: A⁻ is ``"projected"``, the pairs (i, k)
    of admissible triplets, or ``"all"`` pairs of unequal label.

    Example:
        >>> z, y = torch.eye(3), torch.tensor([0, 0, 1])
        >>> push_pull(z, y, temperature=1.0, epsilon_pos=0.1, epsilon_neg=0.1)  # 2 log 3
        tensor(2.1972, dtype=torch.float64)
    """
    batch = _Batch(*samples, **how)
    near, far = batch.positive.sum(1), batch.negative.sum(1)
    attracting, _ = batch.masses(near * (far > 0))
    repelling, weights = batch.masses(far * (near > 0) if negatives == "projected" else far)
    pull = _with_sums(batch.positive, attracting)
    push = _with_sums(batch.negative * weights, repelling)
    cost = resolve(shaping)(batch.s / temperature)
    return batch.divergence(pull, cost, epsilon_pos) + batch.divergence(push, -cost, epsilon_neg)


def iot(*samples: Any, epsilon: Number, **how: Any) -> Tensor:
    """IOT-CL: KL(P̃‖P), P the plan for C_ij = 1 − s_ij, P̃ on the positive pairs.

    Arguments are those of ``neg_mmiot``.

    Example:
        >>> iot(torch.eye(3), torch.tensor([0, 0, 1]), epsilon=0.1)  # log 6 − log 2
        tensor(1.0986, dtype=torch.float64)
    """
    batch = _Batch(*samples, **how)
    mass, _ = batch.masses(batch.positive.sum(1))
    return batch.divergence(_with_sums(batch.positive, mass), 1 - batch.s, epsilon)


def multimodal_iot(
    embeddings: Sequence[Tensor], ids: Sequence[Tensor] | None = None, *,
    sharpness: Sequence[Number], n_iters: int = 10,
) -> Tensor:  # fmt: skip
    """KL(P̃‖P) of three modalities, P for C_ijk = −Σ_edges c s, P̃ uniform on triples of one id.

    Args:
        embeddings: Three matrices, (N, d), of any lengths.
        ids: Of their rows; numbers of rows if None.
        sharpness: c of the edges 01, 02 and 12.
        n_iters: Sweeps.

    Example:
        >>> z = torch.eye(3)
        >>> multimodal_iot([z, z, z], sharpness=[1e-9] * 3)  # log 27 − log 3
        tensor(2.1972, dtype=torch.float64)
    """
    x, y, z = (normalize(rows.double(), dim=1, eps=0.0) for rows in embeddings)
    a, b, c = sharpness
    cost = -((a * x @ y.T)[:, :, None] + (b * x @ z.T)[:, None, :] + c * y @ z.T)  # (N, M, K)
    i, j, k = ids or [torch.arange(size) for size in cost.shape]
    same = ((i[:, None] == j)[:, :, None] & (i[:, None] == k)[:, None, :]).double()
    uniform = [torch.full((size,), 1 / size, dtype=torch.float64) for size in cost.shape]
    log_plan = sum(torch.meshgrid(*sinkhorn(cost, 1.0, uniform, n_iters), indexing="ij")) - cost
    return -(same * log_plan).sum() / same.sum() - same.sum().log()


def info_nce(*samples: Any, temperature: Number, **how: Any) -> Tensor:
    """InfoNCE: the mean over anchors of −1/n⁺_i Σ_j log softmax_j(s_ij/τ), j positive.

    Arguments are those of ``neg_mmiot``; anchors without a positive do not count.

    Example:
        >>> info_nce(torch.eye(3), torch.tensor([0, 0, 1]), temperature=0.1)  # log 2
        tensor(0.6931, dtype=torch.float64)
    """
    batch = _Batch(*samples, **how)
    mass, _ = batch.masses((batch.positive.sum(1) > 0).double())
    logs = torch.log_softmax((batch.s / temperature).masked_fill(batch.itself, NONE), 1)
    return -(_with_sums(batch.positive, mass) * logs).sum()


def sinkhorn(
    cost: Tensor, epsilon: Number, masses: Sequence[Tensor], n_iters: int, *, anti: bool = False
) -> tuple[Tensor, ...]:
    """Potentials of P_ij = exp((f_i + g_j − C_ij)/ε) after some sweeps, each axis set in turn.

    Args:
        cost: C, shape (N, M), or with more axes; +∞, or 10³⁰, where nothing is to go.
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
    cost = cost.double().clamp(max=-NONE)
    kernel = ((cost if anti else -cost) / epsilon).masked_fill(cost == -NONE, NONE)
    scalings = [torch.zeros_like(mass, dtype=torch.float64) for mass in masses]
    for _ in range(n_iters):
        for axis, mass in enumerate(masses):
            others = [other for other in range(cost.dim()) if other != axis]
            grids = torch.meshgrid(*scalings, indexing="ij")
            total = torch.logsumexp(sum((grids[k] for k in others), start=kernel), others)
            scalings[axis] = torch.where(mass > 0, mass.double().log() - total, NONE)
    return tuple(scaling * epsilon for scaling in scalings)


class _Batch:
    """Cosines s, positive and negative pairs (1 and 0), whether anchor i is reference j: (N, M)."""

    def __init__(
        self, embeddings: Tensor, labels: Any = None, references: Tensor | None = None,
        ref_labels: Any = None, *, own: Tensor | None = None,
        triplets: Sequence[Tensor] | None = None, n_iters: int = 10, marginals: str = "uniform",
        pairs: Tensor | None = None, weights: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.triplets, self.n_iters, self.marginals = triplets, n_iters, marginals
        self.weights = (torch.ones(len(embeddings)) if weights is None else weights).double()
        self.labels, self.ref_labels = labels, labels if references is None else ref_labels
        x, y = (
            normalize(rows.double(), dim=1, eps=0.0)
            for rows in (embeddings, embeddings if references is None else references)
        )
        self.s = x @ y.T  # (N, M)
        if own is None:
            own = torch.arange(len(x)) if references is None else torch.full((len(x),), -1)
        self.itself = own[:, None] == torch.arange(len(y))
        if pairs is not None:
            self.positive = pairs.double().masked_fill(self.itself, 0.0)
            self.negative = ((pairs == 0) & ~self.itself).double()
        elif triplets is None:
            same = labels[:, None] == self.ref_labels
            self.positive, self.negative = (same & ~self.itself).double(), (~same).double()
        else:
            self.positive, self.negative = torch.zeros(2, *self.s.shape, dtype=torch.float64)
            a2, n = triplets[-2:] if len(triplets) == 4 else triplets[::2]
            self.positive[tuple(triplets[:2])], self.negative[a2, n] = 1.0, 1.0

    def masses(self, counts: Tensor) -> tuple[Tensor, Number]:
        """p_i, (N,), of anchors with so many pairs or triplets, and v_k, (M,) (§11)."""
        if self.marginals != "classes":
            return counts * self.weights / (counts @ self.weights), 1.0
        taken = (counts > 0).double()
        alike = (self.labels[:, None] == self.labels).double()
        mass = taken / (alike @ taken).clamp_min(1.0)  # 1/m_g
        anchor_class = torch.isin(self.ref_labels, self.labels[counts > 0])  # of G⁺
        others = max(1, len(self.ref_labels[anchor_class].unique()) - 1)  # k⁺ − 1
        share = 1 + anchor_class.double() / others  # k⁺/(k⁺ − 1) in G⁺
        return mass / mass.sum(), share / (self.ref_labels[:, None] == self.ref_labels).sum(1)

    def divergence(self, target: Tensor, cost: Tensor, epsilon: Number) -> Tensor:
        """KL(P̃‖P) = Σ P̃ (log P̃ − log P), 0 log 0 = 0, of the plan for C_ij or C_ijk."""
        barred, same = self.itself, torch.eye(cost.shape[1], dtype=torch.bool)
        if cost.dim() == 3:  # i, j and k are distinct
            barred = barred[:, :, None] | barred[:, None, :] | same
        cost = cost.masked_fill(barred, -NONE)
        axes = range(target.dim())
        imposed = [target.sum([other for other in axes if other != axis]) for axis in axes]
        if self.marginals == "uniform":
            imposed = [torch.full_like(sums, 1 / len(sums)) for sums in imposed]
        potentials = sinkhorn(cost, epsilon, imposed, self.n_iters)
        log_plan = (sum(torch.meshgrid(*potentials, indexing="ij")) - cost) / epsilon
        return (target * (target.clamp_min(1e-300).log() - log_plan)).sum()


def _with_sums(entries: Tensor, sums: Tensor) -> Tensor:
    """Rows in proportion to the entries, (N, M), with these sums, (N,)."""
    totals = entries.sum(1)
    return entries * torch.where(totals > 0, sums / totals, 0.0)[:, None]
