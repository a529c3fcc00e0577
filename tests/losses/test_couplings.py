"""Claims about one coupling alone; accuracy of all is in tests/dense."""

import pytest
import torch
from torch import nn

import tricouple as tc
from conftest import draw
from reference import dense_iot, relative_error, with_gradients

# --- Claims about `NegMMIOT` alone ---------------------------------------------------------------


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


def test_one_listed_triplet_with_its_own_marginals_is_certain():
    # The only plan with these marginals is the target itself.
    triplet = tuple(torch.tensor([index]) for index in (0, 1, 2))
    embeddings = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    loss = tc.NegMMIOT(marginals="target")(embeddings, indices_tuple=triplet)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert abs(float(loss.detach())) <= 1e-12
    assert gradient.norm() <= 1e-10


# --- Claims about `IOT` alone --------------------------------------------------------------------


@pytest.mark.parametrize("marginals", ["uniform", "target"])
def test_uniformity_is_that_of_the_dense_plan(batch, marginals):
    options = {"epsilon": 0.3, "uniformity": 1.7, "marginals": marginals}
    found = with_gradients(batch.loss(tc.IOT(**options)), batch.leaves)
    wanted = with_gradients(batch.dense(dense_iot, **options), batch.leaves)
    assert relative_error(found[0], wanted[0]) <= 1e-12
    assert relative_error(found[1], wanted[1]) <= 1e-11


def test_implicit_uniformity_gradient_is_that_of_finite_differences(settings):
    batch = settings["singleton"]
    criterion = tc.IOT(epsilon=0.4, uniformity=2.0, n_iters=2000, tol=1e-13, gradient="implicit")
    _, gradient = with_gradients(batch.loss(criterion), batch.leaves)
    step = torch.linspace(-1, 1, gradient.numel(), dtype=torch.float64)
    moved = step.reshape(batch.embeddings.shape) * 1e-5
    rows = batch.embeddings.detach()
    slope = (criterion(rows + moved, batch.labels) - criterion(rows - moved, batch.labels)) / 2e-5
    assert float(gradient @ step) == pytest.approx(float(slope), rel=1e-6)


def test_uniformity_does_not_go_with_the_envelope():
    with pytest.raises(ValueError, match=r"uniformity=0\.2.*gradient"):
        tc.IOT(uniformity=0.2, gradient="envelope")


# --- marginals="classes" -------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT])
def test_triplets_and_pairs_have_no_classes(make):
    criterion = make(marginals="classes")
    for indices in (([0], [1], [2]), ([0], [1], [0], [2])):
        with pytest.raises(ValueError, match=r'marginals="classes" needs classes: pass labels'):
            criterion(draw(6, 0), indices_tuple=indices)


# --- Gradients: unrolled and implicit ones are those of tests/dense -------------------------------


AT_CONVERGENCE = {"n_iters": 1000, "tol": 1e-13}


def gradient_of(loss, batch, **options):
    criterion = loss(**AT_CONVERGENCE, **options)
    return with_gradients(batch.loss(criterion), batch.leaves)[1]


EQUAL = ("balanced", "two_views", "three_views", "across_unique")
UNEQUAL = ("unbalanced", "singleton", "triplets_within")


@pytest.mark.parametrize("marginals", ["uniform", "target"])
@pytest.mark.parametrize("setting", [*EQUAL, *UNEQUAL])
def test_envelope_is_exact_for_equal_class_sizes_or_target_marginals(
    tempered_loss, settings, setting, marginals
):
    envelope, implicit = (
        gradient_of(tempered_loss, settings[setting], gradient=gradient, marginals=marginals)
        for gradient in ("envelope", "implicit")
    )
    error = relative_error(envelope, implicit)
    assert error > 0.01 if marginals == "uniform" and setting in UNEQUAL else error <= 1e-10


def test_temperature_learns_alone_when_embeddings_are_frozen(tempered_loss, settings):
    batch = settings["singleton"]
    temperature = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    criterion = tempered_loss(temperature=temperature)
    (joint,) = torch.autograd.grad(batch.loss(criterion), temperature)
    (alone,) = torch.autograd.grad(criterion(batch.embeddings.detach(), batch.labels), temperature)
    assert relative_error(alone, joint) <= 1e-14
