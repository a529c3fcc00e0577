"""What losses of all kinds do and leave alone; accuracy is in tests/dense."""

from dataclasses import replace

import pytest
import torch

import tricouple as tc
from reference import relative_error, with_gradients

# --- What every loss with a coupling must satisfy, in every setting; accuracy is in tests/dense ---


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_input_is_computed_in_float32(loss, batch, dtype):
    half = batch.to(dtype)
    single = half.to(torch.float32)
    criterion = loss()
    value, gradient = with_gradients(half.loss(criterion), half.leaves)
    wanted, wanted_gradient = with_gradients(single.loss(criterion), single.leaves)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    assert torch.equal(value, wanted)
    assert relative_error(gradient, wanted_gradient) <= torch.finfo(dtype).eps


def test_arguments_may_be_given_by_position(loss, batch):
    criterion = loss()
    rest = batch.labels, batch.triplets, batch.ref_emb, batch.ref_labels
    assert torch.equal(criterion(batch.embeddings, *rest), batch.loss(criterion))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_integer_type_are_accepted(loss, settings, dtype):
    batch = settings["unbalanced"]
    labels = (batch.labels - batch.labels.min()).to(dtype)
    criterion = loss()
    assert torch.equal(criterion(batch.embeddings, labels), batch.loss(criterion))


def test_embeddings_without_gradient_give_the_same_value(loss, batch):
    criterion = loss()
    with torch.no_grad():
        value = batch.loss(criterion)
    assert not value.requires_grad
    assert torch.equal(value, batch.loss(criterion).detach())


def test_gradient_reaches_references_alone(loss, settings):
    batch = settings["across_repeated"]
    criterion = loss()
    both = torch.autograd.grad(batch.loss(criterion), batch.ref_emb)[0]
    frozen = replace(batch, embeddings=batch.embeddings.detach()).loss(criterion)
    assert relative_error(torch.autograd.grad(frozen, batch.ref_emb)[0], both) <= 1e-14


# --- What losses leave as it was, and gradients of rows of any length ----------------------------


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
