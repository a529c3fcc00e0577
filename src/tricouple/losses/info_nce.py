"""InfoNCE: SupCon for labels, NT-Xent for views, one direction of CLIP across."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tricouple import checks
from tricouple.distributed import Group, Shard
from tricouple.losses.base import ContrastiveLoss
from tricouple.losses.batch import Batch
from tricouple.memory import DEFAULT_BUDGET, MEMORY_MODES, choose_storage
from tricouple.numeric import (
    OwnGradient,
    Patch,
    ScoreGradient,
    first_derivative_only,
    inverse_product,
    pull,
    row_blocks,
    told,
)
from tricouple.relations import exclude_own_


class InfoNCE(ContrastiveLoss):
    """The contrastive cross-entropy that most methods share.

    For each anchor, minus the mean over its positives of ``log softmax(s/τ)`` over all others;
    then the mean over the anchors that have a positive (some public code counts the rest as zeros).

    One formula, three names: SupCon for class labels, NT-Xent for two views, and across modalities
    one direction of CLIP, with every reference of the anchor's identity as a positive. The
    symmetric CLIP loss is the mean of both directions. With explicit triplets the positives are the
    distinct listed (anchor, positive) pairs; the softmax is still over all others.

    Args:
        temperature: τ; a number, or a tensor or ``nn.Parameter`` that receives its gradient.
        sharpness: c = 1/τ instead; 10, the paper's, if neither is given.
        empty: ``"raise"`` or ``"zero"`` for batches without an anchor that has both a positive and
            a negative.
        check: ``"full"`` or ``"shapes"``, as in ``ContrastiveLoss`` (docs/accelerators.md).
        group: Processes whose samples are one batch, as in ``ContrastiveLoss``.
        memory: ``"auto"``, ``"matrices"`` or ``"streamed"``, as in ``NegMMIOT``; all the same here,
            because similarities always come in tiles.
        memory_budget: Bytes that the tiles may take.

    Example:
        >>> criterion = InfoNCE(sharpness=10)
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> loss.shape
        torch.Size([])
    """

    shown = ("temperature",)
    scale = "temperature"
    paper_sharpness = 10.0
    temperature: float | Tensor

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        *,
        sharpness: float | str | None = None,
        empty: str = "raise",
        check: str = "full",
        group: Group = None,
        memory: str = "auto",
        memory_budget: float = DEFAULT_BUDGET,
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        self._set_scale(temperature, sharpness)
        checks.one_of("memory", memory, MEMORY_MODES)
        checks.positive_number("memory_budget", memory_budget)
        self.memory_budget = memory_budget

    def compute(self, batch: Batch) -> Tensor:
        """Σ_i w_i log Σ_j exp(s_ij/τ) − ⟨P̃, s⟩/τ, with P̃_ij = w_i/n⁺_i at the positives."""
        target = batch.relation.per_anchor()
        sharpness = inverse_product(batch.temperature, 1.0, batch.anchors.dtype)
        weights = target.marginals[0]
        excluded = batch.within if batch.own is None else batch.own
        shape = (len(batch.anchors), len(batch.references))
        tiles = choose_storage("streamed", self.memory_budget, shape, batch.anchors, matrices=0)
        partition: Tensor = _LogPartition.apply(  # type: ignore[no-untyped-call]
            batch.anchors,
            batch.references,
            sharpness,
            weights,
            excluded,
            tiles.tile_entries,
            batch.shard,
        )
        return (partition - sharpness * batch.inner(target)).to(batch.dtype)


class _LogPartition(torch.autograd.Function):
    """``Σ_i w_i log Σ_j exp(sharpness · s_ij)``, without an anchor itself; wide dtype.

    Tiles of similarities, in the forward and again in the backward pass, no N×M matrix: computing
    a tile twice costs less than writing it to memory and reading it back. Of several processes each
    has the rows of its own anchors, and for the gradient those of its own references.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        references: Tensor,
        sharpness: float | Tensor,
        weights: Tensor,
        excluded: bool | Tensor,
        tile_entries: int,
        shard: Shard | None,
    ) -> Tensor:
        ctx.factor = told(sharpness.detach()) if isinstance(sharpness, Tensor) else sharpness
        ctx.excluded, ctx.tile_entries = excluded, tile_entries
        ctx.factor_dtype = sharpness.dtype if isinstance(sharpness, Tensor) else None
        ctx.shard = shard
        logs = torch.zeros_like(weights)
        own = None if shard is None else shard.rows
        for rows, scores in _scores(anchors, references, ctx.factor, excluded, tile_entries, own):
            logs[rows] = torch.logsumexp(scores, 1)
        if shard is not None:
            shard.sum_(logs)
        learnt = sharpness if isinstance(sharpness, Tensor) else None
        ctx.save_for_backward(anchors, references, weights, logs, learnt)
        return weights @ logs

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        anchors, references, weights, logs, _ = ctx.saved_tensors
        shard = ctx.shard
        # g w_i softmax_ij = exp(score_ij − log-partition_i) · g w_i
        scale, shift = (gradient * weights).to(anchors.dtype), logs.to(anchors.dtype)
        settings = ctx.factor, ctx.excluded, ctx.tile_entries

        def of_anchors(own: slice | None) -> Iterator[Patch]:
            for rows, scores in _scores(anchors, references, *settings, own):
                scores.sub_(shift[rows, None]).exp_().mul_(scale[rows, None])
                yield Patch(rows, scores)

        def of_references(own: slice) -> Iterator[Patch]:
            for rows, scores in _scores(references, anchors, *_mirrored(settings, references), own):
                yield Patch(rows, scores.sub_(shift).exp_().mul_(scale))

        def of_both(own: slice) -> Iterator[Patch]:
            """Within one set s_ij is s_ji: one tile has both entries of a pair."""
            for rows, scores in _scores(anchors, references, *settings, own):
                mirrored = torch.sub(scores, shift).exp_().mul_(scale)
                scores.sub_(shift[rows, None]).exp_().mul_(scale[rows, None]).add_(mirrored)
                yield Patch(rows, scores)

        patches: ScoreGradient = of_anchors(None)
        if shard is not None and ctx.excluded is True:
            patches = OwnGradient(of_both(shard.rows), [shard.rows])
        elif shard is not None:
            received = of_references(shard.columns)
            patches = OwnGradient(of_anchors(shard.rows), [shard.rows], received)
        to_embeddings, slope = pull(
            patches, ctx.factor, anchors, references, slope=ctx.needs_input_grad[2], shard=shard
        )
        to_factor = None if slope is None else slope.to(ctx.factor_dtype)
        return *to_embeddings, to_factor, None, None, None, None


def _scores(
    anchors: Tensor,
    references: Tensor,
    factor: float | Tensor,
    excluded: bool | Tensor,
    tile_entries: int,
    own: slice | None,
) -> Iterator[tuple[slice, Tensor]]:
    """``factor · s`` in tiles that the next tile overwrites, −∞ where an anchor meets itself.

    Of all anchors, or of some.
    """
    first, last = (0, len(anchors)) if own is None else (own.start, own.stop)
    blocks = row_blocks(last - first, len(references), tile_entries)
    buffer = anchors.new_empty(blocks[0].stop if blocks else 0, len(references))
    scaled = anchors[first:last] * factor
    for block in blocks:
        tile = torch.mm(scaled[block], references.T, out=buffer[: block.stop - block.start])
        rows = slice(first + block.start, first + block.stop)
        if isinstance(excluded, Tensor):
            exclude_own_(tile, excluded[rows], -torch.inf)
        elif excluded:
            tile.diagonal(rows.start).fill_(-torch.inf)
        yield rows, tile


def _mirrored(
    settings: tuple[float, bool | Tensor, int], references: Tensor
) -> tuple[float, bool | Tensor, int]:
    """Settings of scores of references, with the anchor that each of them is, −1 for none."""
    factor, excluded, tile_entries = settings
    if not isinstance(excluded, Tensor):
        return settings
    own = excluded.new_full((len(references),), -1)
    rows = (excluded >= 0).nonzero()[:, 0]
    own[excluded[rows]] = rows
    return factor, own, tile_entries
