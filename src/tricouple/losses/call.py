"""What a loss was called with: indices as miners list them, and all that several processes gave.

Arguments of all processes of a group are checked together. Every process then holds the whole
batch, in the order of their ranks, and goes on as if it had been given all of it. So a bad value is
found by all of them; what only one can see, such as an argument that it was not given, it tells the
others before anything of size is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tricouple import checks
from tricouple.checks import Labels
from tricouple.distributed import Shard, Team, own
from tricouple.numeric import on_host
from tricouple.relations import ListedTriplets, MinedPairs

IndicesTuple = tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]
"""Triplets (anchors, positives, negatives), or pairs (a1, positives, a2, negatives)."""


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


def listed(
    call: Call, *, read: bool = False, doubts: checks.Doubts | None = None
) -> ListedTriplets | MinedPairs:
    """Triplets (a, p, n), or pairs (a1, p) and (a2, n).

    Args:
        call: A call with indices.
        read: Whether a device is asked what is wrong with them.
        doubts: Where to leave the question otherwise.
    """
    indices_tuple: Any = call.indices_tuple
    shape, within = call.shape, call.ref_emb is None

    def unless(wrong: Tensor, check: Callable[[], object]) -> None:
        if read or on_host(wrong):
            if bool(wrong):
                check()
        elif doubts is not None:
            doubts.add(wrong, check)

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
        # A device goes on until it is asked, and must not look beyond the end.
        indices.append(given if on_host(given) or doubts is None else given.clamp(0, size - 1))
    if number == 4:
        a1, p, a2, n = indices
        for pairs in ((a1, p), (a2, n)) if within else ():
            equal = pairs[0] == pairs[1]
            unless(equal.any(), partial(_not_distinct, "pairs", pairs, equal))
        mined = MinedPairs.distinct(a1, p, a2, n, shape)
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
    return checks.identities(name, values, length, device).long()


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


# --- the arguments of several processes -----------------------------------------------------------

# What processes must have in common, each as a number or a word of at most eight letters.
_KINDS = (
    "embeddings.shape[1]", "embeddings.dtype", "embeddings.device", "embeddings.requires_grad",
    "ref_emb.shape[1]", "ref_emb.dtype", "ref_emb.requires_grad",
    "labels", "ref_labels", "ref_index", "indices_tuple",
)  # fmt: skip


def gathered(team: Team, call: Call, check: Callable[[], object]) -> tuple[Call, Shard]:
    """The call with the rows of all processes, and who has which.

    Indices, which count the samples of one process, count those of all.

    Args:
        team: The processes.
        call: What this one was called with; it may have no rows.
        check: More that may be wrong here, as an error.

    Raises:
        ValueError: The same one on all processes, if a call is bad or of another kind.
    """
    problem, numbers = None, [0] * (4 + len(_KINDS))
    try:
        check()
        call = _checked(call)
        numbers = [*_lengths(call), *map(_number, _kind(call))]
    except (TypeError, ValueError) as error:
        problem = str(error)
    found = team.exchange(numbers, problem)
    _check_kinds([row[4:] for row in found])
    rows, others, first, second = zip(*(row[:4] for row in found), strict=True)
    shard = Shard(team.group, team.rank, team.size, rows, rows if call.ref_emb is None else others)
    embeddings = gathered_rows(call.embeddings, shard, rows)
    ref_emb = None if call.ref_emb is None else gathered_rows(call.ref_emb, shard, others)
    # All integers in one message.
    starts = shard.rows.start, shard.columns.start
    sent: list[tuple[Tensor, tuple[int, ...]]] = []
    if call.labels is not None:
        sent.append((call.labels, rows))
    if call.ref_labels is not None:
        sent.append((call.ref_labels, others))
    if call.ref_index is not None:
        # Beyond the process's own references, it is beyond all.
        end = torch.where(call.ref_index < others[team.rank], starts[1], sum(others))
        sent.append((torch.where(call.ref_index < 0, -1, call.ref_index + end), rows))
    if call.indices_tuple is not None:
        table = _INDICES[len(call.indices_tuple)]
        for values, (_, leader, axis) in zip(call.indices_tuple, table, strict=True):
            sent.append((values + starts[axis], second if leader else first))
    received = iter(_integers(team, sent, embeddings.device))
    labels, ref_labels, ref_index = (
        None if values is None else next(received)
        for values in (call.labels, call.ref_labels, call.ref_index)
    )
    indices: Any = None if call.indices_tuple is None else tuple(received)
    return Call(embeddings, labels, indices, ref_emb, ref_labels, ref_index), shard


def located(message: str, shard: Shard) -> str:
    """An error about a row of all processes' samples that also says whose it is."""
    found = re.search(r"\brow (\d+)", message)
    if found is None:
        return message
    row = int(found[1])
    counts = shard.references if message.startswith("ref_emb") else shard.anchors
    rank = next(rank for rank in range(shard.size) if row < own(counts, rank).stop)
    return f"{message} (row {row - own(counts, rank).start} of rank {rank})"


def gathered_rows(rows: Tensor, team: Team, counts: tuple[int, ...]) -> Tensor:
    """The rows of all processes, in the order of their ranks.

    Each process computes the same loss of all rows. Its own receive R times their gradient for R
    processes, which the mean that DistributedDataParallel takes over parameters turns into the
    gradient of that one loss; nothing is sent in the backward pass.
    """
    return _Gathered.apply(rows, team, counts)  # type: ignore[no-any-return, no-untyped-call]


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, team: Team, counts: tuple[int, ...]) -> Tensor:
        ctx.own, ctx.size = own(counts, team.rank), team.size
        return team.gather(rows.detach(), counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.own] * ctx.size, None, None


def _checked(call: Call) -> Call:
    """The call with integers as tensors, if its shapes are right; values are looked at by all."""
    checks.embeddings(call.embeddings, call.ref_emb, empty=True)
    device, (n, m) = call.embeddings.device, call.shape
    if call.indices_tuple is not None:
        listed(call, read=True)

    def integers(name: str, values: Labels | None, length: int) -> Tensor | None:
        if values is None:
            return None
        if not length and isinstance(values, list | tuple):
            values = torch.tensor(values, dtype=torch.long, device=device)
        return checks.identities(name, values, length, device)

    own_references = integers("ref_index", call.ref_index, n)
    seen = own_references is not None and n and on_host(own_references)
    if own_references is not None and seen and int(own_references.max()) >= m:
        raise ValueError(
            f"ref_index must be between 0 and {m - 1}, the process's own references, got "
            f"{int(own_references.max())}"
        )
    return call._replace(
        labels=integers("labels", call.labels, n),
        ref_labels=integers("ref_labels", call.ref_labels, m),
        ref_index=own_references,
    )


def _lengths(call: Call) -> tuple[int, int, int, int]:
    """Numbers of anchors, of references, of positive and of negative pairs that are listed."""
    indices = call.indices_tuple
    return (
        len(call.embeddings),
        0 if call.ref_emb is None else len(call.ref_emb),
        0 if indices is None else len(indices[0]),
        len(indices[2]) if indices is not None and len(indices) == 4 else 0,
    )


def _kind(call: Call) -> tuple[int | str, ...]:
    """In the order of ``_KINDS``."""

    def matrix(values: Tensor) -> tuple[int | str, int | str, int | str]:
        asks = values.requires_grad and torch.is_grad_enabled()
        return values.shape[1], str(values.dtype).removeprefix("torch."), "yes" if asks else "no"

    width, dtype, asks = matrix(call.embeddings)
    others = ("none", "none", "none") if call.ref_emb is None else matrix(call.ref_emb)
    indices = call.indices_tuple
    given = (call.labels, call.ref_labels, call.ref_index)
    return (
        *(width, dtype, call.embeddings.device.type[:8], asks),
        *others,
        *("missing" if values is None else "given" for values in given),
        "missing" if indices is None else len(indices),
    )


def _number(kind: int | str) -> int:
    """Words as negative numbers."""
    return kind if isinstance(kind, int) else -int.from_bytes(kind.encode(), "big")


def _word(number: int) -> str:
    if number >= 0:
        return str(number)
    return (-number).to_bytes(8, "big").lstrip(b"\0").decode()


def _check_kinds(kinds: list[list[int]]) -> None:
    for rank, kind in enumerate(kinds):
        for name, here, there in zip(_KINDS, kind, kinds[0], strict=True):
            if here != there:
                raise ValueError(
                    f"{name} is {_word(there)} on rank 0, {_word(here)} on rank {rank}: one "
                    "loss of several processes needs batches of one kind"
                )


def _integers(
    team: Team, sent: list[tuple[Tensor, tuple[int, ...]]], device: torch.device
) -> list[Tensor]:
    """Each of several vectors, whose lengths on every process are known, from all processes."""
    if not sent:
        return []
    flat = torch.cat([values.to(device, torch.long) for values, _ in sent])
    totals = [sum(of_rank) for of_rank in zip(*(lengths for _, lengths in sent), strict=True)]
    parts = [
        part.split([lengths[rank] for _, lengths in sent])
        for rank, part in enumerate(team.gather(flat, totals).split(totals))
    ]
    return [torch.cat(pieces) for pieces in zip(*parts, strict=True)]
