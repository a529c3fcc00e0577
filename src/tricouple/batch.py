"""A call of a loss and the checked batch made of it: unit embeddings, and their relation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from tricouple import checks
from tricouple.groups import Gathered
from tricouple.numeric import (
    compute_dtype,
    cosines,
    inverse_product,
    number_of,
    on_host,
    unit_rows,
    wide_dtype,
)
from tricouple.ot.scaling import RANGE
from tricouple.ot.scores import CACHED, DEVICE_TILE, Scores
from tricouple.ot.solver import Sweeps
from tricouple.relations import Identities, ListedTriplets, PairMatrix, Relation

IndicesTuple = tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]
"""Triplets (anchors, positives, negatives), or pairs (a1, positives, a2, negatives)."""

# Up to this many pairs a batch is computed in float64: 64 samples within one set.
_TINY = 64 * 64

_TILE = 1 << 20  # entries of a tile that is recomputed on the CPU

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
    pairs: Tensor | None = None
    weights: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        n = len(self.embeddings)
        return n, n if self.ref_emb is None else len(self.ref_emb)

    def check_embeddings(self, *, empty: bool = False) -> None:
        """Require one matrix, or two on one device."""
        for name in ("embeddings", "ref_emb"):
            values = getattr(self, name)
            if values is None and name == "ref_emb":
                return
            usual = isinstance(values, Tensor) and values.is_floating_point() and values.ndim == 2
            if not (usual and values.numel()):
                checks.matrix(name, values, empty=empty)
            if values.device != self.embeddings.device:
                here = self.embeddings.device
                raise ValueError(f"{name} is on {values.device}, embeddings on {here}")

    def integers(
        self, name: str, length: int, later: checks.Deferred | None = None
    ) -> Tensor | None:
        """Labels or indices of references, as many as there are samples, if they are given."""
        values, device = getattr(self, name), self.embeddings.device
        usual = isinstance(values, Tensor) and values.dtype == torch.long
        if values is None or (usual and values.shape == (length,) and values.device == device):
            return values  # type: ignore[no-any-return]
        return checks.labels(name, values, length, device, later)


@dataclass(frozen=True)
class Batch:
    """What every loss computes from."""

    dtype: torch.dtype  # the dtype of the loss: that of the embeddings, float32 at least
    anchors: Tensor  # unit vectors, or raw ones, (N, d); or a given matrix s, (N, M)
    references: Tensor | None  # (M, d); the anchors within one set; None with a given matrix
    relation: Relation  # positives and negatives
    temperature: float | Tensor  # what divides the similarities
    entries: torch.dtype  # dtype of N×M matrices
    known_temperature: float | None = None  # what the host takes it to be
    gathered: Gathered | None = None  # who has which rows, if they come from several processes
    fast: bool = True  # whether plans are solved by fast runs where they can be
    flags: list[Tensor] = field(default_factory=list)  # on a device: whether digits were lost
    there: "Batch | None" = None  # of the way there, if this one is of the way back
    _products: dict[torch.dtype, Tensor] = field(default_factory=dict, init=False)

    @property
    def within(self) -> bool:
        """Whether anchors and references are the same samples."""
        return self.references is self.anchors

    @property
    def rows(self) -> slice:
        """The anchors of this process."""
        return slice(0, len(self.anchors)) if self.gathered is None else self.gathered.rows

    def scores(self) -> Scores:
        """Similarities of this process's anchors with all references."""
        anchors, own, group = self.anchors, self.relation.own, None
        if self.gathered is not None:
            anchors, own, group = anchors[self.rows], own[self.rows], self.gathered.processes
        return Scores(anchors, self.references, own, self.entries, group)

    def sharpness(self, epsilon: float = 1.0) -> Sharpness:
        """C = 1/(τε)."""
        value = inverse_product(self.temperature, epsilon, self.entries)
        if isinstance(value, Tensor) and not on_host(value):
            assert self.known_temperature is not None
            # Its digits are those of the potentials, so that gradients lose none.
            wide = value.detach().to(wide_dtype(value.device))
            return Sharpness(wide, 1 / (self.known_temperature * epsilon))
        number = number_of(value)
        return Sharpness(number, number)

    def without_own(self, scores: Tensor, value: float) -> Tensor:
        """``value`` at the entries of anchors with themselves, (N, M)."""
        columns = torch.arange(scores.shape[1], device=scores.device)
        return scores.masked_fill(self.relation.own[:, None] == columns, value)

    def mirrored(self) -> Self:
        """With anchors for references, of two sets with identities."""
        assert isinstance(self.relation, Identities | PairMatrix)
        assert self.references is not None
        return replace(
            self,
            anchors=self.references,
            references=self.anchors,
            relation=self.relation.mirrored(),
            gathered=None if self.gathered is None else self.gathered.mirrored(),
            there=self,
        )

    def changed(self, change: Callable[[Tensor], Tensor], **others: Any) -> Self:
        """With a function applied to embeddings and temperature, and other fields replaced."""
        temperature = self.temperature
        if isinstance(temperature, Tensor):
            temperature = change(temperature)
        anchors = change(self.anchors)
        references = self.references
        if references is not None:
            references = anchors if references is self.anchors else change(references)
        others |= {"anchors": anchors, "references": references, "temperature": temperature}
        return replace(self, **others)

    def similarity(self, dtype: torch.dtype | None = None) -> Tensor:
        """Cosines, (N, M), by autograd; in another dtype for what cancels against potentials."""
        assert self.references is not None
        anchors = self.anchors.to(dtype or self.anchors.dtype)
        if self.there is not None:  # one product for both ways
            return self.there.similarity(dtype).T
        if anchors.dtype not in self._products:
            others = anchors if self.within else self.references.to(anchors.dtype)
            self._products[anchors.dtype] = cosines(anchors, others)
        return self._products[anchors.dtype]


def choose_storage(
    scores: Scores, how: Sweeps, kernels: Mapping[float, float], *, stores: bool
) -> None:
    """How much of the kernels is stored, whether s and ∂L/∂s are, and the size of tiles.

    ``kernels``: how many matrices those of each sharpness store, if any are stored at all.
    """
    (n, m), itemsize = scores.shape, scores.dtype.itemsize
    if how.memory == "matrices":
        return
    if how.memory_budget < 8 * m * itemsize:
        raise ValueError(
            f"memory_budget={how.memory_budget:.0f} bytes is too small: tiles of one row of "
            f"{m} references take {8 * m * itemsize}"
        )
    # Bytes per pair that kernels take, E perhaps in float64; a tile has products, sums and copies.
    entry = 8 if any(1.01 * most > RANGE[scores.dtype] for most in kernels) else itemsize
    each = sum(kernels.values()) * entry
    tile = 6 * each
    # Beside matrices: histories and factors of the sweeps, and embeddings.
    width = 60 * how.n_iters * 8 + 10 * scores.anchors.shape[1] * itemsize
    budget = how.memory_budget - (n + m) / 2 * width
    if how.memory == "streamed" or not stores:
        scores.stored = 0
    elif each * n * m <= budget - tile * CACHED:
        scores.keep = (each + 2 * itemsize) * n * m <= budget - tile * CACHED
        return
    most = _TILE if scores.anchors.is_cpu else DEVICE_TILE
    entries = min(most, max(budget, how.memory_budget / 4) / 4 / tile)
    if scores.stored:  # malloc may keep what is freed
        scores.stored = max(0.0, budget - 1.5 * tile * entries) / each
    scores.keep, scores.tile_entries = False, max(m, int(entries))


def check_batch(
    call: Call,
    temperature: float | Tensor,
    later: checks.Deferred,
    *,
    unit_length: bool,
    known_temperature: float | None,
    sharp: bool,
    gathered: Gathered | None,
) -> Batch:
    """Check a call's arguments and, for ``unit_length``, normalise its embeddings.

    Checks of values on a device go to ``later``; if they are not ``full``, NaN and zero vectors
    make the loss NaN. ``sharp`` asks for similarities in float64.
    """
    embeddings, ref_emb = call.embeddings, call.ref_emb
    vectors = unit_vectors if unit_length else _finite
    others = embeddings if ref_emb is None else ref_emb
    dtype = compute_dtype(torch.promote_types(embeddings.dtype, others.dtype))
    # In a tiny batch nothing averages rounding errors out, and float64 costs nothing.
    tiny, wide = len(embeddings) * len(others) <= _TINY, wide_dtype(embeddings.device)
    work, entries = wide if tiny or sharp else dtype, wide if tiny else dtype
    anchors = references = vectors("embeddings", embeddings.to(work), later)
    if ref_emb is not None:
        references = vectors("ref_emb", ref_emb.to(work), later)
        if references.shape[1] != anchors.shape[1]:
            raise ValueError(
                f"ref_emb has {references.shape[1]} dimensions, embeddings {anchors.shape[1]}: "
                "they must live in one space"
            )
    elif call.ref_labels is not None:
        raise ValueError("ref_labels were given without ref_emb: pass both or neither")
    relation = _relation(call, later)
    if call.weights is not None:
        weights = checks.weights("weights", call.weights, embeddings, call.shape[:1], later)
        relation = replace(relation, anchor_weights=weights.to(wide))
    batch = Batch(
        dtype, anchors, references, relation, temperature, entries, known_temperature, gathered
    )
    if (spoilt := later.spoilt) is None:
        return batch
    return batch.changed(lambda values: torch.where(spoilt, torch.nan, values))


def _relation(call: Call, later: checks.Deferred) -> Any:
    """Positives and negatives, as labels, matrices or lists have them."""
    (n, m), across = call.shape, call.ref_emb is not None
    if call.ref_index is not None and (not across or call.indices_tuple is not None):
        where = "indices_tuple" if across else "one set, where it is known"
        raise ValueError(
            f"ref_index says which reference an anchor is: it needs ref_emb and labels, not {where}"
        )
    if call.pairs is not None:
        for name in ("labels", "indices_tuple", "ref_labels"):
            if getattr(call, name) is not None:
                raise ValueError(f"pairs and {name} both say what is a positive: leave one out")
        matrix = checks.weights("pairs", call.pairs, call.embeddings, call.shape, later)
        one = torch.zeros(max(n, m), dtype=torch.long, device=matrix.device)  # a class, for own
        given = call._replace(pairs=None, labels=one[:n], ref_labels=one[:m] if across else None)
        return PairMatrix(matrix, _relation(given, later).own)
    if call.indices_tuple is not None:
        return listed(call, later)
    anchors = call.integers("labels", n, later)
    if anchors is None:
        raise ValueError(
            "labels are missing: pass labels, or triplets as indices_tuple=(a, p, n), or pairs as "
            "indices_tuple=(a1, p, a2, n) or as a matrix, pairs=W"
        )
    if not across:
        return Identities.of(anchors)
    references = call.integers("ref_labels", m, later)
    if references is None:
        raise ValueError("ref_labels are missing: ref_emb needs one label per sample")
    own = call.integers("ref_index", n)
    if own is None:
        return Identities.of(anchors, references)
    _check_own(own.long(), anchors, references, later)
    return Identities.of(anchors, references, own.long().clamp(-1, m - 1))


def listed(call: Call, later: checks.Deferred) -> ListedTriplets | PairMatrix:
    """Triplets (a, p, n), or pairs (a1, p) and (a2, n), of a call with indices."""
    indices_tuple: Any = call.indices_tuple
    shape, within = call.shape, call.ref_emb is None
    number = len(indices_tuple) if isinstance(indices_tuple, tuple | list) else 0
    if number not in _INDICES:
        found = f"{number} of them" if number else type(indices_tuple).__name__
        raise ValueError(
            "indices_tuple must be three index tensors, triplets (anchors, positives, negatives), "
            f"or four, pairs (a1, p, a2, n), got {found}"
        )
    indices, length, device = [], 0, call.embeddings.device
    for values, name in zip(indices_tuple, _INDICES[number], strict=True):
        title, of_anchors = f"indices_tuple ({name})", name.startswith("a")
        size = shape[0] if of_anchors else shape[1]
        if of_anchors:  # as many as these are those that follow
            length = len(values) if hasattr(values, "__len__") else 0
        given = checks.labels(title, values, length, device).long()
        outside = (given < 0) | (given >= size)
        later.unless(outside, partial(_out_of_range, title, given, size))
        # A device works on until its checks are read: indices must stay within bounds.
        indices.append(given if on_host(given) else given.clamp(0, size - 1))
    own = torch.arange(shape[0], device=device)
    own = own if within else torch.full_like(own, -1)
    if number == 4:
        a1, p, a2, n = indices
        for pairs in ((a1, p), (a2, n)) if within else ():
            later.unless(pairs[0] == pairs[1], partial(_not_distinct, "pairs", pairs))
        matrix = torch.full(shape, -1, dtype=torch.int8, device=device)
        matrix[a2, n] = 0
        later.unless(
            matrix[a1, p] == 0,
            lambda at: (
                f"indices_tuple lists the pair {int(a1[at]), int(p[at])} as positive (a1, p) and "
                "as negative (a2, n): it can be one of them"
            ),
        )
        matrix[a1, p] = 1
        return PairMatrix(matrix, own)
    a, p, n = indices
    repeated = p == n
    if within:
        repeated = repeated | (a == p) | (a == n)
    later.unless(repeated, partial(_not_distinct, "triplets", indices))
    return ListedTriplets.distinct(a, p, n, shape, own)


_INDICES = {3: ("a", "p", "n"), 4: ("a1", "p", "a2", "n")}  # of triplets and of pairs


def _out_of_range(name: str, indices: Tensor, size: int, _: int) -> str:
    ends = f"{int(indices.min())} … {int(indices.max())}"
    return f"{name} must be between 0 and {size - 1}, got {ends}"


def _not_distinct(what: str, entries: Sequence[Tensor], at: int) -> str:
    found = tuple(int(index[at]) for index in entries)
    return f"indices_tuple must list {what} of distinct samples, entry {at} is {found}"


def _check_own(own: Tensor, anchors: Tensor, references: Tensor, later: checks.Deferred) -> None:
    """Check the references that anchors are."""
    m = len(references)
    known, place = own >= 0, own.clamp(0, m - 1)
    counts = torch.zeros(m, dtype=torch.long, device=own.device).index_add_(0, place, known.long())
    later.unless(
        (own < -1) | (own >= m),
        lambda _: (
            f"ref_index must be between 0 and {m - 1}, or -1 for an anchor that is no reference, "
            f"got {int(own.min())} … {int(own.max())}"
        ),
    )
    later.unless(
        counts > 1,
        lambda at: (
            f"ref_index must name a reference once, but several anchors are to be reference {at}"
        ),
    )
    later.unless(
        known & (anchors != references[place]),
        lambda row: (
            f"ref_index says that anchor {row} is reference {int(own[row])}, but their labels are "
            f"{int(anchors[row])} and {int(references[own[row]])}"
        ),
    )


def unit_vectors(name: str, values: Tensor, later: checks.Deferred) -> Tensor:
    """Unit rows."""
    norms: Tensor = torch.linalg.vector_norm(values.detach(), dim=1, keepdim=True)
    tiny = torch.finfo(values.dtype).tiny ** 0.5
    safe = (norms > tiny) & (norms < 1 / tiny)  # not if they are NaN
    if later.full and on_host(values) and bool(safe.all()):
        return unit_rows(values, norms)
    # Rows whose squares over- or underflow are divided too, without reading which they are.
    _finite(name, values, later)
    size = values.detach().abs().amax(1, keepdim=True)
    if later.full:
        message = f"{name} must not hold zero vectors, row %d has no direction"
        later.unless(size == 0, lambda row: message % row)
    scaled = values / torch.where(safe, 1.0, size)
    return unit_rows(scaled, torch.linalg.vector_norm(scaled.detach(), dim=1, keepdim=True))


def _finite(name: str, values: Tensor, later: checks.Deferred) -> Tensor:
    """The rows as they are, if they hold numbers."""
    if later.full:
        bad = ~torch.isfinite(values.detach()).all(1)
        later.unless(bad, lambda row: f"{name} must be finite, found NaN or infinity in row {row}")
    return values


def check_call(call: Call, later: checks.Deferred, *, unit_length: bool) -> Call:
    """The call of one of several processes, with integers as tensors; it may have no rows."""
    call.check_embeddings(empty=True)
    n, m = call.shape
    for name, values in (("embeddings", call.embeddings), ("ref_emb", call.ref_emb)):
        if values is not None and on_host(values):  # an error names the process and its own row
            (unit_vectors if unit_length else _finite)(name, values.detach(), later)
    if call.indices_tuple is not None:
        listed(call, checks.Deferred(read=True))
    own = call.integers("ref_index", n)
    labels, ref_labels = call.integers("labels", n), call.integers("ref_labels", m)
    if call.pairs is not None:
        raise ValueError("pairs is of one process alone: leave out group, or pass labels")
    if call.weights is not None:
        checks.weights("weights", call.weights, call.embeddings, (n,), later)
    return call._replace(labels=labels, ref_labels=ref_labels, ref_index=own)
