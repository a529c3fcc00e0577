"""A checked batch: unit embeddings and their relation, whatever way the user gave them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tricouple import checks
from tricouple.distributed import Shard
from tricouple.losses.call import Call, listed
from tricouple.numeric import (
    compute_dtype,
    cosines,
    first_derivative_only,
    on_host,
    unit_rows,
    wide_dtype,
)
from tricouple.ot.engine import Sweeps
from tricouple.relations import (
    Identities,
    PairTarget,
    PlacedRelation,
    Places,
    Relation,
    WeightedIdentities,
    by_class,
    exclude_own_,
)

# Up to this many pairs a batch is computed in float64: 64 samples within one set.
_TINY = 64 * 64

# Numbers in float64 that stay in the cache.
_FEW = 1 << 17


@dataclass(frozen=True)
class Batch:
    """What every loss computes from."""

    dtype: torch.dtype  # the dtype of the loss: that of the embeddings, float32 at least
    # Unit vectors (raw ones, if the loss wants them so), shape (N, d), float32 or float64.
    anchors: Tensor
    references: Tensor  # likewise, shape (M, d); the anchors themselves within one set
    relation: Relation  # who is whose positive and negative
    within: bool  # whether anchors and references are the same samples
    temperature: float | Tensor  # what divides the similarities
    own: Tensor | None = None  # across: the reference that each anchor is, −1 for none
    # What the host takes it to be at least, if a device holds it.
    known_temperature: float | None = None
    places: Places | None = None  # of anchors and references, if couplings see them elsewhere
    shard: Shard | None = None  # who has which rows, if they come from several processes

    def weighed(self, marginals: str) -> Batch:
        """The batch as couplings see it.

        With class marginals, if they are asked for; with anchors that are references at the same
        places, so that they do not meet.
        """
        batch = self
        if marginals == "classes":
            batch = replace(self, relation=by_class(self.relation))
        if self.own is None:
            return batch
        absent, anchors = self.own < 0, self.anchors
        if not on_host(absent):  # a device takes all anchors for references
            anchors = torch.where(absent.any(), torch.nan, anchors)
        elif bool(absent.all()):
            return batch
        else:
            require_all(self.own)
        places = Places.of(self.own.clamp(min=0), len(self.references))
        relation = PlacedRelation(batch.relation, places)
        embedded = places.embed(anchors, self.references)
        known = self.known_temperature
        return Batch(self.dtype, *embedded, relation, True, self.temperature, None, known, places)

    def imposed(self, how: Sweeps, masses: Tensor, sizes: Sequence[int]) -> Tensor:
        """The marginals to impose, of all axes in one vector, where the target has these."""
        if self.places is not None and how.marginals == "uniform":
            return self.places.uniform(len(sizes), masses)
        return how.imposed(masses, sizes)

    def shared(self, how: Sweeps) -> Sweeps:
        """How to solve, by all processes that have rows of this batch."""
        return how if self.shard is None else replace(how, shard=self.shard)

    def exclude_(self, scores: Tensor, value: float) -> Tensor:
        """Overwrite the entries of anchors with themselves, shape (N, M)."""
        if self.within:
            return scores.fill_diagonal_(value)
        return scores if self.own is None else exclude_own_(scores, self.own, value)

    def mirrored(self) -> Batch:
        """With anchors for references, of two sets with identities."""
        assert isinstance(self.relation, Identities)
        relation = Identities(self.relation.references, self.relation.anchors, within=False)
        return replace(
            self,
            anchors=self.references,
            references=self.anchors,
            relation=relation,
            shard=None if self.shard is None else self.shard.mirrored(),
        )

    def detached(self) -> Batch:
        """The same numbers, of no graph, for this process alone."""
        return self._changed(Tensor.detach, shard=None)

    def stopped(self, flag: Tensor) -> Batch:
        """The same numbers, from which no gradient flows back where a device's flag says so."""
        return self._changed(lambda values: torch.where(flag, values.detach(), values), self.shard)

    def _changed(self, change: Callable[[Tensor], Tensor], shard: Shard | None) -> Batch:
        temperature = self.temperature
        if isinstance(temperature, Tensor):
            temperature = change(temperature)
        anchors, references = self._both(change)
        return replace(
            self, anchors=anchors, references=references, temperature=temperature, shard=shard
        )

    def _both(self, change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Anchors and references; one tensor within one set."""
        anchors = change(self.anchors)
        return anchors, anchors if self.references is self.anchors else change(self.references)

    def reach(self, factor: float | Tensor) -> float:
        """What no cosine over τ exceeds, rounded as they are; the factor is 1/τ."""
        if self.known_temperature is not None:
            factor = 1 / self.known_temperature
        return 1.01 * float(factor)

    def similarity(self) -> Tensor:
        """Cosines, shape (N, M)."""
        return cosines(self.anchors, self.references)

    def inside(self) -> tuple[Tensor, Tensor]:
        """Cosines inside each set, shapes (N, N) and (M, M)."""
        return cosines(self.anchors, self.anchors), cosines(self.references, self.references)

    def wide_similarity(self) -> Tensor:
        """Cosines in float64, for what nearly cancels against the plan's potentials."""
        return cosines(*self._wide())

    def inner(self, target: PairTarget) -> Tensor:
        """Inner product of a target with the cosines.

        It nearly cancels against the plan's potentials, both of size c: O(N·d) work in float64.
        """
        if self.shard is not None:
            embedded = self.anchors, self.references
            return _OwnInner.apply(*embedded, target.inner, self.shard)  # type: ignore[no-any-return, no-untyped-call]
        return target.inner(*self._wide())

    def _wide(self) -> tuple[Tensor, Tensor]:
        wide = wide_dtype(self.anchors.device)
        return self._both(lambda values: values.to(wide))


class _OwnInner(torch.autograd.Function):
    """An inner product in float64, of whose gradient a process keeps its own rows."""

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        references: Tensor,
        inner: Callable[[Tensor, Tensor], Tensor],
        shard: Shard,
    ) -> Tensor:
        wide = wide_dtype(anchors.device)
        sides = [anchors] if references is anchors else [anchors, references]
        ctx.shapes, ctx.own = [side.shape for side in sides], (shard.rows, shard.columns)
        slopes = [torch.empty_like(side[own]) for side, own in zip(sides, ctx.own, strict=False)]
        total = torch.zeros((), dtype=wide, device=anchors.device)
        # A sum over dimensions: a few of them at a time take little room.
        few = max(1, _FEW // max(map(len, sides)))
        for start in range(0, anchors.shape[1], few):
            some = slice(start, start + few)
            leaves = [side[:, some].detach().to(wide, copy=True).requires_grad_() for side in sides]
            with torch.enable_grad():
                value = inner(leaves[0], leaves[-1])
            total += value.detach()
            for slope, found, own in zip(
                slopes, torch.autograd.grad(value, leaves), ctx.own, strict=False
            ):
                slope[:, some] = found[own]
        ctx.save_for_backward(*slopes)
        return total

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        for slope, shape, own in zip(ctx.saved_tensors, ctx.shapes, ctx.own, strict=False):
            whole = slope.new_zeros(shape)
            whole[own] = gradients[0] * slope
            found.append(whole)
        return found[0], found[1] if len(found) > 1 else None, None, None


def prepare(
    call: Call,
    temperature: float | Tensor = 1.0,
    *,
    unit_length: bool = True,
    read: bool = True,
    doubts: checks.Doubts | None = None,
) -> Batch:
    """Check the rest of a loss's arguments and, unless told not to, normalise its embeddings.

    Checks read values only if they may: NaN and zero vectors make the loss NaN otherwise, and
    raise doubts for whoever collects them.
    """
    embeddings, ref_emb, ref_index = call.embeddings, call.ref_emb, call.ref_index
    vectors = partial(_unit if unit_length else _finite, read=read, doubts=doubts)
    within = ref_emb is None
    others = embeddings if ref_emb is None else ref_emb
    dtype = torch.promote_types(compute_dtype(embeddings.dtype), compute_dtype(others.dtype))
    # In a tiny batch nothing averages rounding errors out, and float64 costs nothing.
    tiny = len(embeddings) * len(others) <= _TINY
    work = wide_dtype(embeddings.device) if tiny else dtype
    anchors = references = vectors("embeddings", _widened(embeddings, work))
    if ref_emb is not None:
        references = vectors("ref_emb", _widened(ref_emb, work))
        if references.shape[1] != anchors.shape[1]:
            raise ValueError(
                f"ref_emb has {references.shape[1]} dimensions, embeddings {anchors.shape[1]}: "
                "they must live in one space"
            )
    elif call.ref_labels is not None:
        raise ValueError("ref_labels were given without ref_emb: pass both or neither")
    shape = (len(anchors), len(references))
    relation: Relation
    if call.indices_tuple is not None:
        relation = listed(call, doubts=doubts)
    else:
        relation = _identities(call, shape, anchors.device)
    if ref_index is None:
        return Batch(dtype, anchors, references, relation, within, temperature)
    if within or not isinstance(relation, Identities):
        raise ValueError(
            "ref_index says which reference an anchor is: it needs ref_emb and labels, not "
            f"{'one set, where it is known' if within else 'indices_tuple'}"
        )
    own = checks.identities("ref_index", ref_index, shape[0], anchors.device).long()
    if read:
        _check_own(own, relation)
    else:
        wrong = torch.stack([fault.any() for fault in _faults(own, relation)]).any()
        anchors = torch.where(wrong, torch.nan, anchors)
        if doubts is not None:
            doubts.add(wrong, lambda: _check_own(own, relation))
    weighted = WeightedIdentities(relation, own, classes=False)
    return Batch(dtype, anchors, references, weighted, within, temperature, own)


def require_all(own: Tensor) -> None:
    """Require that all anchors are references."""
    if bool((own < 0).any()):
        row = int((own < 0).nonzero()[0])
        raise ValueError(
            f"ref_index is -1 for anchor {row}, but not for all: a coupling needs all anchors "
            "among its references, or none; add this one to ref_emb, or split the batch"
        )


def _faults(own: Tensor, relation: Identities) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors whose reference does not exist, references that are two, anchors of another label."""
    m = len(relation.references)
    known, place = own >= 0, own.clamp(0, m - 1)
    counts = torch.zeros(m, dtype=torch.long, device=own.device).index_add_(0, place, known.long())
    mislabelled = known & (relation.anchors != relation.references[place])
    return (own < -1) | (own >= m), counts > 1, mislabelled


def _check_own(own: Tensor, relation: Identities) -> None:
    """Say what is wrong with the references that anchors are, if anything is."""
    absent, repeated, mislabelled = (fault.nonzero()[:, 0] for fault in _faults(own, relation))
    if len(absent):
        raise ValueError(
            f"ref_index must be between 0 and {len(relation.references) - 1}, or -1 for an anchor "
            f"that is no reference, got {int(own.min())} … {int(own.max())}"
        )
    if len(repeated):
        raise ValueError(
            "ref_index must name a reference once, but several anchors are to be reference "
            f"{int(repeated[0])}"
        )
    if len(mislabelled):
        row = int(mislabelled[0])
        raise ValueError(
            f"ref_index says that anchor {row} is reference {int(own[row])}, but their labels are "
            f"{int(relation.anchors[row])} and {int(relation.references[own[row]])}"
        )


def _widened(values: Tensor, dtype: torch.dtype) -> Tensor:
    if values.dtype != torch.float16:
        return values.to(dtype)
    return _FromFloat16.apply(values, dtype)  # type: ignore[no-any-return, no-untyped-call]


class _FromFloat16(torch.autograd.Function):
    """Half precision, computed with more; says so where its gradient has no room in it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, dtype: torch.dtype) -> Tensor:
        return values.to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        half = gradient.to(torch.float16)
        if not on_host(half):  # a GradScaler looks for infinities by itself
            return half, None
        largest = float(gradient.detach().abs().max())
        if math.isfinite(largest) and not bool(torch.isfinite(half.detach()).all()):
            warnings.warn(
                f"the gradient of the embeddings reaches {largest:.3g}, beyond what float16 holds "
                "(65504): it became infinite there. A GradScaler skips such a step and lowers its "
                "scale; without one use a smaller sharpness, or embeddings in bfloat16 or float32",
                stacklevel=2,
            )
        return half, None


def _unit(name: str, values: Tensor, *, read: bool, doubts: checks.Doubts | None) -> Tensor:
    """Unit rows."""
    norms: Tensor = torch.linalg.vector_norm(values.detach(), dim=1, keepdim=True)
    tiny = torch.finfo(values.dtype).tiny ** 0.5
    if not read:
        # Rows whose squares over- or underflow are rescued too, without a look at which they are.
        safe = (norms > tiny) & (norms < 1 / tiny)
        scaled = values / torch.where(safe, 1.0, values.detach().abs().amax(1, keepdim=True))
        unit = unit_rows(scaled, torch.linalg.vector_norm(scaled.detach(), dim=1, keepdim=True))
        if doubts is not None:
            doubts.add(~torch.isfinite(unit.detach()).all(), partial(_rescued, name, values))
        return unit
    smallest, largest = torch.aminmax(norms)
    if not (float(smallest) > tiny and float(largest) < 1 / tiny):  # also if they are NaN
        values = _rescued(name, values)
        norms = torch.linalg.vector_norm(values.detach(), dim=1, keepdim=True)
    return unit_rows(values, norms)


def _rescued(name: str, values: Tensor) -> Tensor:
    """Rows whose squares over- or underflow, brought to size one; an error where that is hopeless.

    Unit vectors do not change when a row is multiplied by a constant, so neither do gradients.
    """
    size = _finite(name, values, read=True, doubts=None).detach().abs().amax(1, keepdim=True)
    if bool((size == 0).any()):
        row = int((size[:, 0] == 0).nonzero()[0])
        raise ValueError(f"{name} must not hold zero vectors, row {row} has no direction")
    return values / size


def _finite(name: str, values: Tensor, *, read: bool, doubts: checks.Doubts | None) -> Tensor:
    """The rows as they are, if they hold numbers."""
    if doubts is None and not read:
        return values
    bad = ~torch.isfinite(values.detach()).all(1)
    if doubts is not None:
        doubts.add(bad.any(), partial(_finite, name, values, read=True, doubts=None))
        return values
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(f"{name} must be finite, found NaN or infinity in row {row}")
    return values


def _identities(call: Call, shape: tuple[int, int], device: torch.device) -> Identities:
    if call.labels is None:
        raise ValueError(
            "labels are missing: pass labels, or triplets as indices_tuple=(a, p, n), or pairs as "
            "indices_tuple=(a1, p, a2, n)"
        )
    anchors = checks.identities("labels", call.labels, shape[0], device)
    if call.ref_emb is None:
        return Identities.within_one_set(anchors)
    if call.ref_labels is None:
        raise ValueError("ref_labels are missing: ref_emb needs one identity a sample")
    references = checks.identities("ref_labels", call.ref_labels, shape[1], device)
    return Identities(anchors, references, within=False)
