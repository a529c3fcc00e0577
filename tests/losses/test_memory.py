"""Streamed kernels: the same losses and gradients, without N×N matrices; accuracy: tests/dense."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tricouple as tc
from conftest import UNCONVERGED
from reference import relative_error, with_gradients

STREAMING = {
    "neg_mmiot": tc.NegMMIOT,
    "push_pull": lambda epsilon=0.1, **options: tc.PushPull(
        epsilon_pos=epsilon, epsilon_neg=epsilon, **options
    ),
    "iot": tc.IOT,
    "log_sigmoid": lambda **options: tc.NegMMIOT(shaping="log_sigmoid", **options),
}
# Bytes per column for tiles of one row, in float64.
ROW = 8 * 8


def clustered(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 7
    centres = torch.randn(7, 16, generator=generator)
    return centres[labels] + torch.randn(n, 16, generator=generator), labels


@UNCONVERGED
@pytest.mark.parametrize("gradient", ["unrolled", "implicit", "envelope"])
@pytest.mark.parametrize("name", STREAMING)
def test_streamed_equals_stored_in_tiles_of_any_size(settings, name, gradient):
    # Terms of a quadrature, or sweeps of conjugate gradients, are slow in tiny tiles.
    slow = name == "log_sigmoid" or gradient == "implicit"
    for setting in ["unbalanced"] if slow else settings:
        batch = settings[setting]
        columns = len(batch.embeddings if batch.ref_emb is None else batch.ref_emb)
        options = {"epsilon": 0.5, "gradient": gradient, "n_iters": 4}
        ways = {"memory": "matrices"}, {"memory": "streamed"}, {"memory_budget": columns * ROW}
        stored, *others = (
            with_gradients(batch.loss(STREAMING[name](**options, **way)), batch.leaves)
            for way in ways
        )
        for streamed in others:
            assert relative_error(streamed[0], stored[0]) <= 1e-11
            assert relative_error(streamed[1], stored[1]) <= 1e-9


@pytest.mark.parametrize("name", ["neg_mmiot", "push_pull", "iot"])
@pytest.mark.parametrize("kept", [0.0, 0.4], ids=["nothing kept", "some rows kept"])
def test_streamed_equals_stored_in_float32(name, kept):
    embeddings, labels = clustered(600)
    results = []
    for mode in ({"memory": "matrices"}, {"memory_budget": (kept + 0.02) * 4 * 600**2}):
        leaf = embeddings.clone().requires_grad_()
        loss = STREAMING[name](n_iters=3, **mode)(leaf, labels)
        results.append((loss, torch.autograd.grad(loss, leaf)[0]))
    (stored, stored_gradient), (streamed, streamed_gradient) = results
    assert relative_error(streamed, stored) <= 1e-5
    assert relative_error(streamed_gradient, stored_gradient) <= 1e-4


@pytest.mark.parametrize("name", ["neg_mmiot", "push_pull", "log_sigmoid"])
def test_streamed_learnable_temperature_has_the_same_gradient(name):
    embeddings, labels = clustered(40)
    slopes = []
    for mode in ("matrices", "streamed"):
        temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
        loss = STREAMING[name](temperature=temperature, memory=mode)(embeddings.double(), labels)
        slopes.append(torch.autograd.grad(loss, temperature)[0])
    assert relative_error(slopes[1], slopes[0]) <= 1e-9


class Largest(TorchDispatchMode):
    """Entries of the largest tensor that was made."""

    def __init__(self):
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for part in tree_leaves(found):
            if isinstance(part, torch.Tensor):
                self.entries = max(self.entries, part.numel())
        return found


@pytest.mark.parametrize("memory", ["auto", "streamed"])
@pytest.mark.parametrize("name", ["neg_mmiot", "push_pull", "iot", "info_nce"])
def test_streamed_pass_allocates_no_matrix_of_all_pairs(name, memory):
    embeddings, labels = clustered(200)
    leaf = embeddings.requires_grad_()
    make = {"info_nce": tc.InfoNCE} | STREAMING
    sweeps = {} if name == "info_nce" else {"n_iters": 1}
    criterion = make[name](memory=memory, memory_budget=20 * 200 * ROW / 2, **sweeps)
    with Largest() as largest:
        criterion(leaf, labels).backward()
    assert 0 < largest.entries <= 200 * 200 / 2


def test_info_nce_in_small_tiles_is_the_same(batch):
    wanted, wanted_gradient = with_gradients(batch.loss(tc.InfoNCE()), batch.leaves)
    columns = len(batch.embeddings if batch.ref_emb is None else batch.ref_emb)
    criterion = tc.InfoNCE(memory="streamed", memory_budget=2 * columns * ROW)
    found, gradient = with_gradients(batch.loss(criterion), batch.leaves)
    assert relative_error(found, wanted) <= 1e-12
    assert relative_error(gradient, wanted_gradient) <= 1e-12


PEAK = """
import resource, torch, tricouple as tc
torch.set_num_threads(1)
n, budget = 3000, {budget}
rows = torch.randn(n, 32, requires_grad=True)
labels = torch.arange(n) % 500
tc.NegMMIOT(n_iters=1)(rows[:300], labels[:300] % 9).backward()  # loads what is loaded late
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tc.NegMMIOT(n_iters=1, memory_budget=budget)(rows, labels).backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss has other units")
def test_a_budget_is_kept():
    budget = 24e6  # of a matrix of 36 MB
    code = PEAK.format(budget=budget)
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True
    )
    vectors = 3e6
    assert float(done.stdout) <= budget + vectors


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE])
def test_a_budget_too_small_for_one_row_is_refused(make):
    embeddings, labels = clustered(100)
    criterion = make(memory="streamed", memory_budget=100)
    with pytest.raises(ValueError, match=r"memory_budget=100 bytes is too small.*take \d+"):
        criterion(embeddings, labels)


@pytest.mark.parametrize("options", [{"memory": "disk"}, {"memory_budget": 0}])
def test_bad_memory_options_are_refused(options):
    with pytest.raises(ValueError, match="memory"):
        tc.NegMMIOT(**options)


def test_shaped_costs_and_uniformity_cannot_be_streamed():
    embeddings, labels = clustered(30)
    with pytest.raises(ValueError, match="memory='streamed' needs shaping='linear'"):
        tc.PushPull(shaping="hinge", memory="streamed")(embeddings, labels)
    with pytest.raises(ValueError, match="memory='matrices'"):
        tc.IOT(uniformity=0.2, memory="streamed")


def test_two_losses_in_one_graph_do_not_share_matrices():
    embeddings, labels = clustered(300)
    leaf = embeddings.requires_grad_()
    criterion = tc.NegMMIOT()
    (alone,) = torch.autograd.grad(criterion(leaf, labels), leaf)
    total = criterion(leaf, labels) + criterion(leaf.flip(1), labels.flip(0))
    (both,) = torch.autograd.grad(total, leaf)
    (second,) = torch.autograd.grad(criterion(leaf.flip(1), labels.flip(0)), leaf)
    assert relative_error(both, alone + second) <= 1e-5


class Saved:
    """Entries of what autograd keeps from a forward for a backward pass."""

    def __init__(self):
        self.entries = 0
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._note, lambda kept: kept)

    def _note(self, tensor):
        self.entries = max(self.entries, tensor.numel())
        return tensor


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE])
def test_nothing_of_all_pairs_lives_between_forward_and_backward(make):
    embeddings, labels = clustered(300)
    saved = Saved()
    with saved.hooks:
        loss = make()(embeddings.requires_grad_(), labels)
    assert 0 < saved.entries <= 300 * 16
    loss.backward()
