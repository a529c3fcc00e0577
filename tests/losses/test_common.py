"""What every loss with a coupling must satisfy, in every setting; accuracy is in tests/dense."""

from dataclasses import replace

import pytest
import torch

from reference import admissible_triplets, relative_error, with_gradients


@pytest.mark.parametrize("setting", ["singleton", "across_repeated", "triplets_within"])
def test_loss_passes_gradcheck(loss, settings, setting):
    batch = settings[setting]
    criterion = loss.criterion(**loss.soft, n_iters=4)

    def value(embeddings, ref_emb=None):
        return replace(batch, embeddings=embeddings, ref_emb=ref_emb).loss(criterion)

    assert torch.autograd.gradcheck(value, batch.leaves)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_input_is_computed_in_float32(loss, batch, dtype):
    half = batch.to(dtype)
    single = half.to(torch.float32)
    criterion = loss.criterion(**loss.sharp)
    value, gradient = with_gradients(half.loss(criterion), half.leaves)
    wanted, wanted_gradient = with_gradients(single.loss(criterion), single.leaves)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    assert torch.equal(value, wanted)
    assert relative_error(gradient, wanted_gradient) <= torch.finfo(dtype).eps


def test_length_of_embeddings_does_not_matter(loss, batch):
    criterion = loss.criterion(**loss.sharp)
    rows = batch.embeddings
    stretch = torch.linspace(0.1, 9.0, len(rows), dtype=rows.dtype)[:, None]
    stretched = replace(batch, embeddings=rows * stretch)
    assert relative_error(stretched.loss(criterion), batch.loss(criterion)) <= 1e-12


def test_default_options_but_the_sharpness_are_the_papers(tempered_loss, batch):
    # τ = ε = 0.1, ten sweeps, ψ(t) = −t, uniform marginals, gradient through the sweeps
    criterion = tempered_loss.criterion(sharpness="paper")
    value, gradient = with_gradients(batch.loss(criterion), batch.leaves)
    epsilons = [name for name in tempered_loss.soft if name != "temperature"]
    dense = tempered_loss.dense(batch, temperature=0.1, **dict.fromkeys(epsilons, 0.1))
    wanted, wanted_gradient = with_gradients(dense, batch.leaves)
    assert relative_error(value, wanted) <= 1e-12
    assert relative_error(gradient, wanted_gradient) <= 1e-12


def test_arguments_may_be_given_by_position(loss, batch):
    criterion = loss.criterion(**loss.soft)
    rest = batch.labels, batch.triplets, batch.ref_emb, batch.ref_labels
    assert torch.equal(criterion(batch.embeddings, *rest), batch.loss(criterion))


def test_repeated_triplets_count_once(loss, settings):
    batch = settings["triplets_within"]
    distinct = torch.stack(batch.triplets, 1).unique(dim=0).unbind(1)
    criterion = loss.criterion(**loss.sharp)
    assert len(distinct[0]) < len(batch.triplets[0])
    once = replace(batch, triplets=distinct).loss(criterion)
    assert relative_error(batch.loss(criterion), once) <= 1e-14


@pytest.mark.parametrize("setting", ["unbalanced", "across_repeated"])
def test_listing_all_triplets_equals_giving_labels(tempered_loss, settings, setting):
    batch = settings[setting]
    listed = torch.tensor(admissible_triplets(batch.labels, batch.ref_labels)).unbind(1)
    criterion = tempered_loss.criterion(**tempered_loss.sharp)
    explicit = replace(batch, labels=None, ref_labels=None, triplets=listed)
    assert relative_error(explicit.loss(criterion), batch.loss(criterion)) <= 1e-13


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_integer_type_are_accepted(loss, settings, dtype):
    batch = settings["unbalanced"]
    labels = (batch.labels - batch.labels.min()).to(dtype)
    criterion = loss.criterion(**loss.soft)
    assert torch.equal(criterion(batch.embeddings, labels), batch.loss(criterion))


def test_embeddings_without_gradient_give_the_same_value(loss, batch):
    criterion = loss.criterion(**loss.sharp)
    with torch.no_grad():
        value = batch.loss(criterion)
    assert not value.requires_grad
    assert torch.equal(value, batch.loss(criterion).detach())


def test_gradient_reaches_references_alone(loss, settings):
    batch = settings["across_repeated"]
    criterion = loss.criterion(**loss.soft)
    both = torch.autograd.grad(batch.loss(criterion), batch.ref_emb)[0]
    frozen = replace(batch, embeddings=batch.embeddings.detach()).loss(criterion)
    assert relative_error(torch.autograd.grad(frozen, batch.ref_emb)[0], both) <= 1e-14


def test_tolerance_stops_the_sweeps_early(loss, batch):
    exact = batch.loss(loss.criterion(**loss.soft, n_iters=1000))
    stopped = batch.loss(loss.criterion(**loss.soft, n_iters=1000, tol=1e-6))
    truncated = batch.loss(loss.criterion(**loss.soft, n_iters=1, tol=1e-6))
    assert relative_error(stopped, exact) <= 1e-4
    assert relative_error(truncated, loss.dense(batch, **loss.soft, n_iters=1)) <= 1e-12


def test_settings_are_as_their_names_say(settings):
    assert settings["singleton"].labels.unique(return_counts=True)[1].min() == 1
    assert settings["three_views"].labels.bincount().tolist() == [3, 3, 3]
    repeated = settings["across_repeated"]
    assert len(repeated.ref_emb) != len(repeated.embeddings)
