"""Batches beyond one tile, at the paper's sharpness: still the dense algorithm, however stored."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

import tricouple as tc
from conftest import LOSSES, SETTINGS
from reference import large_dense, relative_error, with_gradients
from tricouple.ot import engine
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.halves import SymmetricKernels
from tricouple.ot.sweeps.kernels import LinearKernels
from tricouple.ot.sweeps.native import NativeKernels

SHARPNESS = 100.0
MAKE = {
    "neg_mmiot": lambda c, **rest: tc.NegMMIOT(1.0, 1 / c, **rest),
    "push_pull": lambda c, **rest: tc.PushPull(1.0, 1 / c, 1 / c, **rest),
    "iot": lambda c, **rest: tc.IOT(1 / c, **rest),
}


def clustered(n: int, m: int = 0) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Classes of unequal sizes around random centres, in numbers that float32 has exactly."""
    generator = torch.Generator().manual_seed(n)
    centres = torch.randn(9, 16, generator=generator)

    def rows(count: int) -> tuple[Tensor, Tensor]:
        labels = (torch.arange(count) ** 2 // 11) % 9
        return centres[labels] + torch.randn(count, 16, generator=generator), labels

    return (*rows(n), *(rows(m) if m else (None, None)))


SHAPES = {"N = 96": (96, 0), "N = 200": (200, 0), "96 × 120": (96, 120)}


def call(make, shape: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Value and gradient of a loss in a dtype."""
    z, labels, ref, ref_labels = clustered(*SHAPES[shape])
    leaves = [one.to(dtype).requires_grad_() for one in (z, ref) if one is not None]
    rest = {} if ref is None else {"ref_emb": leaves[1], "ref_labels": ref_labels}
    return with_gradients(make(leaves[0], labels, **rest), leaves)


@cache
def oracle(name: str, shape: str) -> tuple[Tensor, Tensor]:
    """Value and gradient of the dense algorithm, in float64."""

    def loss(z, labels, **rest):
        return large_dense(name, z, labels, **rest, c=SHARPNESS)

    return call(loss, shape, torch.float64)


PATHS = {  # and the kernels that are used on them
    "compiled": NativeKernels,
    "PyTorch": LinearKernels,
    "halves": SymmetricKernels,
    "halves, streamed": SymmetricKernels,
    "PyTorch, streamed": LinearKernels,
}
CASES = [
    (shape, path) for shape in SHAPES for path in PATHS if "×" not in shape or "halves" not in path
]


@pytest.fixture
def used(monkeypatch) -> list[type]:
    """The kernels that were used."""
    found = []
    made = engine._kernels

    def recorded(*arguments):
        for kernels in made(*arguments):
            found.append(type(kernels))
            yield kernels

    monkeypatch.setattr(engine, "_kernels", recorded)
    return found


@pytest.fixture
def take(monkeypatch):
    """Force a way to store the kernels and to sweep; the options that go with it."""

    def force(path: str, columns: int) -> dict[str, object]:
        if path.startswith("PyTorch"):
            monkeypatch.setattr(native, "compiled", None)
        elif native.compiled is None:
            pytest.skip("built without a C compiler")
        elif path == "halves":
            monkeypatch.setattr(engine, "LARGEST", 0)
        if "streamed" not in path:
            return {"memory": "matrices"}
        # Tiles of some thirty rows, and a rest.
        return {"memory": "streamed", "memory_budget": 31 * 5 * 8 * columns}

    return force


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("shape", "path"), CASES)
def test_large_batches_equal_the_dense_algorithm(name, dtype, shape, path, take, used):
    options = take(path, max(SHAPES[shape]))
    value, gradient = call(MAKE[name](SHARPNESS, **options), shape, dtype)
    wanted, wanted_gradient = oracle(name, shape)
    assert set(used) == {PATHS[path]}
    tolerance = 1e-13 if dtype == torch.float64 else 5e-6
    assert value.dtype == gradient.dtype == dtype
    assert relative_error(value, wanted) <= tolerance
    assert relative_error(gradient, wanted_gradient) <= tolerance


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("setting", ["balanced", "two_views", "across_repeated"])
def test_the_oracle_of_large_batches_is_that_of_small_ones(name, setting):
    batch = SETTINGS[setting].to(torch.float64)
    options = {"epsilon": 0.2} if name == "iot" else {"temperature": 0.2}
    if name == "push_pull":
        options |= {"epsilon_pos": 1.0, "epsilon_neg": 1.0}
    elif name == "neg_mmiot":
        options |= {"epsilon": 1.0}
    small = with_gradients(LOSSES[name].dense(batch, **options), batch.leaves)
    arguments = batch.embeddings, batch.labels, batch.ref_emb, batch.ref_labels
    large = with_gradients(large_dense(name, *arguments, c=5.0), batch.leaves)
    assert relative_error(large[0], small[0]) <= 1e-13
    assert relative_error(large[1], small[1]) <= 1e-12
