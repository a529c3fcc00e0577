"""A call of a loss becomes a checked batch: unit embeddings, and who is whose positive."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tricouple import checks
from tricouple.checks import Labels
from tricouple.groups import Gathered
from tricouple.numeric import (
    compute_dtype,
    cosines,
    inverse_product,
    on_host,
    unit_rows,
    wide_dtype,
)
from tricouple.ot.scores import Scores
from tricouple.relations import Identities, ListedTriplets, MinedPairs, Relation

IndicesTuple = tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]
"""Triplets (anchors, positives, negatives), or pairs (a1, positives, a2, negatives)."""

# Up to this many pairs a batch is computed in float64: 64 samples within one set.
_TINY = 64 * 64

# Above this sharpness float32 products of unit vectors have too few digits.
SHARP = 50.0


class Sharpness(NamedTuple):
    """A factor of similarities."""

    value: float | Tensor  # a tensor on a device
    most: float  # what the host takes it to be


class Call(NamedTuple):
    """What a loss was called with."""

    embeddings: Tensor
    labels: Any = None  # Labels, or None; tensors once they are checked
    indices_tuple: IndicesTuple | None = None
    ref_emb: Tensor | None = None
    ref_labels: Any = None
    ref_index: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        n = len(self.embeddings)
        return n, n if self.ref_emb is None else len(self.ref_emb)


@dataclass(frozen=True)
class Batch:
    """What every loss computes from."""

    dtype: torch.dtype  # the dtype of the loss: that of the embeddings, float32 at least
    # Unit vectors (raw ones, if the loss wants them so), (N, d), float32 or float64.
    anchors: Tensor
    # Likewise, (M, d); the anchors themselves within one set; None if a matrix s is given, (N, M),
    # in the place of the anchors.
    references: Tensor | None
    relation: Relation  # who is whose positive and negative
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    temperature: float | Tensor  # what divides the similarities
    entries: torch.dtype  # dtype of N×M matrices
    # What the host takes the temperature to be at least, if a device holds it.
    known_temperature: float | None = None
    gathered: Gathered | None = None  # who has which rows, if they come from several processes
    fast: bool = True  # whether plans are solved by fast runs where they can be
    flags: list[Tensor] = field(default_factory=list)  # on a device: whether digits were lost
    origin: Batch | None = None  # whose similarities are given

    @property
    def within(self) -> bool:
        """Whether anchors and references are the same samples."""
        return (isinstance(self.relation, Identities) and self.relation.within) or (
            self.references is self.anchors
        )

    @property
    def rows(self) -> slice:
        """The anchors of this process."""
        return slice(0, len(self.anchors)) if self.gathered is None else self.gathered.rows

    @property
    def counts_columns(self) -> bool:
        """Whether this process counts what all processes have alike."""
        return self.gathered is None or self.gathered.processes.rank == 0

    def scores(self) -> Scores:
        """Similarities of this process's anchors with all references."""
        if self.gathered is None:
            return Scores(self.anchors, self.references, self.own, self.entries)
        rows, group = self.rows, self.gathered.processes
        return Scores(
            self.anchors[rows], self.references, self.own[rows], self.entries, group=group
        )

    def sharpness(self, epsilon: float = 1.0) -> Sharpness:
        """C = 1/(τε)."""
        value = inverse_product(self.temperature, epsilon, self.entries)
        if isinstance(value, Tensor):
            if not on_host(value):
                assert self.known_temperature is not None
                # Its digits are those of the potentials, so that gradients lose none.
                wide = value.detach().to(wide_dtype(value.device))
                return Sharpness(wide, 1 / (self.known_temperature * epsilon))
            value = float(value.detach())
        return Sharpness(value, value)

    def with_marginals(self, marginals: str) -> Batch:
        """The batch with class marginals, if they are asked for."""
        if marginals != "classes":
            return self
        return replace(self, relation=self.relation.with_class_masses())

    def without_own(self, scores: Tensor, value: float) -> Tensor:
        """``value`` at the entries of anchors with themselves, (N, M)."""
        columns = torch.arange(scores.shape[1], device=scores.device)
        return scores.masked_fill(self.own[:, None] == columns, value)

    def mirrored(self) -> Batch:
        """With anchors for references, of two sets with identities."""
        assert isinstance(self.relation, Identities)
        assert self.references is not None
        relation = self.relation.mirrored()
        gathered = None if self.gathered is None else self.gathered.mirrored()
        return replace(
            self,
            anchors=self.references,
            references=self.anchors,
            own=relation.own,
            relation=relation,
            gathered=gathered,
        )

    def detached(self) -> Batch:
        """The same numbers, of no graph, for this process alone."""
        return replace(self._changed(Tensor.detach), gathered=None, flags=[])

    def stopped(self, flag: Tensor) -> Batch:
        """The same numbers, from which no gradient flows back where a device's flag says so."""
        return self._changed(lambda values: torch.where(flag, values.detach(), values))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Batch:
        temperature = self.temperature
        if isinstance(temperature, Tensor):
            temperature = change(temperature)
        anchors = change(self.anchors)
        references = self.references
        if references is not None:
            references = anchors if references is self.anchors else change(references)
        return replace(self, anchors=anchors, references=references, temperature=temperature)

    def similarity(self) -> Tensor:
        """Cosines, (N, M), by autograd."""
        if self.references is None:
            return self.anchors
        return cosines(self.anchors, self.references)

    def wide_similarity(self) -> Tensor:
        """Cosines in float64, for what nearly cancels against potentials."""
        wide = wide_dtype(self.anchors.device)
        anchors = self.anchors.to(wide)
        if self.references is None:
            return anchors
        same = self.references is self.anchors
        return cosines(anchors, anchors if same else self.references.to(wide))

    def inside(self) -> tuple[Tensor, Tensor]:
        """Cosines inside each set, (N, N) and (M, M)."""
        if self.origin is not None:
            return self.origin.inside()
        assert self.references is not None
        return cosines(self.anchors, self.anchors), cosines(self.references, self.references)


def check_batch(
    call: Call,
    temperature: float | Tensor = 1.0,
    *,
    unit_length: bool = True,
    sharp: bool = False,
    read: bool = True,
    deferred: checks.Deferred | None = None,
) -> Batch:
    """Check a loss's arguments and, unless told not to, normalise its embeddings.

    Args:
        call: The arguments.
        temperature: What divides the similarities.
        unit_length: Whether rows are normalised.
        sharp: Whether the sharpness asks for similarities in float64.
        read: Whether checks may read values; NaN and zero vectors make the loss NaN otherwise.
        deferred: Where checks of values on a device go.
    """
    embeddings, ref_emb, ref_index = call.embeddings, call.ref_emb, call.ref_index
    vectors = partial(_unit if unit_length else _finite, read=read, deferred=deferred)
    others = embeddings if ref_emb is None else ref_emb
    dtype = torch.promote_types(compute_dtype(embeddings.dtype), compute_dtype(others.dtype))
    # In a tiny batch nothing averages rounding errors out, and float64 costs nothing.
    tiny, wide = len(embeddings) * len(others) <= _TINY, wide_dtype(embeddings.device)
    work = wide if tiny or sharp else dtype
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
    relation = _relation(call, anchors.device, deferred)
    if isinstance(relation, Identities):
        own = relation.own
    elif ref_emb is None:
        own = torch.arange(call.shape[0], device=anchors.device)
    else:
        own = torch.full(call.shape[:1], -1, device=anchors.device)
    if ref_index is not None:
        if ref_emb is None or not isinstance(relation, Identities):
            where = "one set, where it is known" if ref_emb is None else "indices_tuple"
            raise ValueError(
                "ref_index says which reference an anchor is: it needs ref_emb and labels, not "
                f"{where}"
            )
        own = checks.labels("ref_index", ref_index, call.shape[0], anchors.device).long()
        if read:
            _check_own(own, relation)
        else:
            wrong = torch.stack([fault.any() for fault in _faults(own, relation)]).any()
            anchors = torch.where(wrong, torch.nan, anchors)
            if deferred is not None:
                deferred.add(wrong, partial(_check_own, own, relation))
            own = own.clamp(-1, call.shape[1] - 1)
        relation = replace(relation, own=own, apart=False)
    entries = wide if tiny else dtype
    return Batch(dtype, anchors, references, relation, own, temperature, entries)


def _relation(call: Call, device: torch.device, deferred: checks.Deferred | None) -> Relation:
    if call.indices_tuple is not None:
        return listed(call, deferred=deferred)
    if call.labels is None:
        raise ValueError(
            "labels are missing: pass labels, or triplets as indices_tuple=(a, p, n), or pairs as "
            "indices_tuple=(a1, p, a2, n)"
        )
    anchors = checks.labels("labels", call.labels, call.shape[0], device, deferred)
    if call.ref_emb is None:
        return Identities.within_one_set(anchors)
    if call.ref_labels is None:
        raise ValueError("ref_labels are missing: ref_emb needs one label per sample")
    references = checks.labels("ref_labels", call.ref_labels, call.shape[1], device, deferred)
    return Identities.across(anchors, references)


def listed(
    call: Call, *, read: bool = False, deferred: checks.Deferred | None = None
) -> ListedTriplets | MinedPairs:
    """Triplets (a, p, n), or pairs (a1, p) and (a2, n).

    Args:
        call: A call with indices.
        read: Whether values on a device are read.
        deferred: Where checks of values on a device go otherwise.
    """
    indices_tuple: Any = call.indices_tuple
    shape, within = call.shape, call.ref_emb is None
    unless = partial(checks.unless, deferred=deferred, read=read)
    number = len(indices_tuple) if isinstance(indices_tuple, tuple | list) else 0
    if number not in _INDICES:
        found = f"{number} of them" if number else type(indices_tuple).__name__
        raise ValueError(
            "indices_tuple must be three index tensors, triplets (anchors, positives, negatives), "
            f"or four, pairs (a1, p, a2, n), got {found}"
        )
    indices: list[Tensor] = []
    for values, (name, first, axis) in zip(indices_tuple, _INDICES[number], strict=True):
        title, size = f"indices_tuple ({name})", shape[axis]
        given = _indices(title, values, indices_tuple[first], call.embeddings.device)
        unless(((given < 0) | (given >= size)).any(), partial(_out_of_range, title, given, size))
        # Work on a device goes on until its checks are read, and must stay within bounds.
        indices.append(given if on_host(given) or deferred is None else given.clamp(0, size - 1))
    if number == 4:
        a1, p, a2, n = indices
        for pairs in ((a1, p), (a2, n)) if within else ():
            equal = pairs[0] == pairs[1]
            unless(equal.any(), partial(_not_distinct, "pairs", pairs, equal))
        mined = MinedPairs.distinct((a1, p), (a2, n), shape)
        if on_host(a1) or read:
            mined.check()
        else:
            unless(mined.contradiction(), mined.check)
        return mined
    a, p, n = indices
    repeated = p == n
    if within:
        repeated = repeated | (a == p) | (a == n)
    unless(repeated.any(), partial(_not_distinct, "triplets", (a, p, n), repeated))
    return ListedTriplets.distinct(a, p, n, shape)


# Of three and of four index tensors: the name of each, which other has its length, and whether it
# counts anchors (0) or references (1).
_INDICES = {
    3: (("a", 0, 0), ("p", 0, 1), ("n", 0, 1)),
    4: (("a1", 0, 0), ("p", 0, 1), ("a2", 2, 0), ("n", 2, 1)),
}


def _indices(name: str, values: Labels, first: Labels, device: torch.device) -> Tensor:
    """Indices, as many as the first of their pair or triplet has."""
    length = len(first) if hasattr(first, "__len__") and getattr(first, "ndim", None) != 0 else 0
    return checks.labels(name, values, length, device).long()


def _out_of_range(name: str, indices: Tensor, size: int) -> None:
    raise ValueError(
        f"{name} must be between 0 and {size - 1}, got {int(indices.min())} … {int(indices.max())}"
    )


def _not_distinct(what: str, entries: tuple[Tensor, ...], repeated: Tensor) -> None:
    where = int(repeated.nonzero()[0])
    raise ValueError(
        f"indices_tuple must list {what} of distinct samples, entry {where} is "
        f"{tuple(int(index[where]) for index in entries)}"
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


def _unit(name: str, values: Tensor, *, read: bool, deferred: checks.Deferred | None) -> Tensor:
    """Unit rows."""
    norms: Tensor = torch.linalg.vector_norm(values.detach(), dim=1, keepdim=True)
    tiny = torch.finfo(values.dtype).tiny ** 0.5
    if not read:
        # Rows whose squares over- or underflow are rescued too, without a look at which they are.
        safe = (norms > tiny) & (norms < 1 / tiny)
        scaled = values / torch.where(safe, 1.0, values.detach().abs().amax(1, keepdim=True))
        unit = unit_rows(scaled, torch.linalg.vector_norm(scaled.detach(), dim=1, keepdim=True))
        if deferred is not None:
            deferred.add(~torch.isfinite(unit.detach()).all(), partial(_rescued, name, values))
        return unit
    smallest, largest = torch.aminmax(norms)
    if not (float(smallest) > tiny and float(largest) < 1 / tiny):  # also if they are NaN
        values = _rescued(name, values)
        norms = torch.linalg.vector_norm(values.detach(), dim=1, keepdim=True)
    return unit_rows(values, norms)


def _rescued(name: str, values: Tensor) -> Tensor:
    """Rows whose squares over- or underflow, brought to size one; an error for a zero vector.

    Unit vectors do not change when a row is multiplied by a constant, so neither do gradients.
    """
    size = _finite(name, values, read=True, deferred=None).detach().abs().amax(1, keepdim=True)
    if bool((size == 0).any()):
        row = int((size[:, 0] == 0).nonzero()[0])
        raise ValueError(f"{name} must not hold zero vectors, row {row} has no direction")
    return values / size


def _finite(name: str, values: Tensor, *, read: bool, deferred: checks.Deferred | None) -> Tensor:
    """The rows as they are, if they hold numbers."""
    if read or deferred is not None:
        bad = ~torch.isfinite(values.detach()).all(1)
        checks.unless(bad.any(), partial(_not_finite, name, bad), deferred, read=deferred is None)
    return values


def _not_finite(name: str, bad: Tensor) -> None:
    row = int(bad.nonzero()[0])
    raise ValueError(f"{name} must be finite, found NaN or infinity in row {row}")


def check_call(call: Call) -> Call:
    """The call of one of several processes, with integers as tensors; it may have no rows."""
    checks.embeddings(call.embeddings, call.ref_emb, empty=True)
    device, (n, m) = call.embeddings.device, call.shape
    if call.indices_tuple is not None:
        listed(call, read=True)
    found: dict[str, Any] = {}
    for name, length in (("labels", n), ("ref_labels", m), ("ref_index", n)):
        values = getattr(call, name)
        if not length and isinstance(values, list | tuple):
            values = torch.tensor(values, dtype=torch.long, device=device)
        if values is not None:
            found[name] = checks.labels(name, values, length, device)
    own = found.get("ref_index")
    if own is not None and n and on_host(own) and int(own.max()) >= m:
        raise ValueError(
            f"ref_index must be between 0 and {m - 1}, the process's own references, got "
            f"{int(own.max())}"
        )
    return call._replace(**found)
