"""Claims about one coupling alone; accuracy of all is in tests/dense."""

import math

import pytest
import torch

import tricouple as tc
from conftest import draw
from reference import (
    admissible_triplets,
    class_target,
    cosine,
    dense_plan,
    kl_to,
    pair_cost,
    pairs_of,
    relative_error,
    triplet_cost,
    uniform_on,
    with_gradients,
)

# --- Claims about `NegMMIOT` alone ---------------------------------------------------------------


def test_target_marginals_drop_samples_without_a_positive(settings):
    batch = settings["singleton"]
    target = uniform_on(admissible_triplets(batch.labels), (9, 9, 9))
    own = target.sum((1, 2)), target.sum((0, 2)), target.sum((0, 1))
    lonely = (batch.labels[:, None] == batch.labels).sum(1) == 1
    similarity = cosine(batch.embeddings).detach()
    plan = tc.ot.triplet_sinkhorn(similarity, 0.5, 0.4, n_iters=9, marginals=own).dense()
    assert (plan[lonely] == 0).all()
    assert (plan[:, lonely] == 0).all()
    assert (plan[:, :, lonely].sum((0, 1)) > 0).all()
    wanted = dense_plan(triplet_cost(similarity, 0.5, True), 0.4, 9, own)
    assert relative_error(plan, wanted) <= 1e-12


def test_a_set_against_itself_is_not_within(settings):
    # Across, an anchor may meet its own copy among the references.
    batch = settings["balanced"]
    rows, labels = batch.embeddings, batch.labels
    criterion = tc.NegMMIOT(temperature=0.5, epsilon=0.4)
    across = criterion(rows, labels, ref_emb=rows, ref_labels=labels)
    wanted = tc.ot.dense.neg_mmiot(rows, labels, rows, labels, temperature=0.5, epsilon=0.4)
    assert relative_error(across, wanted) <= 1e-12
    gradient = torch.autograd.grad(across, rows)[0]
    assert relative_error(gradient, torch.autograd.grad(wanted, rows)[0]) <= 1e-12


@pytest.mark.parametrize("n_views", [2, 3])
def test_pair_views_gives_views_of_one_instance_one_identity(n_views):
    views = [torch.randn(4, 3, generator=torch.Generator().manual_seed(v)) for v in range(n_views)]
    embeddings, identities = tc.pair_views(*views)
    assert embeddings.shape == (4 * n_views, 3)
    assert not identities.is_floating_point()
    for view in views:
        for row, instance in zip(view, identities.unique(), strict=True):
            group = embeddings[identities == instance]
            assert len(group) == n_views
            assert (group == row).all(1).any()


def test_gradient_reaches_every_view(settings):
    rows = settings["two_views"].embeddings.detach()
    views = [view.clone().requires_grad_() for view in rows.chunk(2)]
    loss = tc.NegMMIOT()(*tc.pair_views(*views))
    (joint,) = torch.autograd.grad(
        tc.NegMMIOT()(rows.requires_grad_(), torch.arange(5).repeat(2)), rows
    )
    assert relative_error(torch.cat(torch.autograd.grad(loss, views)), joint) <= 1e-12


def test_one_listed_triplet_with_its_own_marginals_is_certain():
    # The only plan with these marginals is the target itself.
    triplet = tuple(torch.tensor([index]) for index in (0, 1, 2))
    embeddings = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    loss = tc.NegMMIOT(marginals="target")(embeddings, indices_tuple=triplet)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert abs(float(loss.detach())) <= 1e-12
    assert gradient.norm() <= 1e-10


# --- Claims about `PushPull` alone ---------------------------------------------------------------


def test_halves_exchange_when_positives_and_negatives_do(settings):
    # Anti-transport of s is transport of −s: negating the references swaps attraction, repulsion.
    batch = settings["triplets_across"]
    anchors, positives, negatives = batch.triplets
    criterion = tc.PushPull(temperature=0.5, epsilon_pos=0.4, epsilon_neg=0.4)
    mirrored = criterion(
        batch.embeddings, indices_tuple=(anchors, negatives, positives), ref_emb=-batch.ref_emb
    )
    assert relative_error(mirrored, batch.loss(criterion)) <= 1e-12


def test_loss_falls_as_classes_separate():
    angles = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    criterion = tc.PushPull(temperature=0.5, epsilon_pos=0.5, epsilon_neg=0.5)

    def value(spread):
        turned = angles * spread
        return float(criterion(torch.stack([turned.cos(), turned.sin()], 1), labels))

    values = [value(spread) for spread in torch.linspace(0, math.pi, 9).tolist()]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0] - 1


# --- Claims about `IOT` alone --------------------------------------------------------------------


def own_plan(batch, epsilon, n_iters=10):
    cost = pair_cost(1 - cosine(batch.embeddings, batch.ref_emb), batch.ref_emb is None).detach()
    return cost, tc.ot.sinkhorn(cost, epsilon, n_iters=n_iters).dense()


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


# --- marginals="classes" -------------------------------------------------------------------------


def test_balanced_classes_change_nothing(plain_loss, settings):
    batch = settings["balanced"]
    found, wanted = (
        batch.loss(plain_loss.criterion(**plain_loss.soft, marginals=marginals))
        for marginals in ("classes", "uniform")
    )
    assert relative_error(found, wanted) <= 1e-12


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
