"""Claims about `NegMMIOT` alone: closed forms, its plan, its calling conventions."""

import math

import pytest
import torch

import tricouple as tc
from reference import (
    admissible_triplets,
    cosine,
    dense_plan,
    relative_error,
    triplet_cost,
    uniform_on,
)


def simplex(n_classes: int, per_class: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Collapsed classes at the vertices of a regular simplex: α = 1, β = −1/(K−1)."""
    corners = torch.eye(n_classes, dtype=torch.float64) - 1 / n_classes
    labels = torch.arange(n_classes).repeat(per_class)
    return corners[labels], labels


@pytest.mark.parametrize(("n_classes", "per_class"), [(2, 2), (2, 5), (4, 3), (10, 2)])
@pytest.mark.parametrize("sharpness", [0.5, 4.0, 100.0])
def test_loss_at_the_simplex_is_the_closed_form(n_classes, per_class, sharpness):
    # Mathematics §6: triplets of A have cost −Δ/τ, their mirror images Δ/τ, all others 0.
    embeddings, labels = simplex(n_classes, per_class)
    n = n_classes * per_class
    admissible = n * (per_class - 1) * (n - per_class)
    rest = n * (n - 1) * (n - 2) - 2 * admissible
    exponent = sharpness * (1 + 1 / (n_classes - 1))
    wanted = math.log1p(math.exp(-2 * exponent) + rest / admissible * math.exp(-exponent))
    loss = tc.NegMMIOT(temperature=0.5, epsilon=2 / sharpness)(embeddings, labels)
    assert float(loss) == pytest.approx(wanted, rel=1e-11, abs=1e-12)


def test_identical_embeddings_give_the_logarithm_of_a_count():
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    loss = tc.NegMMIOT()(torch.ones(6, 3, dtype=torch.float64), labels)
    assert float(loss) == pytest.approx(math.log(6 * 5 * 4 / len(admissible_triplets(labels))))
    across = tc.NegMMIOT()(
        torch.ones(3, 2, dtype=torch.float64),
        torch.tensor([0, 1, 2]),
        ref_emb=torch.ones(3, 2, dtype=torch.float64),
        ref_labels=torch.tensor([0, 1, 2]),
    )
    assert float(across) == pytest.approx(math.log(3 * 3 * 2 / 6))


def test_temperature_and_epsilon_count_through_their_product_alone(batch):
    wide = batch.loss(tc.NegMMIOT(temperature=0.8, epsilon=0.1))
    narrow = batch.loss(tc.NegMMIOT(temperature=0.1, epsilon=0.8))
    assert relative_error(wide, narrow) <= 1e-12


@pytest.mark.parametrize("setting", ["unbalanced", "across_repeated"])
def test_loss_is_the_divergence_from_the_triplet_plan(settings, setting):
    batch = settings[setting]
    within = batch.ref_emb is None
    similarity = cosine(batch.embeddings, batch.ref_emb).detach()
    plan = tc.ot.triplet_sinkhorn(similarity, 0.3, 0.5, n_iters=10, within=within).dense()
    target = uniform_on(admissible_triplets(batch.labels, batch.ref_labels), tuple(plan.shape))
    support = target > 0
    wanted = (target[support] * (target[support] / plan[support]).log()).sum()
    loss = batch.loss(tc.NegMMIOT(temperature=0.3, epsilon=0.5))
    assert relative_error(loss, wanted) <= 1e-12


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


def test_loss_across_is_one_direction(settings):
    batch = settings["across_repeated"]
    options = {"temperature": 0.5, "epsilon": 0.4}
    criterion = tc.NegMMIOT(**options)
    there = batch.loss(criterion)
    anchors, anchor_ids, references, ids = (
        batch.ref_emb, batch.ref_labels, batch.embeddings, batch.labels
    )  # fmt: skip
    back = criterion(anchors, anchor_ids, ref_emb=references, ref_labels=ids)
    swapped = tc.ot.dense.neg_mmiot(anchors, anchor_ids, references, ids, **options)
    assert relative_error(back, swapped) <= 1e-12
    assert relative_error(there, back) > 1e-3


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
