"""The arguments of a loss from all processes of a group, checked together.

Every process then holds the whole batch, in the order of their ranks, and goes on as if it had been
given all of it. So a bad value is found by all of them; what only one can see, such as an argument
that it was not given, it tells the others before anything of size is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tricouple import checks
from tricouple.checks import Labels
from tricouple.distributed import Shard, Team, own
from tricouple.losses.batch import IndicesTuple, listed
from tricouple.numeric import on_host

# What processes must have in common, each as a number or a word of at most eight letters.
_KINDS = (
    "embeddings.shape[1]", "embeddings.dtype", "embeddings.device", "embeddings.requires_grad",
    "ref_emb.shape[1]", "ref_emb.dtype", "ref_emb.requires_grad",
    "labels", "ref_labels", "ref_index", "indices_tuple",
)  # fmt: skip


class Call(NamedTuple):
    """What a loss was called with."""

    embeddings: Tensor
    labels: Any  # Labels, or None; tensors once they are checked
    indices_tuple: IndicesTuple | None
    ref_emb: Tensor | None
    ref_labels: Any
    ref_index: Any


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
    for place, values in enumerate(call.indices_tuple or ()):  # as ``listed`` has them
        lengths = second if place > 1 and len(call.indices_tuple or ()) == 4 else first
        of_anchors = place == 0 or (place == 2 and lengths is second)
        sent.append((values + starts[0 if of_anchors else 1], lengths))
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
    embeddings, labels, indices, ref_emb, ref_labels, ref_index = call
    checks.matrix("embeddings", embeddings, empty=True)
    if ref_emb is not None:
        checks.matrix("ref_emb", ref_emb, empty=True)
        if ref_emb.device != embeddings.device:
            raise ValueError(f"ref_emb is on {ref_emb.device}, embeddings on {embeddings.device}")
    device, n = embeddings.device, len(embeddings)
    m = n if ref_emb is None else len(ref_emb)
    if indices is not None:
        listed(indices, (n, m), ref_emb is None, device, read=True)

    def integers(name: str, values: Labels | None, length: int) -> Tensor | None:
        if values is None:
            return None
        if not length and isinstance(values, list | tuple):
            values = torch.tensor(values, dtype=torch.long, device=device)
        return checks.identities(name, values, length, device)

    own_references = integers("ref_index", ref_index, n)
    seen = own_references is not None and n and on_host(own_references)
    if own_references is not None and seen and int(own_references.max()) >= m:
        raise ValueError(
            f"ref_index must be between 0 and {m - 1}, the process's own references, got "
            f"{int(own_references.max())}"
        )
    return Call(
        embeddings,
        integers("labels", labels, n),
        indices,
        ref_emb,
        integers("ref_labels", ref_labels, m),
        own_references,
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
