"""What losses leave as it was, and gradients of rows of any length."""

import pytest
import torch

import tricouple as tc


@pytest.mark.parametrize("size", [6, 300])
def test_a_loss_changes_neither_its_arguments_nor_the_state_of_torch(size):
    rows = torch.randn(size, 3, requires_grad=True)
    labels = torch.arange(size) % 3
    before = rows.detach().clone(), labels.clone(), torch.get_rng_state()
    threads, enabled = torch.get_num_threads(), torch.is_grad_enabled()
    for criterion in (tc.NegMMIOT(), tc.PushPull(), tc.IOT(), tc.InfoNCE()):
        criterion(rows, labels).backward()
    assert torch.equal(rows, before[0])
    assert torch.equal(labels, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, enabled)


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE])
def test_a_loss_made_under_inference_mode_can_be_trained_with(make):
    rows, labels = torch.randn(70, 3), torch.arange(70) % 3
    with torch.inference_mode():
        criterion = make()
        value = criterion(rows, labels)
    leaf = rows.clone().requires_grad_()
    loss = criterion(leaf, labels)
    loss.backward()
    assert torch.equal(loss, value.clone())
    assert leaf.grad.isfinite().all()


def test_gradients_can_be_changed_in_place_and_summed():
    rows, labels = torch.randn(9, 3, requires_grad=True), torch.arange(9) % 3
    criterion = tc.NegMMIOT()
    criterion(rows, labels).backward()
    once = rows.grad.clone()
    criterion(rows, labels).backward()
    torch.testing.assert_close(rows.grad, 2 * once)
    assert float(rows.grad.zero_().norm()) == 0.0


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e3])
def test_the_gradient_is_divided_by_the_length_of_its_row(length):
    rows, labels = torch.randn(9, 3, dtype=torch.float64), torch.arange(9) % 3
    slopes = []
    for factor in (1.0, length):
        leaf = (rows * factor).requires_grad_()
        slopes.append(torch.autograd.grad(tc.NegMMIOT()(leaf, labels), leaf)[0])
    torch.testing.assert_close(slopes[1] * length, slopes[0])
