"""SigLIP beside open_clip's and beside its definition; more in the tests of all losses."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import tricouple as tc
from baseline_reference import loop_siglip
from batches import listed
from conftest import draw
from reference import assert_same, with_gradients

# open_clip imports torchvision.
from tricouple.torchvision_ops import declare_missing  # isort: skip

declare_missing()

from open_clip.loss import SigLipLoss  # noqa: E402


def leaves(n, dtype=torch.float64):
    """Two sets, log c and b."""
    settings = torch.tensor([1.2, -4.0]).to(dtype).unbind()
    rows = draw(n, 0, 8).to(dtype), draw(n, 1, 8).to(dtype)
    return [part.clone().requires_grad_() for part in (*rows, *settings)]


def assert_equal(value, wanted, given, tolerance=1e-12):
    assert_same(with_gradients(value, given), with_gradients(wanted, given), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("n", [5, 90])
@pytest.mark.parametrize("both", [False, True], ids=["one way", "both"])
def test_it_is_that_of_open_clip_in_value_and_all_gradients(both, n, dtype, tolerance):
    given, ids = leaves(n, dtype), torch.arange(n)
    x, y, log_c, b = given
    wanted, tau = SigLipLoss()(normalize(x), normalize(y), log_c.exp(), b), torch.exp(-log_c)
    criterion, one_way = tc.SigLIP(tau, b), {"labels": ids, "ref_emb": y, "ref_labels": ids}
    value = tc.BothDirections(criterion)(x, y, ids) if both else criterion(x, **one_way)
    assert value.dtype == dtype
    assert_equal(value, wanted, given, tolerance)


@pytest.mark.parametrize("both", [False, True], ids=["one way", "both"])
def test_weights_of_pairs_and_anchors_are_factors_of_terms(both):
    given, generator = leaves(7), torch.Generator().manual_seed(0)
    pairs = torch.rand(7, 7, generator=generator, dtype=torch.float64)
    pairs, weights = pairs * (pairs > 0.6), torch.arange(7.0, dtype=torch.float64)
    pairs[2] = 0  # an anchor with negatives alone counts
    x, y, tau, b = given
    settings = {"temperature": tau, "bias": b}
    criterion, relation = tc.SigLIP(**settings), {"pairs": pairs, "weights": weights}
    wanted = loop_siglip(x, ref_emb=y, **settings, **relation)
    if both:
        back = loop_siglip(y, ref_emb=x, **settings | {"pairs": pairs.T, "weights": weights})
        wanted, value = (wanted + back) / 2, tc.BothDirections(criterion)(x, y, **relation)
    else:
        value = criterion(x, ref_emb=y, **relation)
    assert_equal(value, wanted, given)


def test_of_a_miners_pairs_no_other_counts():
    there = listed(10, 4).to(torch.float64)
    (a1, p, a2, n), x = there.triplets, there.embeddings
    kind = torch.full((10, 10), -1.0, dtype=torch.float64)
    kind[a2, n], kind[a1, p] = 0.0, 1.0
    assert_equal(there.loss(tc.SigLIP()), loop_siglip(x, pairs=kind), [x])


def of_both_ways(rank, parts, group):
    """Value and gradients of one process."""
    *sides, ids, weights = parts[rank]
    bias = nn.Parameter(torch.tensor(-4.0, dtype=torch.float64))
    given = [bias, *(side.clone().requires_grad_() for side in sides)]
    value = tc.BothDirections(tc.SigLIP(0.3, bias, group=group))(*given[1:], ids, weights=weights)
    return value.detach(), *torch.autograd.grad(value, given)


def test_both_ways_over_several_processes_are_those_of_one_and_so_is_the_bias(pools):
    whole = draw(9, 0), draw(9, 1), torch.arange(9) // 2, torch.arange(9.0)
    value, bias, *wanted = of_both_ways(0, [whole], None)
    parts = list(zip(*(part.split([5, 4]) for part in whole), strict=True))
    found = pools(2).run(of_both_ways, parts, "world")
    for one, own, *_ in found:
        assert torch.allclose(one, value)
        assert torch.allclose(own, bias)
    for k, gradient in enumerate(wanted, 2):
        assert torch.allclose(torch.cat([part[k] for part in found]) / 2, gradient, atol=1e-14)


def test_scale_and_bias_are_parameters():
    criterion = tc.BothDirections(tc.SigLIP(learn_bias=True), learn=True)
    assert {name for name, _ in criterion.named_parameters()} == {"log_factor", "criterion.bias"}
