"""What a user has at hand is accepted: lists, arrays, numpy's numbers, tensors as settings."""

import numpy as np
import pytest
import torch

import tricouple as tc
from conftest import draw

LABELS = [3, 3, 1, 1, 4, 4, 4, 1]


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda ids: np.array(ids, dtype=np.int32)])
def test_labels_may_be_lists_or_arrays(kind):
    x, references = draw(8, 0), draw(8, 1)
    criterion, ids = tc.NegMMIOT(1.0, 0.1), torch.tensor(LABELS)
    assert torch.equal(criterion(x, kind(LABELS)), criterion(x, ids))
    found = criterion(x, kind(LABELS), ref_emb=references, ref_labels=kind(LABELS[::-1]))
    assert torch.equal(found, criterion(x, ids, ref_emb=references, ref_labels=ids.flip(0)))


@pytest.mark.parametrize("number", [np.float32, np.float64, np.float16])
def test_settings_may_be_numbers_of_numpy(number):
    half = number(0.5)
    x, ids = draw(8, 0).requires_grad_(), torch.tensor(LABELS)
    made = [
        tc.NegMMIOT(half, half, n_iters=np.int64(5), tol=number(1e-3)),
        tc.PushPull(half, half, half, n_iters=np.int64(5)),
        tc.IOT(half, uniformity=half),
        tc.InfoNCE(half),
        tc.InvaSpread(half),
        tc.DBOT(half, n_iters=np.int32(3), lower=half),
        tc.VICReg(half, half, half),
    ]
    wanted = [
        tc.NegMMIOT(0.5, 0.5, n_iters=5, tol=float(number(1e-3))),
        tc.PushPull(0.5, 0.5, 0.5, n_iters=5),
        tc.IOT(0.5, uniformity=0.5),
        tc.InfoNCE(0.5),
        tc.InvaSpread(0.5),
        tc.DBOT(0.5, n_iters=3, lower=0.5),
        tc.VICReg(0.5, 0.5, 0.5),
    ]
    for one, other in zip(made, wanted, strict=True):
        assert torch.equal(one(x, ids), other(x, ids))
    plan = tc.ot.sinkhorn(draw(8, 0), half, n_iters=np.int64(7))
    assert torch.equal(plan.dense(), tc.ot.sinkhorn(draw(8, 0), 0.5, n_iters=7).dense())


def test_views_may_come_in_a_list():
    views = [draw(5, 0), draw(5, 1), draw(5, 2)]
    for found, wanted in zip(tc.pair_views(views), tc.pair_views(*views), strict=True):
        assert torch.equal(found, wanted)
    with pytest.raises(ValueError, match="at least 2 views"):
        tc.pair_views(views[:1])


@pytest.mark.parametrize("module", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE, tc.InvaSpread])
def test_a_temperature_that_is_a_plain_tensor_belongs_to_the_module(module):
    criterion = module(torch.tensor(0.5))
    assert torch.equal(criterion.state_dict()["temperature"], torch.tensor(0.5))
    assert not list(criterion.parameters())
    assert criterion.to(torch.float64).temperature.dtype == torch.float64
    assert module(torch.tensor(0.5)).to("meta").temperature.is_meta
    criterion.temperature = 0.25  # a number again
    assert criterion.temperature == 0.25
    assert list(module(torch.nn.Parameter(torch.tensor(0.5))).state_dict()) == ["temperature"]


def test_a_learnt_sharpness_leaves_no_trace_in_the_state():
    both = tc.BothDirections(tc.InfoNCE(0.5), learn=True)
    both(draw(4, 0).float(), draw(4, 1).float(), torch.arange(4))
    assert list(both.state_dict()) == ["log_factor"]


def test_plans_print_in_a_line():
    z = torch.nn.functional.normalize(draw(6, 0), dim=1)
    text = repr(tc.ot.triplet_sinkhorn(z @ z.T, 1.0, 0.5, n_iters=100))
    assert text.startswith("TripletPlan(6×6×6, epsilon=0.5, n_iters=100, marginal_error=")
    assert text.endswith("converged=True)")
    text = repr(tc.ot.sinkhorn(z, 0.01, n_iters=1))
    assert text.startswith("PairPlan(6×5, epsilon=0.01, n_iters=1, marginal_error=")
    assert text.endswith("converged=False)")
