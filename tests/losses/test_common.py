"""What losses do, alone and inside training code; accuracy is in tests/dense."""

import copy
import io
from dataclasses import replace

import pytest
import torch
from torch import nn

import tricouple as tc
from conftest import UNCONVERGED
from reference import dense_iot, relative_error, with_gradients

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


def test_embeddings_without_gradient_give_the_same_value(loss, batch):
    criterion = loss()
    with torch.no_grad():
        value = batch.loss(criterion)
    assert not value.requires_grad
    assert torch.equal(value, batch.loss(criterion).detach())


@pytest.mark.parametrize("leaf", ["embeddings", "ref_emb", "temperature"])
def test_a_gradient_does_not_depend_on_what_else_has_one(loss, settings, leaf):
    there, criterion = settings["across_repeated"], loss()
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    whole = {"embeddings": there.embeddings, "ref_emb": there.ref_emb, "temperature": tau}
    (joint,) = torch.autograd.grad(there.loss(criterion, temperature=tau), whole[leaf])
    frozen = {name: part if name == leaf else part.detach() for name, part in whole.items()}
    tau = frozen.pop("temperature")
    (alone,) = torch.autograd.grad(
        replace(there, **frozen).loss(criterion, temperature=tau), whole[leaf]
    )
    assert relative_error(alone, joint) <= 1e-14


# --- What losses leave as it was ------------------------------------------------------------------


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


# --- Inside training code -------------------------------------------------------------------------


@UNCONVERGED
@pytest.mark.parametrize("mode", ["unrolled", "implicit", "envelope"])
def test_loss_used_twice_in_one_graph_adds_up(loss, mode, settings):
    if mode == "envelope" and "uniformity" in loss.keywords:
        return  # which needs the plan's own gradient
    first, second = settings["unbalanced"], settings["across_repeated"]
    criterion = loss(gradient=mode)
    total = first.loss(criterion) + 3 * second.loss(criterion) + first.loss(criterion)
    leaves = first.leaves + second.leaves
    _, joint = with_gradients(total, leaves)
    alone = with_gradients(first.loss(criterion), first.leaves)[1]
    other = with_gradients(second.loss(criterion), second.leaves)[1]
    tolerance = 1e-8 if mode == "implicit" else 1e-13  # conjugate gradients stop at a residual
    assert relative_error(joint, torch.cat([2 * alone, 3 * other])) <= tolerance


def test_graph_may_be_walked_twice(loss, settings):
    batch = settings["unbalanced"]
    value = batch.loss(loss())
    (once,) = torch.autograd.grad(value, batch.leaves, retain_graph=True)
    (twice,) = torch.autograd.grad(value, batch.leaves)
    assert torch.equal(once, twice)


def learnable(loss, start=0.5):
    return loss(temperature=nn.Parameter(torch.tensor(start, dtype=torch.float64)))


def test_learnable_temperature_is_a_parameter_of_the_module(tempered_loss):
    assert [name for name, _ in learnable(tempered_loss).named_parameters()] == ["temperature"]
    assert list(tempered_loss().parameters()) == []


def test_copy_is_equal_and_independent(tempered_loss, settings):
    batch = settings["unbalanced"]
    original = learnable(tempered_loss)
    twin = copy.deepcopy(original)
    value = batch.loss(original)
    assert torch.equal(batch.loss(twin), value)
    with torch.no_grad():
        next(twin.parameters()).fill_(0.9)
    assert torch.equal(batch.loss(original), value)
    assert relative_error(batch.loss(twin), value) > 1e-3


def test_checkpoint_restores_the_temperature(tempered_loss, settings):
    batch = settings["unbalanced"]
    trained, fresh = learnable(tempered_loss, 0.3), learnable(tempered_loss, 0.5)
    assert relative_error(batch.loss(fresh), batch.loss(trained)) > 1e-3
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(batch.loss(fresh), batch.loss(trained))
    module = tempered_loss()
    assert module.load_state_dict(module.state_dict()).missing_keys == []


def test_module_follows_to_double(tempered_loss, settings):
    batch = settings["unbalanced"].to(torch.float32)
    criterion = tempered_loss(temperature=nn.Parameter(torch.tensor(0.5)))
    single = batch.loss(criterion)
    double = batch.to(torch.float64).loss(criterion.double())
    assert double.dtype == torch.float64
    assert relative_error(single, double) <= 1e-5


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
