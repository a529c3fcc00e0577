"""Views: several of the same instances as one labelled batch, and a labelled batch as two views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tricouple import checks
from tricouple.distributed import Group, Team
from tricouple.relations.identities import Identities


def pair_views(*views: Tensor | Sequence[Tensor], group: Group = None) -> tuple[Tensor, Tensor]:
    """Stack views and number their instances, ready for any loss.

    Args:
        views: Two or more tensors of shape (N, d), or one list of them; row i of each is a view of
            instance i.
        group: Processes whose instances are numbered together, as in every loss: each goes on
            where the one before it ends.

    Returns:
        Embeddings, shape (views·N, d), and the instance of each row, shape (views·N,).

    Example:
        >>> embeddings, identities = pair_views(torch.zeros(2, 3), torch.ones(2, 3))
        >>> identities
        tensor([0, 1, 0, 1])
    """
    team = None if group is None else Team.of(group)
    several: Sequence[Tensor] = []
    first, problem = 0, None
    try:
        several = _checked(views, empty=team is not None)
    except (TypeError, ValueError) as error:
        if team is None:
            raise
        problem = str(error)
    if team is not None:
        first = team.before(len(several[0]) if several else 0, problem)
    identities = torch.arange(first, first + len(several[0]), device=several[0].device)
    return torch.cat(tuple(several)), identities.repeat(len(several))


def _checked(views: Sequence[Any], *, empty: bool) -> Sequence[Tensor]:
    several: Sequence[Any] = views
    if len(views) == 1 and isinstance(views[0], list | tuple):
        several = views[0]
    if len(several) < 2:
        raise ValueError(f"pair_views needs at least 2 views of each instance, got {len(several)}")
    first = several[0]
    for number, view in enumerate(several):
        checks.matrix(f"view {number}", view, empty=empty)
        if view.shape != first.shape:
            raise ValueError(
                f"view {number} has shape {tuple(view.shape)}, view 0 {tuple(first.shape)}: "
                "row i of every view must belong to instance i"
            )
    return several


def view_pairs(relation: Identities) -> tuple[Tensor, Tensor]:
    """Indices of the first and of the second view of each pair, shape (pairs,) each."""
    first, second, met = adjacent_views(relation)
    return first[met], second[met]


def adjacent_views(relation: Identities) -> tuple[Tensor, Tensor, Tensor]:
    """The same among more indices, and which of them are pairs: nobody counts the pairs."""
    anchors = relation.codes[0]
    n_groups = len(relation.sizes[0])
    # A place, group and number in one: a pair is two samples at one place, next to each other.
    if relation.within:
        places = anchors + n_groups * (_number_in_group(anchors, n_groups) // 2)
    else:
        places = torch.cat([c + n_groups * _number_in_group(c, n_groups) for c in relation.codes])
    places, order = places.sort(stable=True)
    met = places[1:] == places[:-1]
    first, second = order[:-1] * met, order[1:]
    return first, (second if relation.within else second - len(anchors)) * met, met


def _number_in_group(codes: Tensor, n_groups: int) -> Tensor:
    """How many samples of the same group come earlier in the batch, shape (N,)."""
    order = codes.argsort(stable=True)
    counts = codes.new_zeros(n_groups).index_add_(0, codes, torch.ones_like(codes))
    starts = counts.cumsum(0) - counts
    numbers = torch.arange(len(codes), device=codes.device) - starts[codes[order]]
    return torch.empty_like(codes).index_copy_(0, order, numbers)
