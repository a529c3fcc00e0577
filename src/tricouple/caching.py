"""Large batches in the memory of a chunk: the encoder runs twice (Gao et al. 2021, GradCache)."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tricouple import checks
from tricouple.groups import Processes
from tricouple.losses.base import ContrastiveLoss
from tricouple.numeric import never_compiled

_DRIFT = 0.01  # a relative change of embeddings that is no rounding error


def cached(criterion: nn.Module, chunk_size: int = 256) -> Callable[..., Tensor]:
    """Make a step that has the loss and the gradient of a batch in the memory of a chunk.

    The step embeds the batch in chunks and keeps the embeddings z, without activations. The loss L
    is that of all z. ``backward`` embeds each chunk again and adds ``∂L/∂z_chunk ∂z_chunk/∂θ``.

    Args:
        criterion: A loss, ``criterion(x, labels)``; with two encoders ``criterion(x, labels,
            ref_emb=y, ref_labels=labels)``, of ``BothDirections`` ``criterion(x, y, labels)``.
        chunk_size: How many samples are embedded at once.

    Returns:
        ``step(encoder, inputs, labels=None, **keywords)``, with two encoders ``step((f, g), (x, y),
        labels)``; keywords are the criterion's. An encoder is a module (also in
        ``DistributedDataParallel``, or of ``fully_shard``), a method of one, or a function, and
        returns embeddings, (n, d). Inputs are tensors, lists of texts, tuples and dicts of them.

    Raises:
        ValueError: In the backward pass, if the encoder or its inputs have changed since the step.

    Example:
        >>> from tricouple import NegMMIOT
        >>> encoder, images, labels = nn.Linear(3, 2), torch.randn(8, 3), torch.arange(8) % 4
        >>> cached(NegMMIOT(), chunk_size=2)(encoder, images, labels).backward()
        >>> encoder.weight.grad.shape
        torch.Size([2, 3])
    """
    checks.count("chunk_size", chunk_size)
    if not isinstance(criterion, nn.Module):
        raise TypeError(f"criterion must be a loss, a module, got {type(criterion).__name__}")

    @never_compiled
    def step(encoder: Any, inputs: Any, labels: Any = None, **keywords: Any) -> Tensor:
        if not isinstance(encoder, tuple | list):
            encoder, inputs = (encoder,), (inputs,)
        if len(encoder) != len(inputs):
            raise ValueError(f"{len(encoder)} encoders need as many inputs, got {len(inputs)}")
        sides = [_Side(*pair, chunk_size, criterion) for pair in zip(encoder, inputs, strict=True)]

        def run() -> Tensor:
            reduced: set[nn.Module] = set()
            x, *others = [side.embeddings(reduced) for side in sides]
            if len(others) == 1 and isinstance(criterion, ContrastiveLoss):
                keywords.update({"ref_emb": others.pop(), "ref_labels": labels} | keywords)
            return criterion(x, *others, labels, **keywords)  # type: ignore[no-any-return]

        wrappers = [side.ddp for side in sides if side.ddp is not None and side.learns]
        for ddp in dict.fromkeys(wrappers if torch.is_grad_enabled() else ()):
            run = partial(_inside, ddp, run)
        return run()

    return step


class _Side:
    """An encoder and its inputs; checkpoints repeat the random numbers ``on_devices``."""

    def __init__(self, encoder: Any, inputs: Any, size: int, criterion: nn.Module) -> None:
        self.ddp = encoder if isinstance(encoder, DistributedDataParallel) else None
        self.encode = encoder if self.ddp is None else self.ddp.module
        roots = [getattr(self.encode, "__self__", self.encode)]
        if inspect.isfunction(self.encode):
            names = inspect.getclosurevars(self.encode)
            found = (*names.globals.values(), *names.nonlocals.values())
            roots = [value for value in found if isinstance(value, nn.Module)]
        if not all(isinstance(root, nn.Module) for root in roots):
            raise TypeError(f"encoder must be a module, a method of one or a function: {encoder}")
        self.modules = list(dict.fromkeys(module for root in roots for module in root.modules()))
        for name in (type(module).__name__ for module in self.modules):
            if name in ("DistributedDataParallel", "FullyShardedDataParallel"):
                raise TypeError(f"encoder has a {name} inside: wrap all of it, or use fully_shard")
        self.sharded = [m for m in self.modules if hasattr(m, "set_requires_gradient_sync")]
        self.items, self.structure = tree_flatten(inputs, is_leaf=_is_text)
        self.cut = [_is_text(x) or (isinstance(x, Tensor) and x.ndim > 0) for x in self.items]
        parameters = dict.fromkeys(p for m in self.modules for p in m.parameters(False))
        self.learns = any(p.requires_grad for p in parameters)
        self.on_devices = [torch.empty(0, device=at) for at in {p.device for p in parameters}]
        own = set(criterion.parameters())  # a criterion may clamp these
        learnt = [p for p in parameters if p.requires_grad and not (self.sharded or p in own)]
        self.watched = learnt + [item for item in self.items if isinstance(item, Tensor)]
        self.chunks = self._chunks(size)
        self.seen: list[int] = []
        self.parts: dict[int, Tensor] = {}
        self.drift: list[Tensor] = []

    def _chunks(self, size: int) -> list[slice]:
        """Rows of each chunk; as many chunks in all processes if an encoder sends messages."""
        rows = {len(item) for item, cut in zip(self.items, self.cut, strict=True) if cut}
        if len(rows) != 1:
            raise ValueError(f"inputs must be tensors of one row per sample, got rows: {rows}")
        n = rows.pop()
        count = own = max(1, -(-n // size))
        if self.sharded or any(isinstance(m, nn.SyncBatchNorm) for m in self.modules):
            processes = Processes.of("world")
            count = own if processes is None else max(processes.exchange([own]))[0]
        if count == own:
            return [slice(start, start + size) for start in range(0, max(n, 1), size)]
        return [slice(k * n // count, (k + 1) * n // count) for k in range(count)]

    def _versions(self) -> list[int]:
        return [x._version for x in self.watched] + [m.training for m in self.modules]

    def embeddings(self, reduced: set[nn.Module]) -> Tensor:
        """The embeddings of all chunks, whose activations the backward pass computes again.

        It ends with the first chunk. With that, sharded modules reduce their gradients, except
        those that earlier sides have ``reduced``.
        """
        found, own = [], [module for module in self.sharded if module not in reduced]
        reduced.update(own)
        for number, rows in enumerate(self.chunks):
            chunk = [x[rows] if cut else x for x, cut in zip(self.items, self.cut, strict=True)]
            with set_checkpoint_early_stop(False):
                part = checkpoint(self._embed, number, chunk, *self.on_devices, use_reentrant=False)
            if self.sharded and part.requires_grad:
                part.register_hook(partial(self._reduce, own if number == 0 else []))
            found.append(part)
        return torch.cat(found)

    def _reduce(self, modules: Sequence[nn.Module], _: Tensor) -> None:
        for module in self.sharded:
            module.set_requires_gradient_sync(module in modules, recurse=False)

    def _embed(self, number: int, chunk: list[Any], *_: Tensor) -> Tensor:
        inputs, before = tree_unflatten(chunk, self.structure), self.parts.get(number)
        changed = before is not None and self.seen != self._versions()
        with _buffers_kept([] if before is None else self.modules):
            found = self.encode(inputs)
        self.seen = self._versions()  # the first pass may set up parameters
        if before is None:
            if not isinstance(found, Tensor):
                raise TypeError(f"encoder must return embeddings, (n, d), got {type(found)}")
            self.parts[number] = found.detach().clone()
            return found
        self.drift.append((found.detach() - before).norm() - _DRIFT * before.norm())
        if number == 0:  # the last one: one value is read from a device
            changed, self.drift = changed or bool(torch.stack(self.drift).max() > 0), []
        if changed:
            raise ValueError(
                "the encoder or its inputs have changed since the step: call backward() before the "
                "optimiser, and draw random numbers with torch alone"
            )
        return found  # type: ignore[no-any-return]


def _inside(ddp: DistributedDataParallel, run: Callable[[], Tensor]) -> Tensor:
    """``run()`` as the forward pass of a DDP, which then reduces gradients in backward, once."""
    module, stand = ddp.module, nn.Module()

    def forward(_: None) -> Tensor:
        ddp.module = module
        return run()

    stand.forward = forward
    stand.named_buffers = module.named_buffers  # type: ignore[method-assign]
    ddp.module = stand
    try:
        return ddp(None)  # type: ignore[no-any-return]
    finally:
        ddp.module = module


@contextmanager
def _buffers_kept(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Copies in the place of buffers, such as running means: the first pass has changed them."""
    kept = [(m, name, x) for m in modules for name, x in m._buffers.items() if x is not None]
    copies = {buffer: buffer.clone() for _, _, buffer in kept}
    for module, name, buffer in kept:
        setattr(module, name, copies[buffer])
    yield
    for module, name, buffer in kept:
        setattr(module, name, buffer)


def _is_text(item: Any) -> bool:
    return isinstance(item, tuple | list) and bool(item) and isinstance(item[0], str)
