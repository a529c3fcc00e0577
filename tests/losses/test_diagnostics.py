"""criterion.diagnostics(): what the last call did, in plain numbers, at no cost to the call."""

import copy
import gc
import pickle
import weakref

import pytest
import torch

import tricouple as tc
from conftest import COUPLED, OTHERS, UNCONVERGED, draw
from reference import (
    admissible_triplets,
    dense_plan,
    marginal_error,
    triplet_cost,
    uniform_marginals,
)

LABELS = torch.arange(24) // 4
ACROSS = {"ref_emb": draw(30, 5), "ref_labels": torch.arange(30) % 6}
EVERY = COUPLED | OTHERS | {"published": lambda: tc.InvaSpread(0.2, variant="published")}


@UNCONVERGED
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("across", [False, True], ids=["within", "across"])
def test_numbers_are_plain_and_in_their_ranges(name, across):
    across = across or name == "fused_gromov"
    criterion, x = EVERY[name](), draw(24, 0).requires_grad_()
    loss = criterion(x, LABELS, **(ACROSS if across else {}))
    loss.backward()
    found = criterion.diagnostics()
    assert found["loss"] == pytest.approx(loss.item())
    assert {type(value) for value in found.values()} <= {int, float}
    assert found["sharpness"] == pytest.approx(5)
    assert ("sweeps" in found) == (name in COUPLED or name == "fused_gromov")
    if name in COUPLED:
        assert found["sweeps"] == 10
        assert 0 <= found["marginal_error"] < 0.2
    assert criterion.diagnostics() == found


@pytest.mark.parametrize("name", [name for name in EVERY if name != "fused_gromov"])
def test_every_kind_of_call_has_diagnostics(name):
    criterion, x = EVERY[name](), draw(24, 0)
    triplets = tuple(torch.tensor(admissible_triplets(LABELS))[:50].unbind(1))
    criterion(x, indices_tuple=triplets)
    assert criterion.diagnostics()["sharpness"] == pytest.approx(5)
    a, p, n = triplets
    criterion(x, indices_tuple=(a, p, a, n), temperature=0.1)
    assert criterion.diagnostics()["sharpness"] == pytest.approx(
        10 if criterion.sharpness is None or name not in COUPLED or name == "iot" else 25
    )


@pytest.mark.parametrize("n_iters", [2, 300])
def test_marginal_error_is_that_of_the_plan(n_iters):
    x = draw(12, 0)
    criterion = tc.NegMMIOT(0.5, 0.2, n_iters=n_iters)
    criterion(x, LABELS[:12])
    z = torch.nn.functional.normalize(x, dim=1)
    plan = dense_plan(triplet_cost(z @ z.T, 0.5, True), 0.2, n_iters)
    wanted = marginal_error(plan, uniform_marginals(plan.shape))
    assert criterion.diagnostics()["marginal_error"] == pytest.approx(wanted, abs=1e-9)


def test_vicreg_has_its_terms():
    criterion = tc.VICReg()
    loss = criterion(draw(24, 0), LABELS)
    found = criterion.diagnostics()
    assert list(found) == ["invariance", "variance", "covariance"]
    assert sum(found.values()) == pytest.approx(float(loss))


@pytest.mark.parametrize("name", EVERY)
def test_a_call_keeps_no_graph_and_copies_keep_no_batch(name):
    criterion, x = EVERY[name](), (draw(24, 0).requires_grad_() * 1.0)
    tau = torch.tensor(0.3, requires_grad=True) * 1.0
    loss = criterion(x, LABELS, **ACROSS, temperature=tau)
    graph = weakref.ref(x), weakref.ref(tau)
    for copied in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
        with pytest.raises(ValueError, match="last call, and there was none"):
            copied.diagnostics()
    before = criterion.diagnostics()
    del loss, x, tau
    gc.collect()
    assert [reference() for reference in graph] == [None, None]
    assert criterion.diagnostics() == before
    assert not criterion.state_dict()


def test_without_a_call_there_is_nothing_to_say():
    criterion = tc.NegMMIOT(empty="zero")
    with pytest.raises(ValueError, match="last call"):
        criterion.diagnostics()
    criterion(draw(24, 0), LABELS)
    criterion(draw(24, 0), torch.arange(24))  # nothing to learn from
    with pytest.raises(ValueError, match="last call"):
        criterion.diagnostics()
