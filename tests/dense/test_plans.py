"""``ot.sinkhorn`` and ``ot.triplet_sinkhorn`` agree with the dense reference."""

import pytest
import torch
from torch import Tensor

import tricouple as tc
from batches import draw
from reference import triplet_cost
from tricouple.ot import dense
from tricouple.shaping import SHAPINGS, Hinge

WITHOUT_C = pytest.mark.without_c
either_dtype = pytest.mark.parametrize(
    ("dtype", "limit"),
    [pytest.param(torch.float64, 1e-12, marks=WITHOUT_C), (torch.float32, 1e-5)],
    ids=["float64", "float32"],
)


def masses(n: int, kind: str, seed: int) -> Tensor:
    """Of n samples: equal, all different, or some of them zero."""
    if kind == "uniform":
        return torch.full((n,), 1 / n, dtype=torch.float64)
    drawn = 1.5 + draw(n, seed=seed).tanh()
    if kind == "zeros":
        drawn[seed % n] = drawn[(seed + 2) % n] = 0.0
    return drawn / drawn.sum()


def cotangents(sizes: tuple[int, ...], balanced: bool) -> list[Tensor]:
    """Weights of the potentials of each axis: with unequal totals, or each with the total zero."""
    drawn = [draw(size, seed=7 + axis) for axis, size in enumerate(sizes)]
    return [part - part.mean() for part in drawn] if balanced else drawn


def pulled(potentials: tuple[Tensor, ...], weights: list[Tensor], imposed, leaf: Tensor):
    """⟨weights, potentials⟩ of samples with mass, and its gradient."""
    parts = zip(potentials, weights, imposed, strict=True)
    value = sum((w * torch.where(mass > 0, p.double(), 0.0)).sum() for p, w, mass in parts)
    (gradient,) = torch.autograd.grad(value, leaf)
    return torch.cat([value.detach()[None], gradient.double().flatten()])


def assert_close(found: Tensor, wanted: Tensor, limit: float) -> None:
    assert float((found - wanted).norm() / wanted.norm()) < limit


@either_dtype
@pytest.mark.parametrize("balanced", [True, False], ids=["zero totals", "unequal totals"])
@pytest.mark.parametrize("kind", ["uniform", "different", "zeros"])
@pytest.mark.parametrize("anti", [False, True], ids=["transport", "anti-transport"])
@pytest.mark.parametrize("forbidden", [False, True], ids=["all allowed", "some forbidden"])
@pytest.mark.parametrize("epsilon", [0.02, 0.5])
def test_pair_potentials(epsilon, forbidden, anti, kind, balanced, dtype, limit):
    n, m = 7, 9
    drawn = draw(n, m)
    if forbidden:
        drawn[torch.arange(n), torch.arange(n)] = torch.inf
        drawn[0, 5] = torch.inf
    imposed = masses(n, kind, 1), masses(m, kind, 2)
    weights = cotangents((n, m), balanced)
    leaf = drawn.clone().requires_grad_()
    potentials = dense.sinkhorn(leaf, epsilon, imposed, 6, anti=anti)
    wanted = pulled(potentials, weights, imposed, leaf)
    leaf = drawn.to(dtype).requires_grad_()
    rows, columns = imposed
    options = {"row_marginal": rows, "column_marginal": columns, "n_iters": 6, "anti": anti}
    plan = tc.ot.sinkhorn(leaf, epsilon, **options)
    assert_close(pulled(plan.potentials, weights, imposed, leaf), wanted, limit / min(1, epsilon))
    signed = -drawn if anti else drawn
    signed = torch.where(drawn == torch.inf, drawn, signed)
    entries = ((potentials[0][:, None] + potentials[1] - signed) / epsilon).exp().detach()
    assert plan.dense().dtype == dtype
    assert_close(plan.dense().detach().double(), entries, limit)
    assert plan.n_iters == 6
    for found, axis in zip(plan.marginals(), (1, 0), strict=True):
        assert_close(found.detach().double(), entries.sum(axis), limit)


@WITHOUT_C
@pytest.mark.parametrize("gradient", ["implicit", "envelope"])
def test_converged_pair_potentials(gradient):
    """The envelope is the gradient of ⟨masses, potentials⟩, the dual value; implicit is of any."""
    imposed = masses(6, "different", 1), masses(6, "zeros", 2)
    weights = [5 * mass for mass in imposed]
    if gradient == "implicit":
        weights = cotangents((6, 6), balanced=True)
        weights[1] = weights[1] * (imposed[1] > 0)
        weights[0] = weights[0] + weights[1].sum() / 6  # equal totals, or constants would count
    drawn = draw(6, 6)
    leaf = drawn.clone().requires_grad_()
    wanted = pulled(dense.sinkhorn(leaf, 1.0, imposed, 200), weights, imposed, leaf)
    leaf = drawn.clone().requires_grad_()
    rows, columns = imposed
    plan = tc.ot.sinkhorn(
        leaf, 1.0, row_marginal=rows, column_marginal=columns, n_iters=200, gradient=gradient
    )
    assert plan.converged
    assert_close(pulled(plan.potentials, weights, imposed, leaf), wanted, 1e-9)


@either_dtype
@pytest.mark.parametrize("balanced", [True, False], ids=["zero totals", "unequal totals"])
@pytest.mark.parametrize("kind", ["uniform", "different", "zeros"])
@pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
@pytest.mark.parametrize(
    ("shaping", "temperature"),
    [
        ("linear", 1.0),
        ("linear", 0.02),
        ("log_sigmoid", 0.5),
        ("hinge", 0.5),
        (Hinge(0.2), 0.1),
        ("squared_hinge", 1.0),
        (SHAPINGS["exponential"], 1.0),
    ],
)
def test_triplet_potentials(shaping, temperature, within, kind, balanced, dtype, limit):
    n, m, epsilon = 7, 7 if within else 9, 0.3
    similarity = (draw(n, m) / 3).clamp(-1, 1)
    imposed = [masses(size, kind, axis) for axis, size in enumerate((n, m, m))]
    weights = cotangents((n, m, m), balanced)
    leaf = similarity.clone().requires_grad_()
    cost = triplet_cost(leaf, temperature, within, shaping)
    potentials = dense.sinkhorn(cost, epsilon, imposed, 5)
    wanted = pulled(potentials, weights, imposed, leaf)
    own = {"kernel_tol": 1e-9 if dtype == torch.float64 else 1e-6}
    options = {"shaping": shaping, "within": within, "n_iters": 5, "marginals": tuple(imposed)}
    leaf = similarity.to(dtype).requires_grad_()
    plan = tc.ot.triplet_sinkhorn(leaf, temperature, epsilon, **options, **own)
    if shaping == "log_sigmoid":
        limit = max(limit, 1e-8)
    limit = limit / min(1, temperature * epsilon)
    assert_close(pulled(plan.potentials, weights, imposed, leaf), wanted, limit)
    f, g, h = (potential.detach() for potential in potentials)
    entries = ((f[:, None, None] + g[:, None] + h - cost.detach()) / epsilon).exp()
    assert plan.dense().dtype == dtype
    assert_close(plan.dense().detach().double(), entries, limit)
    for axis, found in enumerate(plan.marginals()):
        others = [other for other in range(3) if other != axis]
        assert_close(found.detach().double(), entries.sum(others), limit)
    for first, second in ((0, 1), (0, 2), (1, 2), (2, 0)):
        (left,) = {0, 1, 2} - {first, second}
        both = entries.sum(left) if first < second else entries.sum(left).T
        found = plan.pair_marginal(first, second)
        assert found.dtype == dtype
        assert_close(found.double(), both, limit)


@WITHOUT_C
@pytest.mark.parametrize("shaping", ["linear", "log_sigmoid", "hinge"])
@pytest.mark.parametrize("gradient", ["implicit", "envelope"])
def test_converged_triplet_potentials(gradient, shaping):
    similarity, epsilon = (draw(6, 6) / 3).clamp(-1, 1), 1.0
    imposed = [masses(6, "different", axis) for axis in range(3)]
    weights = [5 * mass for mass in imposed]
    if gradient == "implicit":
        weights = [part + 0.2 for part in cotangents((6, 6, 6), balanced=True)]  # equal totals
    leaf = similarity.clone().requires_grad_()
    cost = triplet_cost(leaf, 1.0, True, shaping)
    potentials = dense.sinkhorn(cost, epsilon, imposed, 60)
    wanted = pulled(potentials, weights, imposed, leaf)
    leaf = similarity.clone().requires_grad_()
    options = {"shaping": shaping, "n_iters": 60, "gradient": gradient, "kernel_tol": 1e-10}
    plan = tc.ot.triplet_sinkhorn(leaf, 1.0, epsilon, marginals=tuple(imposed), **options)
    assert plan.converged
    assert_close(pulled(plan.potentials, weights, imposed, leaf), wanted, 1e-8)
