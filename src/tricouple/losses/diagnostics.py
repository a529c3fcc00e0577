"""What a loss did to its last batch: how its plans were solved, and on whom its repulsion fell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from tricouple.losses.batch import Batch
from tricouple.ot.potentials import watched_plans
from tricouple.relations import PairTarget

# Matrices of forces beyond this many pairs are not worth a number in a log.
_MOST = 8192 * 8192


def diagnose(compute: Callable[[Batch], Tensor], batch: Batch) -> dict[str, float | str]:
    """Plans and forces of a loss, of a batch without a graph."""
    found: dict[str, float | str] = {}
    with torch.no_grad(), watched_plans() as plans:
        compute(batch)
    if plans:
        found["sweeps"] = max(plan.n_sweeps for plan in plans)
        found["marginal_error"] = max(plan.marginal_error for plan in plans)
    n, m = len(batch.anchors), len(batch.references)
    if batch.relation.n_triplets and n * m <= _MOST:
        share = _hard_share(compute, batch)
        if share is not None:
            found["repulsion_on_hardest_tenth"] = share
    return found


def _hard_share(compute: Callable[[Batch], Tensor], batch: Batch) -> float | None:
    """How much of the repulsion falls on the tenth of each anchor's negatives nearest to it.

    None for a loss that gives similarities no gradient.
    """
    similarity = batch.similarity()
    with torch.enable_grad():
        leaf = similarity.detach().requires_grad_()
        value = compute(lifted(batch, leaf))
        if not value.requires_grad:
            return None
        (slopes,) = torch.autograd.grad(value, leaf)
    negatives = batch.relation.repelling().pairs.mask()
    # Descent lowers a similarity whose slope is positive.
    forces = slopes.clamp(min=0).masked_fill(~negatives, 0.0).double()
    tenth = (negatives.sum(1, keepdim=True) / 10).ceil()
    order = similarity.masked_fill(~negatives, -torch.inf).topk(int(tenth.max()), 1).indices
    places = torch.arange(1, order.shape[1] + 1, device=order.device)
    hard = forces.gather(1, order).masked_fill(places > tenth, 0.0)
    return float(hard.sum() / forces.sum()) if bool(forces.any()) else 0.0


@dataclass(frozen=True, kw_only=True)
class _Lifted(Batch):
    """A batch whose similarities are given: those of their own rows with unit axes."""

    original: Batch
    given: Tensor

    def similarity(self) -> Tensor:
        return self.given

    def wide_similarity(self) -> Tensor:
        return self.given.to(torch.promote_types(self.given.dtype, torch.float64))

    def inside(self) -> tuple[Tensor, Tensor]:
        return self.original.inside()

    def inner(self, target: PairTarget) -> Tensor:
        return (target.dense() * self.given).sum()


def lifted(batch: Batch, similarity: Tensor) -> Batch:
    """The batch as a function of its similarities, whose gradient then are the forces.

    Any matrix S is that of the inner products of its rows with the unit vectors, or of the unit
    vectors with its columns: the smaller of the two is taken.
    """
    n, m = similarity.shape
    axes = torch.eye(min(n, m), dtype=similarity.dtype, device=similarity.device)
    anchors, references = (similarity, axes) if m <= n else (axes, similarity.T)
    values = {field.name: getattr(batch, field.name) for field in fields(Batch)}
    embedded = {"anchors": anchors, "references": references}
    return _Lifted(**values | embedded, original=batch, given=similarity)
