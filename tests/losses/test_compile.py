"""Compiled, exported and transformed losses are the eager ones, in value and gradient."""

import copy
import gc
import math
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import tricouple as tc
from conftest import UNCONVERGED, draw, listed
from reference import relative_error
from tricouple.losses.base import ContrastiveLoss
from tricouple.names import LOSSES

N = 10
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 1, 2, 0])
OTHERS = draw(12, 5)
ACROSS = {
    "labels": LABELS,
    "ref_emb": OTHERS,
    "ref_labels": torch.tensor([2, 1, 0, 0, 1, 1, 2, 2, 0, 0, 1, 2]),
}
A, P, K = listed(N, N, 20, 3, within=True)
CALLS = {
    "within": {"labels": LABELS},
    "list": {"labels": LABELS.tolist()},
    "across": ACROSS,
    "placed": {
        "labels": LABELS,
        "ref_emb": OTHERS,
        "ref_labels": torch.cat([LABELS, LABELS[:2]]),
        "ref_index": torch.arange(N),
    },
    "triplets": {"indices_tuple": (A, P, K)},
    "pairs": {"indices_tuple": (A, A.sub(1) % N, A, A.add(1) % N)},
    "number": {"labels": LABELS, "temperature": 0.7},
    "learnt": {"labels": LABELS, "temperature": torch.tensor(0.7, requires_grad=True)},
}


class OwnWeight(ContrastiveLoss):
    """A user's loss, with a parameter of its own."""

    scale = "temperature"

    def __init__(self):
        super().__init__()
        self._set_scale(0.5, None)
        self.weight = nn.Parameter(torch.tensor(2.0))

    def compute(self, batch):
        contrast = batch.inner(batch.relation.triplets().contrast)
        return self.weight * -contrast.exp() / batch.temperature


def learnable(start=0.5):
    return nn.Parameter(torch.tensor(start))


BOTH = ("within", "across")
# How a loss is made, and the calls that it is tested with.
MADE = {
    **{
        f"{name}-{gradient}": (lambda make=make, gradient=gradient: make(gradient=gradient), calls)
        for gradient in ("unrolled", "implicit", "envelope")
        for name, (make, calls) in {
            "neg_mmiot": (lambda **k: tc.NegMMIOT(0.5, 0.4, **k), tuple(CALLS)),
            "log_sigmoid": (lambda **k: tc.NegMMIOT(shaping="log_sigmoid", **k), BOTH),
            "hinge": (lambda **k: tc.NegMMIOT(shaping="hinge", **k), BOTH),
            "exponential": (lambda **k: tc.NegMMIOT(shaping="exponential", **k), ("within",)),
            "push_pull": (tc.PushPull, tuple(CALLS)),
            "iot": (tc.IOT, (*BOTH, "triplets", "learnt")),
        }.items()
    },
    "neg_mmiot-streamed": (lambda: tc.NegMMIOT(memory="streamed"), BOTH),
    "neg_mmiot-tol": (lambda: tc.NegMMIOT(tol=1e-3, n_iters=50), BOTH),
    "neg_mmiot-classes": (lambda: tc.NegMMIOT(marginals="classes"), BOTH),
    "neg_mmiot-learnable": (lambda: tc.NegMMIOT(learnable()), BOTH),
    "log_sigmoid-learnable": (
        lambda: tc.NegMMIOT(learnable(), shaping="log_sigmoid", memory="streamed"),
        ("within",),
    ),
    "neg_mmiot-tensor": (lambda: tc.NegMMIOT(torch.tensor(0.5)), ("within",)),
    "push_pull-streamed": (lambda: tc.PushPull(memory="streamed"), BOTH),
    "push_pull-shaped": (lambda: tc.PushPull(shaping="exponential"), ("within",)),
    "iot-uniformity": (lambda: tc.IOT(uniformity=0.5), BOTH),
    "infonce": (tc.InfoNCE, tuple(CALLS)),
    "infonce-learnable": (lambda: tc.InfoNCE(learnable()), ("within",)),
    "invaspread": (tc.InvaSpread, BOTH),
    "dbot": (tc.DBOT, BOTH),
    "fused_gromov": (tc.FusedGromov, ("across",)),
    "vicreg": (tc.VICReg, BOTH),
    "own": (OwnWeight, (*BOTH, "learnt")),
}
CASES = [(name, call) for name, (_, calls) in MADE.items() for call in calls]
NAMED = ("linear", "log_sigmoid", "hinge")
SIX = [lambda s=s: tc.NegMMIOT(shaping=s) for s in NAMED] + [tc.PushPull, tc.IOT, tc.InfoNCE]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def leaves(criteria, dtype):
    """Embeddings of each criterion, and all that may learn beside them."""
    rows = torch.stack([draw(N, seed) for seed in range(len(criteria))]).to(dtype)
    given = [CALLS["learnt"]["temperature"]]
    return [rows.requires_grad_(), *given, *(p for c in criteria for p in c.parameters())]


def test_every_loss_is_among_the_cases():
    classes = {type(make()).__name__ for make, _ in MADE.values()}
    assert {found.target.split(".")[-1] for found in LOSSES.values() if found.target} <= classes


@UNCONVERGED
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_compiled_losses_are_the_eager_ones(dtype, tolerance):
    criteria = [MADE[name][0]() for name, _ in CASES]
    learning = leaves(criteria, dtype)

    def losses(rows):
        doubled = torch.unbind(2 * rows)  # other operations are in the graph too
        called = zip(criteria, doubled, CASES, strict=True)
        return torch.stack([c(row, **CALLS[call]).double() for c, row, (_, call) in called])

    compiled = torch.compile(losses, fullgraph=True, backend="aot_eager")
    results = []
    for function in (losses, compiled):
        values = function(learning[0])
        weights = torch.linspace(1, 2, len(values), dtype=torch.float64)
        results.append((values.detach(), *torch.autograd.grad(values @ weights, learning)))
    (wanted, rows, *settings), (found, compiled_rows, *compiled_settings) = results
    for case, *pairs in zip(CASES, found, wanted, compiled_rows, rows, strict=True):
        assert relative_error(*pairs[:2]) <= tolerance, case
        assert relative_error(*pairs[2:]) <= tolerance, case
    for one, other in zip(compiled_settings, settings, strict=True):
        assert relative_error(one, other) <= max(tolerance, 1e-7)  # float32 parameters


@pytest.mark.slow
def test_inductor_computes_the_losses_of_eager_mode():
    network, criteria = nn.Linear(6, 4), [make() for make in SIX]
    inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))

    def losses(inputs, labels):
        return torch.stack([criterion(network(inputs).tanh(), labels) for criterion in criteria])

    results = []
    for function in (losses, torch.compile(losses, fullgraph=True)):
        values = function(inputs, torch.arange(12) % 3)
        gradients = torch.autograd.grad(values.sum(), list(network.parameters()))
        results.append((values, *gradients))
    for wanted, found in zip(*results, strict=True):
        assert relative_error(found, wanted) <= 1e-5
