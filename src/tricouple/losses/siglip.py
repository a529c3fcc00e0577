"""SigLIP: every pair is a binary classification by a sigmoid, without a softmax."""

import math
from collections.abc import Iterator, Sequence
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from tricouple.batch import Batch
from tricouple.groups import Group
from tricouple.losses.base import Check, ContrastiveLoss, Empty, GivenSharpness
from tricouple.losses.coupled import sides, to_temperature, with_gradient
from tricouple.numeric import wide_dtype

_TILE = 1 << 18  # pairs that are computed together


class SigLIP(ContrastiveLoss):
    """The pairwise sigmoid loss (Zhai et al., ICCV 2023).

    ``1/N Σ_ij −log σ(±(c s_ij + b))`` over all anchors i and references j, + at positives, − at
    negatives. Every reference of the anchor's label is a positive; all N anchors count, also
    those without a positive. With explicit triplets the pairs are the listed ones. ``pairs=`` are
    factors of the positives' terms, ``weights=`` replace 1/N.

    It is symmetric: both directions are equal if there are as many anchors as references;
    ``BothDirections`` takes the time of one. Memory is O(N·d): the gradient is formed with the
    value, some rows at a time, by one product for the similarities and two for the gradients.

    Args:
        temperature: τ = 1/c; a number, or a tensor or ``nn.Parameter`` that gets its gradient.
        bias: b; a number or such a tensor.
        learn_bias: Whether b is a parameter; c learns with ``BothDirections(…, learn=True)``.
        sharpness: c instead of τ; 10 if neither is given.
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch without a positive pair.

    Example:
        >>> images, texts, ids = torch.randn(4, 3), torch.randn(4, 3), torch.arange(4)
        >>> loss = SigLIP(learn_bias=True)(images, ids, ref_emb=texts, ref_labels=ids)
        >>> loss.shape
        torch.Size([])
    """

    scale = "temperature"
    needs_negatives = False
    temperature: float | Tensor
    bias: float | Tensor

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        bias: float | Tensor = -10.0,
        *,
        learn_bias: bool = False,
        sharpness: GivenSharpness = None,
        empty: Empty = "raise",
        check: Check = "full",
        group: Group = None,
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        self._set_scale(temperature, sharpness)
        if isinstance(bias, bool) or not isinstance(bias, Tensor | Real):
            raise TypeError(f"bias must be a number or a tensor, got {bias!r}")
        number = torch.as_tensor(bias).detach()
        if number.numel() != 1 or not math.isfinite(number):
            raise ValueError(f"bias must be one finite number, got {bias}")
        self.bias = nn.Parameter(number.float().clone()) if learn_bias else bias

    def compute(self, batch: Batch) -> Tensor:
        """The terms of anchor i weigh 1/N, or as its weight."""
        masses = _masses(batch)
        return self._sum(batch, masses, masses.new_zeros(()))

    def compute_both(self, batch: Batch) -> Tensor:
        """Both directions have the same terms: half the weight of i, and half that of j."""
        return self._sum(batch, _masses(batch) / 2, _masses(batch.mirrored()) / 2)

    def _sum(self, batch: Batch, rows: Tensor, columns: Tensor) -> Tensor:
        """``Σ_ij (rows_i + columns_j) W_ij −log σ(±(c s_ij + b))``, W = 1 at negatives."""
        learnt = batch.temperature if isinstance(batch.temperature, Tensor) else None
        bias = self.bias.reshape(()) if isinstance(self.bias, Tensor) else None
        c, b = batch.sharpness().value, self.bias if bias is None else bias.detach()

        def evaluate(wanted: bool) -> tuple[Tensor, Sequence[Tensor | None]]:
            scores, own = batch.scores(), batch.rows
            scores.keep, scores.tile_entries = False, _TILE
            sums = rows.new_zeros(3)  # L, ∂L/∂b and ∂L/∂log c

            def tiles() -> Iterator[tuple[slice, Tensor]]:
                for block, s in scores.tiles():
                    place = slice(own.start + block.start, own.start + block.stop)
                    kind = batch.relation.of_rows(place).entries()
                    positive, each = kind > 0, rows[place, None].to(s.dtype)
                    masses = torch.where(positive, kind, kind == 0) * (each + columns.to(s.dtype))
                    t = s.mul_(c).add_(b)
                    t = torch.where(positive, -t, t)
                    sums[0] -= logsigmoid(-t).mul_(masses).sum(1).sum(dtype=sums.dtype)
                    slopes = masses.mul_(t.sigmoid_())
                    slopes = torch.where(positive, -slopes, slopes)
                    sums[1] += slopes.sum(1).sum(dtype=sums.dtype)
                    yield block, slopes.mul_(c)

            ends = [scores.anchors, scores.references]
            to = [torch.zeros_like(x, dtype=scores.dtype) for x in ends if x is not None]
            if wanted:
                scores.pull(tiles(), to)
                sums[2] = torch.linalg.vecdot(scores.anchors.to(scores.dtype), to[0]).sum()
                if scores.group is not None:
                    scores.group.sum_(to[1])
            else:
                for _ in tiles():
                    pass
            value, slope, by_scale = scores.shared(sums)
            to_bias = None if bias is None else slope.to(bias)
            return value, (*sides(batch, to), to_temperature(learnt, by_scale), to_bias)

        value = with_gradient(evaluate, batch.anchors, batch.references, learnt, bias)
        return value.to(batch.dtype)


def _masses(batch: Batch) -> Tensor:
    """Of each anchor, 1/N or in proportion to its weight, (N,)."""
    own = batch.relation.own
    return batch.relation.masses(torch.ones_like(own, dtype=wide_dtype(own.device)))
