"""VICReg: variance, invariance and covariance of two views, without negatives."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import Batch
from tricouple.groups import Group
from tricouple.losses.base import Check, ContrastiveLoss, Empty, Need
from tricouple.numeric import cosines, on_host
from tricouple.relations import Identities


class VICReg(ContrastiveLoss):
    """Equal views, a variance of at least 1, no covariance (Bardes et al., ICLR 2022).

    ``invariance · mean (z − z′)²`` plus, of both views, ``variance · mean relu(1 − std)`` halved
    and ``covariance · Σ_{k≠l} cov_kl²/d``. Embeddings are not normalised.

    The two views come from the labels. Within one set the samples of a label are paired in
    batch order, first with second, third with fourth, without an odd last one:
    ``pair_views(view0, view1)`` gives the published loss, class labels the paper's synthetic study.
    Across two sets the k-th anchor of a label is paired with its k-th reference. Explicit
    triplets, pairs and weights raise an error.

    Args:
        invariance: Weight of the distance between the views.
        variance: Weight of the hinge on each dimension's standard deviation.
        covariance: Weight of the squared covariances.
        eps: Added to the variance under its square root.
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch with fewer than two pairs.

    Example:
        >>> criterion = VICReg()
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]))
        >>> loss.shape
        torch.Size([])
    """

    needs_negatives = False
    unit_length = False

    def __init__(
        self,
        invariance: float = 25.0,
        variance: float = 25.0,
        covariance: float = 1.0,
        eps: float = 1e-4,
        *,
        empty: Empty = "raise",
        check: Check = "full",
        group: Group = None,
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        weights = {"invariance": invariance, "variance": variance, "covariance": covariance}
        for name, weight in weights.items():
            checks.non_negative_number(name, weight)
        checks.positive_number("eps", eps)
        self.invariance, self.variance, self.covariance = invariance, variance, covariance
        self.eps = eps

    def _needs(self, batch: Batch) -> Iterator[Need]:
        relation = batch.relation
        views = isinstance(relation, Identities) and (relation.within or relation.apart)
        if not views or isinstance(relation.anchor_weights, Tensor):
            raise ValueError(
                "pairs, weights, indices_tuple and ref_index have no meaning for VICReg, which "
                "compares two views: pass labels, or pair_views(view0, view1)"
            )
        n_pairs = _views(batch).number
        yield n_pairs == 0, "positive pair"
        yield n_pairs == 1, "second positive pair, and a variance needs two samples of a view"

    def compute(self, batch: Batch) -> Tensor:
        """The three terms, weighted."""
        views = _views(batch)
        loss = torch.stack(self._terms(views)).sum().to(batch.dtype)
        if self.check == "full" and on_host(loss) and not bool(torch.isfinite(loss.detach())):
            largest = float(torch.stack([view.detach().abs().max() for view in views[:2]]).max())
            raise ValueError(
                f"embeddings as large as {largest:.2g} make VICReg overflow in {loss.dtype}: it "
                "squares them twice; make them smaller, or call .double()"
            )
        return loss

    def _terms(self, views: "_Views") -> list[Tensor]:
        """Invariance, variance and covariance."""
        apart = views.met(views.first - views.second).square().sum(0) / views.number
        terms = [self.invariance * apart.mean(), apart.new_zeros(()), apart.new_zeros(())]
        for view in views[:2]:
            centred = views.met(view - views.met(view).sum(0) / views.number)
            variance = centred.square().sum(0) / (views.number - 1)
            hinge = torch.relu(1 - torch.sqrt(variance + self.eps)).mean()
            columns = centred.T
            covariance = cosines(columns, columns) / (views.number - 1)
            squares = covariance.square().sum() - covariance.diagonal().square().sum()
            terms[1] = terms[1] + self.variance / 2 * hinge
            terms[2] = terms[2] + self.covariance * squares / centred.shape[1]
        return terms

    def _diagnose(self, batch: Batch) -> dict[str, float]:
        names = ("invariance", "variance", "covariance")
        return dict(zip(names, map(float, self._terms(_views(batch))), strict=True))


class _Views(NamedTuple):
    first: Tensor  # shape (pairs, d)
    second: Tensor
    pairs: Tensor | None  # which rows are pairs, where they are not counted; None for all
    number: int | Tensor  # of pairs

    def met(self, values: Tensor) -> Tensor:
        """Values of pairs, 0 elsewhere."""
        return values if self.pairs is None else torch.where(self.pairs, values, 0.0)


def _views(batch: Batch) -> _Views:
    """Samples of one place, which encodes label and number, are a pair: neighbours if sorted."""
    groups = batch.relation
    assert isinstance(groups, Identities)
    assert batch.references is not None
    if groups.within:
        places = groups.anchors + groups.number * (_number_in_group(groups.anchors) // 2)
    else:
        both = groups.anchors, groups.references
        places = torch.cat([codes + groups.number * _number_in_group(codes) for codes in both])
    places, order = places.sort(stable=True)
    met = places[1:] == places[:-1]
    start = 0 if groups.within else len(groups.anchors)
    first, second = order[:-1] * met, (order[1:] - start) * met
    if on_host(met):
        first, second = first[met], second[met]
        return _Views(batch.anchors[first], batch.references[second], None, len(first))
    return _Views(batch.anchors[first], batch.references[second], met[:, None], met.sum())


def _number_in_group(codes: Tensor) -> Tensor:
    """How many samples of the same group come earlier in the batch, shape (N,)."""
    ordered, order = codes.sort(stable=True)
    numbers = torch.arange(len(codes), device=codes.device) - torch.searchsorted(ordered, ordered)
    return torch.empty_like(codes).index_copy_(0, order, numbers)
