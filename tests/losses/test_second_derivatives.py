"""A second derivative is right, or refused with an error."""

import pytest
import torch

import tricouple as tc
from conftest import OTHERS, UNCONVERGED, VARIANTS, draw
from reference import relative_error

RIGHT = {"InvaSpread": OTHERS["inva_spread"], "DBOT": OTHERS["dbot"], "VICReg": tc.VICReg}
REFUSED = {name: make for name, make in VARIANTS.items() if name not in RIGHT} | {
    "hinge of pairs": lambda: tc.PushPull(0.5, 0.4, shaping="hinge"),
    "joint": lambda: tc.InfoNCE(0.5, partition="joint"),
}
SENTENCE = "no second derivatives"
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 1, 2])


def call(criterion, x, across):
    if across:
        return criterion(x, LABELS, ref_emb=draw(9, 5), ref_labels=LABELS.flip(0))
    return criterion(x, LABELS)


def sets(name):
    return {"FusedGromov": [True], "joint": [False]}.get(name, [False, True])


@UNCONVERGED
@pytest.mark.parametrize("name", REFUSED)
def test_second_derivative_is_refused_whatever_the_incoming_gradient(name):
    criterion = REFUSED[name]()
    for across in sets(name):
        x = draw(9, 0).requires_grad_()
        (wanted,) = torch.autograd.grad(call(criterion, x, across), x)
        (gradient,) = torch.autograd.grad(call(criterion, x, across), x, create_graph=True)
        assert torch.equal(gradient, wanted)  # and used once it is a gradient as any other
        with pytest.raises(RuntimeError, match=SENTENCE):
            torch.autograd.grad(gradient.square().sum(), x)
        outer = torch.ones((), dtype=torch.float64, requires_grad=True)
        value = call(criterion, x, across) * outer
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        with pytest.raises(RuntimeError, match=SENTENCE):
            torch.autograd.grad(gradient.square().sum(), outer)


@pytest.mark.parametrize("module", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE])
def test_second_derivative_with_a_temperature_is_refused(module):
    x, tau = draw(9, 0).requires_grad_(), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for first, second in ((x, tau), (tau, x), (tau, tau)):
        (gradient,) = torch.autograd.grad(module(tau)(x, LABELS), first, create_graph=True)
        with pytest.raises(RuntimeError, match=SENTENCE):
            torch.autograd.grad(gradient.square().sum(), second)


@pytest.mark.parametrize("name", RIGHT)
def test_second_derivative_equals_differences_of_gradients(name):
    criterion, step = RIGHT[name](), 1e-5
    for across in (False, True):
        x, direction = draw(9, 0), draw(9, 1)

        def gradient(at, across=across, **options):
            return torch.autograd.grad(call(criterion, at, across), at, **options)[0]

        leaf = x.clone().requires_grad_()
        product = (gradient(leaf, create_graph=True) * direction).sum()
        (found,) = torch.autograd.grad(product, leaf)
        ahead, back = ((x + side * step * direction).requires_grad_() for side in (1, -1))
        assert relative_error(found, (gradient(ahead) - gradient(back)) / (2 * step)) <= 1e-6


@pytest.mark.parametrize(
    "solve",
    [
        lambda s: tc.ot.sinkhorn(s, 0.5).potentials[0],
        lambda s: tc.ot.triplet_sinkhorn(s, 0.5, 0.5).potentials[0],
    ],
)
def test_second_derivative_of_potentials_is_refused(solve):
    z = torch.nn.functional.normalize(draw(9, 0), dim=1)
    similarity = (z @ z.T).requires_grad_()
    value = solve(similarity)[0]
    (gradient,) = torch.autograd.grad(value, similarity, create_graph=True)
    with pytest.raises(RuntimeError, match=SENTENCE):
        torch.autograd.grad(gradient.square().sum(), similarity)
