"""marginals="classes": every class counts the same, whatever its size (mathematics §11)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tricouple as tc
from conftest import Batch, classes, draw
from reference import class_target, dense_neg_mmiot, relative_error, with_gradients
from tricouple.relations import Identities, by_class

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
@pytest.mark.parametrize("shaping", ["log_sigmoid", "exponential", "hinge"])
def test_other_shapings_equal_the_dense_loss(name, shaping):
    batch = BATCHES[name].to(torch.float64)
    options = {"temperature": 0.5, "epsilon": 0.4, "marginals": "classes"}
    criterion = tc.NegMMIOT(**options, shaping=shaping, kernel_tol=1e-10)
    psi = tc.shaping.resolve(shaping)
    found = with_gradients(batch.loss(criterion), batch.leaves)
    wanted = with_gradients(batch.dense(dense_neg_mmiot, **options, shaping=psi), batch.leaves)
    assert relative_error(found[0], wanted[0]) <= 1e-7
    assert relative_error(found[1], wanted[1]) <= 1e-6


@EVERY
@pytest.mark.parametrize("gradient", ["envelope", "implicit"])
def test_envelope_is_exact(plain_loss, name, gradient):
    # P̃ is feasible, so Danskin's rule is the gradient of the converged loss for any class sizes.
    batch = BATCHES[name].to(torch.float64)
    options = plain_loss.soft | {"marginals": "classes", "n_iters": 3000}
    unrolled = with_gradients(batch.loss(plain_loss.criterion(**options)), batch.leaves)[1]
    found = plain_loss.criterion(**options, gradient=gradient)
    assert relative_error(with_gradients(batch.loss(found), batch.leaves)[1], unrolled) <= 1e-6


@given(
    st.lists(st.integers(0, 4), min_size=3, max_size=12),
    st.one_of(st.none(), st.lists(st.integers(0, 5), min_size=2, max_size=9)),
)
def test_every_class_has_the_same_mass_on_every_axis(ids, ref_ids):
    anchors = torch.tensor(ids)
    references = anchors if ref_ids is None else torch.tensor(ref_ids)
    relation = by_class(Identities(anchors, references, within=ref_ids is None))
    if relation.n_triplets == 0:
        return
    dense = class_target(anchors, None if ref_ids is None else references)
    assert float(dense.sum()) == pytest.approx(1)
    target = relation.triplets()
    assert relative_error(target.positives.dense(), dense.sum(2)) <= 1e-13
    assert relative_error(target.negatives.dense(), dense.sum(1)) <= 1e-13
    support = dense[dense > 0]
    assert target.entropy == pytest.approx(-float((support * support.log()).sum()), abs=1e-12)
    for axis, (codes, mass) in enumerate(
        zip((anchors, references, references), target.marginals, strict=True)
    ):
        sums = torch.stack([mass[codes == code].sum() for code in codes.unique()])
        taken = sums[sums > 0]
        assert relative_error(taken, torch.full_like(taken, 1 / len(taken))) <= 1e-12
        for code in codes.unique():  # evenly over the samples
            own = mass[(codes == code) & (mass > 0)]
            assert axis == 0 or len(own) in (0, int((codes == code).sum()))
            assert len(own) == 0 or relative_error(own, own.mean().expand(len(own))) <= 1e-12


def test_singletons_are_negatives_of_full_weight_and_nothing_else():
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    anchors, positives, negatives = by_class(Identities.within_one_set(labels)).triplets().marginals
    assert anchors[5] == positives[5] == 0
    assert float(negatives[5]) == pytest.approx(1 / 3)  # as much as the three of class 0 together
    assert float(negatives[:3].sum()) == pytest.approx(1 / 3)


def test_balanced_classes_change_nothing(plain_loss, settings):
    batch = settings["balanced"]
    found, wanted = (
        batch.loss(plain_loss.criterion(**plain_loss.soft, marginals=marginals))
        for marginals in ("classes", "uniform")
    )
    assert relative_error(found, wanted) <= 1e-12


def test_all_negatives_of_push_pull_have_class_marginals_too():
    # With every anchor's class: a singleton repels as a whole class does.
    labels, x = torch.tensor([0, 0, 0, 1, 1, 2]), draw(6, 0)
    target = by_class(Identities.within_one_set(labels)).negatives()
    wanted = torch.tensor([1 / 9] * 3 + [1 / 6] * 2 + [1 / 3], dtype=torch.float64)
    for mass in target.pairs.marginals:
        assert relative_error(mass, wanted) <= 1e-13
    criterion = tc.PushPull(0.5, 0.4, 0.4, marginals="classes", negatives="all", n_iters=3000)
    x.requires_grad_()
    (unrolled,) = torch.autograd.grad(criterion(x, labels), x)
    criterion.sweeps = tc.ot.engine.Sweeps(3000, None, "envelope", "classes")
    assert relative_error(torch.autograd.grad(criterion(x, labels), x)[0], unrolled) <= 1e-6


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
