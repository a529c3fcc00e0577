"""SigLIP beside open_clip's and beside its definition; more in the tests of all losses."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import logsigmoid, normalize

import tricouple as tc
from batches import batch, listed
from conftest import draw
from reference import Largest, relative_error, with_gradients

# open_clip imports torchvision.
from tricouple.torchvision_ops import declare_missing  # isort: skip

declare_missing()

from open_clip.loss import SigLipLoss  # noqa: E402


def leaves(n, m, dtype=torch.float64):
    """Two sets, log c and b."""
    settings = torch.tensor([1.2, -4.0]).to(dtype).unbind()
    rows = draw(n, 0, 8).to(dtype), draw(m, 1, 8).to(dtype)
    return [part.clone().requires_grad_() for part in (*rows, *settings)]


def defined(x, y, log_c, b, kind, masses):
    """``Σ_ij masses_i W_ij softplus(∓t_ij)`` of kinds W > 0, 0, and −1 for neither."""
    t = log_c.exp() * normalize(x.double()) @ normalize(y.double()).T + b
    terms = torch.where(kind > 0, -kind * logsigmoid(t), -logsigmoid(-t))
    return (masses[:, None] * torch.where(kind < 0, 0.0, terms)).sum()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("n", [5, 90])
def test_it_is_that_of_open_clip_in_value_and_all_gradients(n, dtype, tolerance):
    given, ids = leaves(n, n, dtype), torch.arange(n)

    ways = (
        lambda x, y, tau, b: tc.SigLIP(tau, b)(x, ids, ref_emb=y, ref_labels=ids),
        lambda x, y, tau, b: tc.BothDirections(tc.SigLIP(tau, b))(x, y, ids),
        lambda x, y, tau, b: tc.SigLIP(bias=b)(x, ids, ref_emb=y, ref_labels=ids, temperature=tau),
    )
    x, y, log_c, b = given
    wanted = with_gradients(SigLipLoss()(normalize(x), normalize(y), log_c.exp(), b), given)
    for way in ways:
        found = with_gradients(way(x, y, torch.exp(-log_c), b), given)
        assert found[0].dtype == dtype
        assert relative_error(found[0], wanted[0]) <= tolerance
        assert relative_error(found[1], wanted[1]) <= tolerance


@pytest.mark.parametrize("both", [False, True], ids=["one way", "both"])
def test_weights_of_pairs_and_anchors_are_factors_of_terms(both):
    given, generator = leaves(7, 7), torch.Generator().manual_seed(0)
    pairs = torch.rand(7, 7, generator=generator, dtype=torch.float64)
    pairs, weights = pairs * (pairs > 0.6), torch.arange(7.0, dtype=torch.float64)
    pairs[2] = 0  # an anchor with negatives alone counts
    x, y, log_c, b = given
    criterion, masses = tc.SigLIP(torch.exp(-log_c), b), weights / weights.sum()
    wanted = defined(*given, pairs, masses)
    if both:
        wanted = (wanted + defined(y, x, log_c, b, pairs.T, masses)) / 2
        value = tc.BothDirections(criterion)(x, y, pairs=pairs, weights=weights)
    else:
        value = criterion(x, ref_emb=y, pairs=pairs, weights=weights)
    wanted, found = with_gradients(wanted, given), with_gradients(value, given)
    assert relative_error(found[0], wanted[0]) <= 1e-13
    assert relative_error(found[1], wanted[1]) <= 1e-13


@pytest.mark.parametrize("kind", ["random", "two sets", "some in references"])
def test_a_matrix_of_equal_labels_is_the_labels(kind):
    there = batch(kind, 16).to(torch.float64)
    others = there.labels if there.ref_emb is None else there.ref_labels
    pairs, placed = there.labels[:, None] == others, {"ref_emb": there.ref_emb}
    value = tc.SigLIP()(there.embeddings, pairs=pairs, ref_index=there.own, **placed)
    found = with_gradients(value, there.leaves)
    wanted = with_gradients(there.loss(tc.SigLIP()), there.leaves)
    assert max(relative_error(*both) for both in zip(found, wanted, strict=True)) <= 1e-12


@pytest.mark.parametrize("number", [3, 4], ids=["triplets", "pairs"])
def test_of_listed_pairs_no_other_counts(number):
    there = listed(10, number).to(torch.float64)
    kind = torch.full((10, 10), -1.0, dtype=torch.float64)
    anchors, partners = there.triplets[-2:] if number == 4 else there.triplets[::2]
    kind[anchors, partners] = 0
    kind[there.triplets[0], there.triplets[1]] = 1
    masses, scale = torch.full_like(kind[0], 0.1), torch.tensor(10.0).double().log()
    x = there.embeddings
    wanted = with_gradients(defined(x, x, scale, -10.0, kind, masses), [x])
    found = with_gradients(there.loss(tc.SigLIP()), [x])
    assert max(relative_error(*both) for both in zip(found, wanted, strict=True)) <= 1e-12


def test_scale_and_bias_learn():
    images, ids = draw(24, 0, 16).float(), torch.arange(24)
    criterion = tc.BothDirections(tc.SigLIP(learn_bias=True), learn=True)
    assert {name for name, _ in criterion.named_parameters()} == {"log_factor", "criterion.bias"}
    optimizer = torch.optim.Adam(criterion.parameters(), lr=0.1)
    values = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = criterion(images, images, ids)
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    assert values[-1] < 0.5 * values[0]
    assert criterion.sharpness > 12
    assert abs(criterion.criterion.bias + 10) > 0.1
    assert repr(criterion.criterion).endswith("bias=learnable)")


def of_a_share(rank, parts):
    """Gradients of one process as DistributedDataParallel averages them."""
    x, y, ids = parts[rank]
    bias = nn.Parameter(torch.tensor(-4.0, dtype=torch.float64))
    criterion = tc.BothDirections(tc.SigLIP(0.3, bias, group="world"))
    value = criterion(x.requires_grad_(), y.requires_grad_(), ids)
    return value.detach(), torch.autograd.grad(value, [bias, x, y])


def test_the_bias_of_several_processes_has_the_gradient_of_one(pools):
    x, y, ids = draw(9, 0).requires_grad_(), draw(9, 1).requires_grad_(), torch.arange(9) // 2
    bias = torch.tensor(-4.0, dtype=torch.float64, requires_grad=True)
    value = tc.BothDirections(tc.SigLIP(0.3, bias))(x, y, ids)
    wanted = torch.autograd.grad(value, [bias, x, y])
    split = [part.detach().split([5, 4]) for part in (x, y, ids)]
    found = pools(2).run(of_a_share, list(zip(*split, strict=True)))
    for one, gradients in found:
        assert torch.allclose(one, value.detach())
        assert torch.allclose(gradients[0], wanted[0])
    for k in (1, 2):
        rows = torch.cat([gradients[k] for _, gradients in found]) / 2
        assert torch.allclose(rows, wanted[k], atol=1e-14)


def test_no_matrix_of_all_pairs_is_made():
    x, ids = draw(3000, 0).float().requires_grad_(), torch.arange(3000) // 2
    with Largest() as largest:
        tc.SigLIP()(x, ids).backward()
    assert 0 < largest.entries <= 3000**2 / 4


PEAK = """
import torch, tricouple as tc
def peak(word):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(word)) / 1024
torch.set_num_threads(1)
n, d = {n}, {d}
x, y, ids = torch.randn(n, d), torch.randn(n, d), torch.arange(n)
x.requires_grad_(), y.requires_grad_()
criterion = tc.BothDirections(tc.SigLIP(learn_bias=True), learn=True)
criterion(x[:99], y[:99], ids[:99]).backward()
x.grad = y.grad = None
before = peak("VmRSS")
criterion(x, y, ids).backward()
print(peak("VmHWM") - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_beyond_the_inputs_is_that_of_embeddings_and_a_tile():
    """At N = 16 384, d = 512 that is 264 MiB: 7 matrices of N·d, and tiles."""
    n, d = 6144, 512
    command = [sys.executable, "-W", "ignore", "-c", PEAK.format(n=n, d=d)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) <= 7 * n * d * 4 / 2**20 + 40


def test_bad_settings_are_named():
    with pytest.raises(TypeError, match="bias must be a number or a tensor, got 'none'"):
        tc.SigLIP(bias="none")
    for bias in (float("nan"), torch.zeros(2)):
        with pytest.raises(ValueError, match="bias must be one finite number"):
            tc.SigLIP(bias=bias)
