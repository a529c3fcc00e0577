"""marginals="classes": every class counts the same, whatever its size (mathematics §11)."""

import math

import pytest
import torch

import tricouple as tc
from conftest import Batch, classes, draw
from reference import class_target, kl_to, relative_error, with_gradients

BATCHES = {
    "long tail": Batch(draw(12, 1), classes(6, 3, 2, 1)),
    "one class and others": Batch(draw(7, 2), classes(4, 1, 1, 1)),
    "views": Batch(draw(8, 3), torch.arange(4).repeat(2)),
    "captions": Batch(
        draw(5, 22), torch.tensor([3, 1, 4, 9, 5]), draw(9, 23),
        torch.tensor([1, 3, 1, 4, 5, 3, 3, 9, 9]),
    ),
    "unmatched": Batch(
        draw(5, 24), torch.tensor([3, 1, 8, 3, 5]), draw(6, 25), torch.tensor([1, 3, 1, 5, 3, 0])
    ),
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", BATCHES)


@EVERY
@pytest.mark.parametrize("sharpness", ["sharp", "soft"])
def test_loss_equals_dense_loss(loss, name, sharpness):
    batch = BATCHES[name].to(torch.float64)
    options = getattr(loss, sharpness) | {"marginals": "classes", "n_iters": 7}
    found = with_gradients(batch.loss(loss.criterion(**options)), batch.leaves)
    wanted = with_gradients(loss.dense(batch, **options), batch.leaves)
    assert relative_error(found[0], wanted[0]) <= 1e-12
    assert relative_error(found[1], wanted[1]) <= 1e-11


@EVERY
@pytest.mark.parametrize("gradient", ["envelope", "implicit"])
def test_envelope_is_exact(plain_loss, name, gradient):
    # P̃ is feasible, so Danskin's rule is the gradient of the converged loss for any class sizes.
    batch = BATCHES[name].to(torch.float64)
    options = plain_loss.soft | {"marginals": "classes", "n_iters": 3000}
    unrolled = with_gradients(batch.loss(plain_loss.criterion(**options)), batch.leaves)[1]
    found = plain_loss.criterion(**options, gradient=gradient)
    assert relative_error(with_gradients(batch.loss(found), batch.leaves)[1], unrolled) <= 1e-6


def test_balanced_classes_change_nothing(plain_loss, settings):
    batch = settings["balanced"]
    found, wanted = (
        batch.loss(plain_loss.criterion(**plain_loss.soft, marginals=marginals))
        for marginals in ("classes", "uniform")
    )
    assert relative_error(found, wanted) <= 1e-12


def test_all_negatives_of_push_pull_have_class_marginals_too():
    # P̃ is feasible, so the envelope is exact at convergence.
    labels, x = torch.tensor([0, 0, 0, 1, 1, 2]), draw(6, 0).requires_grad_()
    options = {"marginals": "classes", "negatives": "all", "n_iters": 3000}
    unrolled, envelope = (
        torch.autograd.grad(tc.PushPull(0.5, 0.4, 0.4, gradient=rule, **options)(x, labels), x)[0]
        for rule in ("unrolled", "envelope")
    )
    assert relative_error(envelope, unrolled) <= 1e-6


def test_singletons_are_negatives_of_full_weight_and_nothing_else():
    # A converged plan with class marginals: a singleton has the mass of a class, as negative alone.
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    x = torch.ones(6, 2, dtype=torch.float64)
    loss = tc.NegMMIOT(0.5, 0.4, marginals="classes", n_iters=200)(x, labels)
    third = torch.tensor([1 / 9] * 3 + [1 / 6] * 2 + [1 / 3], dtype=torch.float64)
    first = torch.tensor([1 / 6] * 3 + [1 / 4] * 2 + [0.0], dtype=torch.float64)
    s = torch.ones(6, 6, dtype=torch.float64)
    plan = tc.ot.triplet_sinkhorn(s, 0.5, 0.4, n_iters=200, marginals=(first, first, third))
    target = class_target(labels)
    assert float(loss) == pytest.approx(float(kl_to(target, plan.dense().log())), rel=1e-9)


def test_triplets_and_pairs_have_no_classes(plain_loss):
    criterion = plain_loss.criterion(marginals="classes")
    for indices in (([0], [1], [2]), ([0], [1], [0], [2])):
        with pytest.raises(ValueError, match=r'marginals="classes" needs classes: pass labels'):
            criterion(draw(6, 0), indices_tuple=indices)


def test_streamed_and_stored_agree():
    labels = torch.arange(90) % 7 % 5
    x = draw(90, 0).float()
    losses = [
        tc.NegMMIOT(marginals="classes", memory=memory)(x, labels)
        for memory in ("matrices", "streamed")
    ]
    assert math.isfinite(losses[0])
    assert relative_error(losses[1], losses[0]) <= 1e-5
