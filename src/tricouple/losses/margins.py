"""Margins s_ij − s_ik of the triplets of a batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tricouple.batch import Batch
from tricouple.numeric import inverse_product, wide_dtype
from tricouple.relations import ListedTriplets
from tricouple.shaping import Shaping


def listed_costs(batch: Batch, relation: ListedTriplets, psi: Shaping, epsilon: float) -> Tensor:
    """⟨P̃, C⟩/ε of listed triplets, whose negative depends on the positive; by autograd."""
    margins = _listed(batch, relation) * inverse_product(batch.temperature, 1.0)
    return (relation.mean(psi(margins)) / epsilon).to(batch.dtype)


def extreme_margins(batch: Batch) -> Tensor:
    """The smallest and the largest s_ij − s_ik of all admissible triplets."""
    if isinstance(batch.relation, ListedTriplets):
        return torch.stack(torch.aminmax(_listed(batch, batch.relation)))
    scores = batch.similarity()
    positives = batch.relation.attracting().pairs.mask()
    negatives = batch.relation.repelling().pairs.mask()
    lowest = _least(scores, positives) + _least(-scores, negatives)
    highest = _least(-scores, positives) + _least(scores, negatives)
    return torch.stack([lowest.min(), -highest.min()])


def _listed(batch: Batch, relation: ListedTriplets) -> Tensor:
    """``s_ij − s_ik`` of each listed triplet, float64."""
    wide = wide_dtype(batch.anchors.device)
    if batch.references is None:
        rows = batch.anchors.to(wide)[relation.anchors]
        near, far = relation.positive_indices, relation.negative_indices
        return (rows.gather(1, near[:, None]) - rows.gather(1, far[:, None]))[:, 0]
    anchors, references = batch.anchors.to(wide), batch.references.to(wide)
    apart = references[relation.positive_indices] - references[relation.negative_indices]
    return (anchors[relation.anchors] * apart).sum(1)


def _least(values: Tensor, mask: Tensor) -> Tensor:
    return values.masked_fill(~mask, math.inf).amin(1)
