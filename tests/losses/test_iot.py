"""Claims about `IOT` alone: positives only, and the uniformity of what remains."""

import math

import pytest
import torch

import tricouple as tc
from reference import cosine, pair_cost, pairs_of, relative_error, uniform_on, with_gradients


def own_plan(batch, epsilon, n_iters=10):
    cost = pair_cost(1 - cosine(batch.embeddings, batch.ref_emb), batch.ref_emb is None).detach()
    return cost, tc.ot.sinkhorn(cost, epsilon, n_iters=n_iters).dense()


@pytest.mark.parametrize("setting", ["singleton", "across_unmatched"])
def test_loss_is_the_divergence_from_the_plan_of_one_minus_cosine(settings, setting):
    batch = settings[setting]
    cost, plan = own_plan(batch, 0.3)
    target = uniform_on(pairs_of(batch.labels, batch.ref_labels, same=True), tuple(cost.shape))
    support = target > 0
    wanted = (target[support] * (target[support] / plan[support]).log()).sum()
    assert relative_error(batch.loss(tc.IOT(epsilon=0.3)), wanted) <= 1e-12


def test_negatives_of_listed_triplets_are_ignored(settings):
    batch = settings["triplets_within"]
    anchors, positives, negatives = batch.triplets
    rows = torch.stack(batch.triplets, 1).tolist()
    others = torch.tensor([next(k for k in range(7, -1, -1) if k not in row) for row in rows])
    assert not torch.equal(others, negatives)
    criterion = tc.IOT(uniformity=1.0)
    changed = criterion(batch.embeddings, indices_tuple=(anchors, positives, others))
    assert relative_error(changed, batch.loss(criterion)) <= 1e-14


def test_two_collapsed_classes_are_no_better_apart_than_near():
    # The paper's criticism: IOT pays for positives alone, so distance hardly matters when sharp.
    labels = torch.tensor([0, 0, 1, 1])

    def value(angle):
        angles = torch.tensor([0.0, 0.0, angle, angle], dtype=torch.float64)
        return float(tc.IOT(epsilon=0.01)(torch.stack([angles.cos(), angles.sin()], 1), labels))

    assert value(1.0) == pytest.approx(value(math.pi), abs=1e-6)


def test_uniformity_is_the_divergence_of_the_averaged_plan(settings):
    batch = settings["unbalanced"]
    cost, plan = own_plan(batch, 0.3)
    target = uniform_on(pairs_of(batch.labels, same=True), tuple(cost.shape))
    others = cost.isfinite() & (target == 0)
    averaged = torch.where(others, plan[others].mean(), plan)
    allowed = cost.isfinite()
    term = (averaged[allowed] * (averaged[allowed] / plan[allowed]).log()).sum()
    plain = batch.loss(tc.IOT(epsilon=0.3))
    weighted = batch.loss(tc.IOT(epsilon=0.3, uniformity=1.7))
    assert term > 0
    assert relative_error(weighted - plain, 1.7 * term) <= 1e-11


def test_uniformity_is_linear_in_its_weight(batch):
    plain, once, twice = (batch.loss(tc.IOT(uniformity=weight)) for weight in (0.0, 1.0, 2.0))
    assert relative_error(twice - once, once - plain) <= 1e-10


def test_uniformity_vanishes_on_a_flat_plan():
    embeddings = torch.ones(6, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    flat = tc.IOT(uniformity=5.0)(embeddings, labels)
    assert relative_error(flat, tc.IOT()(embeddings, labels)) <= 1e-12
    # 30 pairs share the plan, 6 of them the target
    assert float(flat.detach()) == pytest.approx(math.log(30 / 6))


@pytest.mark.parametrize("mode", ["unrolled", "implicit"])
def test_uniformity_gradient_is_that_of_finite_differences(settings, mode):
    batch = settings["singleton"]
    criterion = tc.IOT(epsilon=0.4, uniformity=2.0, n_iters=2000, tol=1e-13, gradient=mode)
    _, gradient = with_gradients(batch.loss(criterion), batch.leaves)
    step = torch.linspace(-1, 1, gradient.numel(), dtype=torch.float64)
    moved = step.reshape(batch.embeddings.shape) * 1e-5
    rows = batch.embeddings.detach()
    slope = (criterion(rows + moved, batch.labels) - criterion(rows - moved, batch.labels)) / 2e-5
    assert float(gradient @ step) == pytest.approx(float(slope), rel=1e-6)


def test_uniformity_with_target_marginals_is_finite(batch):
    criterion = tc.IOT(epsilon=0.4, uniformity=1.0, marginals="target")
    value, gradient = with_gradients(batch.loss(criterion), batch.leaves)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_uniformity_does_not_go_with_the_envelope():
    with pytest.raises(ValueError, match=r"uniformity=0\.2.*gradient"):
        tc.IOT(uniformity=0.2, gradient="envelope")
