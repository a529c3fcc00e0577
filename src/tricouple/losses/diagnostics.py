"""How the plans of a batch were solved, and which negatives the gradient repels."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tricouple.batch import Batch
from tricouple.ot.solver import watched
from tricouple.relations import ListedTriplets

# Up to this many pairs the share of repulsion is computed.
_MOST = 8192 * 8192


def diagnose(compute: Callable[[Batch], Tensor], batch: Batch) -> dict[str, float | str]:
    """Plans and forces of a loss, of a batch without a graph."""
    found: dict[str, float | str] = {}
    plans: list[tuple[int, float]] = []
    token = watched.set(plans)
    try:
        with torch.no_grad():
            compute(batch)
    finally:
        watched.reset(token)
    if plans:
        found["sweeps"], found["marginal_error"] = map(max, zip(*plans, strict=True))
    _, triplets = batch.relation.totals
    if triplets and math.prod(batch.relation.shape) <= _MOST:
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
        value = compute(replace(batch, anchors=leaf, references=None, origin=batch))
        if not value.requires_grad:
            return None
        (slopes,) = torch.autograd.grad(value, leaf)
    negatives = batch.relation.negatives(of_triplets=True).pairs.mask()
    # Descent lowers a similarity whose slope is positive.
    forces = slopes.clamp(min=0).masked_fill(~negatives, 0.0).double()
    tenth = (negatives.sum(1, keepdim=True) / 10).ceil()
    order = similarity.masked_fill(~negatives, -torch.inf).topk(int(tenth.max()), 1).indices
    places = torch.arange(1, order.shape[1] + 1, device=order.device)
    hard = forces.gather(1, order).masked_fill(places > tenth, 0.0)
    return float(hard.sum() / forces.sum()) if bool(forces.any()) else 0.0


def extreme_margins(batch: Batch) -> Tensor:
    """The smallest and the largest s_ij − s_ik of all admissible triplets."""
    relation = batch.relation
    if isinstance(relation, ListedTriplets):
        return torch.stack(torch.aminmax(relation.margins(batch.anchors, batch.references)))
    scores = batch.similarity()
    ends = []
    for side in (relation.positives, relation.negatives):
        mask = side(of_triplets=True).pairs.mask()
        low, high = scores.masked_fill(~mask, torch.inf), scores.masked_fill(~mask, -torch.inf)
        ends.append((low.amin(1), high.amax(1)))
    (least_near, most_near), (least_far, most_far) = ends
    return torch.stack([(least_near - most_far).min(), (most_near - least_far).max()])
