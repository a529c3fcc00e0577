"""A process of 1024: shapes and memory of its share, on tensors without numbers."""

from __future__ import annotations

import weakref
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tricouple import memory
from tricouple.distributed import Shard
from tricouple.memory import choose_storage
from tricouple.numeric import pull
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.contract import Masses
from tricouple.ot.sweeps.kernels import LinearKernels, Products
from tricouple.ot.sweeps.triplet import ScaledTriplet
from tricouple.ot.sweeps.triplet_adjoint import ScaledTripletHistory

RANKS, OWN, DIM, SWEEPS = 1024, 128, 256, 2
N = RANKS * OWN


class Weighed(TorchDispatchMode):
    """The bytes of all storages that live at once, at most, and all messages."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.sent: list[int] = []
        self._known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            tensors = [part for part in tree_leaves(args[0]) if isinstance(part, Tensor)]
            self.sent.append(sum(part.numel() for part in tensors))
        result = func(*args, **(kwargs or {}))
        for part in tree_leaves(result):
            if isinstance(part, Tensor):
                self._note(part.untyped_storage())
        return result

    def _note(self, storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known[key] = weakref.ref(storage, lambda _: self._forget(key, size))
            self.live += size
            self.peak = max(self.peak, self.live)

    def _forget(self, key: int, size: int) -> None:
        del self._known[key]
        self.live -= size


@pytest.fixture
def shard(monkeypatch):
    monkeypatch.setattr(native, "compiled", None)
    monkeypatch.setattr(memory, "_madvise", lambda: None)  # these tensors have no address
    monkeypatch.setattr(memory, "_returned", OrderedDict())  # nor are they to be used again
    dist.init_process_group("fake", rank=5, world_size=RANKS, store=FakeStore())
    yield Shard(dist.group.WORLD, 5, RANKS, (OWN,) * RANKS, (OWN,) * RANKS)
    dist.destroy_process_group()


@pytest.mark.parametrize("mode", ["matrices", "streamed"])
def test_a_share_of_a_thousand_has_a_thousandth_of_the_matrices(shard, mode):
    with FakeTensorMode(), Weighed() as weighed:
        embeddings = torch.empty(N, DIM)
        source = Products(embeddings, embeddings)
        storage = choose_storage(mode, 2**31, source.shape, embeddings, matrices=2 / RANKS)
        kernels = LinearKernels(source, [10.0, -10.0], within=True, storage=storage, shard=shard)
        coupling = ScaledTriplet(kernels, within=True)
        ones = torch.ones(3 * N, dtype=torch.float64)
        masses = Masses(ones / N, (N, N, N), torch.float32)
        start = torch.ones(N)
        weighed.sent.clear()
        scalings = coupling._sweep(start, start, masses, SWEEPS, None)
        forward = list(weighed.sent)
        weighed.sent.clear()
        history = ScaledTripletHistory(kernels, coupling.exclusion, masses, scalings)
        gradient = history.adjoint(masses.values)
        pull(gradient, 10.0, embeddings, embeddings, slope=False, shard=shard)
    assert scalings.a.shape == (SWEEPS, N)
    assert len(forward) <= 4 * SWEEPS + 1
    assert len(weighed.sent) <= 4 * SWEEPS
    # Vectors alone are sent, and no embedding in the backward pass.
    assert max(forward + weighed.sent) <= 2 * N
    # Embeddings and two gradients of them, vectors, tiles, and of stored kernels this share.
    shared = 4 * N * (3 * DIM + 60 * SWEEPS) + 5 * 4 * storage.tile_entries
    stored = 2 * 4 * N * OWN if mode == "matrices" else 0
    assert 4 * N * DIM + stored < weighed.peak < shared + stored < 0.7 * 2**30  # as the page says
