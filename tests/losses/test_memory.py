"""Streamed kernels: the same losses and gradients, without N×N matrices; accuracy: tests/dense."""

import sys

import pytest
import torch

import tricouple as tc
from conftest import UNCONVERGED
from processes import python
from reference import Largest, relative_error, with_gradients

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


BUDGET = 48 * 2**20
PEAKS = """
import os, torch, tricouple as tc
torch.set_num_threads(1)
options = {"n_iters": 2, "memory_budget": 48 * 2**20}
losses = {
    "linear": tc.NegMMIOT(**options),
    "c = 100": tc.NegMMIOT(sharpness=100, **options),
    "two epsilons": tc.PushPull(1.0, 0.1, 0.2, **options),
    "hinge": tc.NegMMIOT(shaping="hinge", **options | {"n_iters": 1}),
    "both directions": tc.BothDirections(tc.NegMMIOT(**options)),
    "SigLIP": tc.BothDirections(tc.SigLIP(learn_bias=True), learn=True),
    "stored": tc.NegMMIOT(),
}

def peak(word):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(word))

def batch(name, n):
    d, sets = 512 if name == "SigLIP" else 64, 2 if name in ("SigLIP", "both directions") else 1
    return *torch.randn(sets, n, d).requires_grad_().unbind(), torch.arange(n) % (n // 6)

for name in losses:
    for n in (6144,) if name == "SigLIP" else (2000, 2450, 3500):
        if os.fork() == 0:
            losses[name](*batch(name, 300)).backward()  # loads what is loaded late
            given = batch(name, n)
            before = peak("VmRSS")
            losses[name](*given).backward()
            print(f"{name}|{n}|{peak('VmHWM') - before}", flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.fixture(scope="module")
def peaks():
    """Bytes by loss and N, each of a process forked from one that has loaded the package."""
    rows = [line.split("|") for line in python("-W", "ignore", "-c", PEAKS).stdout.splitlines()]
    return {(name, int(n)): int(size) for name, n, size in rows}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("n", [2000, 2450, 3500])
@pytest.mark.parametrize("name", ["linear", "c = 100", "two epsilons", "hinge", "both directions"])
def test_a_budget_is_kept(peaks, name, n):
    assert 0 < peaks[name, n] <= 1.1 * BUDGET


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_stored_batch_takes_little_more_than_one_matrix(peaks):
    assert peaks["stored", 3500] <= 1.3 * 4 * 3500**2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_siglip_takes_seven_copies_of_the_embeddings_and_a_tile(peaks):
    """At N = 16 384, d = 512 that is 264 MiB."""
    assert 0 < peaks["SigLIP", 6144] <= 7 * 6144 * 512 * 4 + 40 * 2**20


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE])
def test_a_budget_too_small_for_one_row_is_refused(make):
    embeddings, labels = clustered(100)
    criterion = make(memory="streamed", memory_budget=100)
    with pytest.raises(ValueError, match=r"memory_budget=100 bytes is too small.*take \d+"):
        criterion(embeddings, labels)


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE])
def test_nothing_of_all_pairs_lives_between_forward_and_backward(make):
    (embeddings, labels), saved = clustered(300), []
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda kept: saved.append(kept.numel()) or kept, lambda kept: kept):
        loss = make()(embeddings.requires_grad_(), labels)
    assert 0 < max(saved) <= 300 * 16
    loss.backward()
