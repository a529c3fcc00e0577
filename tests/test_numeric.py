"""What the couplings do to the process around them, and what they must leave as it was."""

import pytest
import torch

import tricouple as tc
from tricouple.memory import empty_matrix
from tricouple.numeric import cosines, expectation, unit_rows


@pytest.mark.parametrize("shape", [(3, 5), (1100, 1000)])
def test_empty_matrix_is_an_ordinary_tensor_even_under_inference_mode(shape):
    like = torch.zeros(1, dtype=torch.float64)
    with torch.inference_mode():
        matrix = empty_matrix(like, *shape)
    assert matrix.shape == shape
    assert matrix.dtype == torch.float64
    assert not matrix.is_inference()
    assert float(matrix.fill_(2.0).sum()) == 2.0 * shape[0] * shape[1]


@pytest.mark.parametrize("size", [6, 1030])
def test_cosines_of_a_set_with_itself_have_the_gradient_of_the_product(size):
    x = torch.randn(size, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(size, size, dtype=torch.float64)
    ours = torch.autograd.grad((weights * cosines(x, x)).sum(), x)[0]
    wanted = torch.autograd.grad((weights * (x @ x.T)).sum(), x)[0]
    assert torch.allclose(ours, wanted, rtol=1e-12, atol=1e-12)


def test_gradient_of_a_similarity_leaf_can_be_changed_in_place():
    z = torch.nn.functional.normalize(torch.randn(9, 3, dtype=torch.float64), dim=1)
    similarity = (z @ z.T).requires_grad_()
    plan = tc.ot.triplet_sinkhorn(similarity, 1.0, 0.5)
    plan.potentials[0].square().sum().backward()
    assert similarity.grad.norm() > 0
    assert float(similarity.grad.zero_().norm()) == 0.0


def test_expectation_leaves_out_what_has_no_mass():
    masses = torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64)
    values = torch.tensor([2.0, -torch.inf, 4.0], dtype=torch.float64, requires_grad=True)
    result = expectation(masses, values)
    result.backward()
    assert float(result.detach()) == 3.5
    assert torch.equal(values.grad, masses)


def test_unit_rows_have_the_gradient_of_the_quotient():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)

    def unit(values):
        return unit_rows(values, torch.linalg.vector_norm(values.detach(), dim=1, keepdim=True))

    assert torch.allclose(torch.linalg.vector_norm(unit(x), dim=1), x.new_ones(5))
    assert torch.autograd.gradcheck(unit, x)
