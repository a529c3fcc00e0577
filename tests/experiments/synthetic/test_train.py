"""One run: reproducible, fair between methods, measured as it says, judged by thresholds."""

import math
from dataclasses import replace

import pytest
import torch

from tricouple import geometry
from tricouple_lab.evaluation.probe import knn_accuracy
from tricouple_lab.experiments.synthetic import train as training
from tricouple_lab.experiments.synthetic.config import LINEAR, LOG_SIGMOID, RunConfig
from tricouple_lab.experiments.synthetic.train import (
    MEANINGS,
    batches,
    build_method,
    draw_samples,
    judge,
    rate_factor,
    train,
)

SMALL = RunConfig(n_classes=4, per_class=12, data_dim=20, hidden=32, dim=8, steps=30)
FALLING = [2.0, 1.0]


@pytest.mark.parametrize(("method", "shaping"), LINEAR + LOG_SIGMOID)
def test_every_method_lowers_its_loss(method, shaping):
    points = [point for point, _ in train(replace(SMALL, method=method, shaping=shaping))]
    assert points[0].step == 0
    assert points[-1].step == SMALL.steps
    assert points[-1].loss < points[0].loss
    assert all(point.finite for point in points)


@pytest.mark.parametrize("method", ["neg_mmiot", "pushpull"])
def test_losses_with_negatives_reach_the_simplex(method):
    config = replace(SMALL, method=method, steps=400, learning_rate=4e-3)
    *_, (point, _) = train(config)
    assert point.nc2_deviation < 1e-3
    assert point.spectrum[-1] > 0.95 * point.spectrum[0]
    assert point.alpha > 0.99
    assert point.beta == pytest.approx(-1 / 3, abs=0.01)


def test_measurements_are_those_of_the_whole_training_set_and_of_held_out_samples():
    *_, (point, embeddings) = train(SMALL)
    samples = draw_samples(SMALL)
    labels = samples.train[1]
    assert embeddings.shape == (48, 8)
    collapse = geometry.neural_collapse(embeddings, labels)
    assert point.nc1 == collapse.nc1
    assert point.spectrum == tuple(collapse.spectrum.tolist())
    assert point.effective_rank == geometry.effective_rank(embeddings)
    assert len(samples.held_out[1]) == 4 * 50
    shared = (samples.held_out[0][:, None] == samples.train[0]).all(2)
    assert not bool(shared.any())
    # Of the training samples themselves k-NN would say something else.
    assert point.knn != knn_accuracy(embeddings, labels, embeddings, labels)


def test_same_seed_same_run_and_no_trace_in_the_global_generator():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = [point for point, _ in train(SMALL)]
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(4)
    assert [point for point, _ in train(SMALL)] == first
    assert [point for point, _ in train(replace(SMALL, seed=1))] != first


def test_all_methods_start_from_the_same_encoder_and_data():
    starts = []
    for method, shaping in LINEAR:
        point, embeddings = next(train(replace(SMALL, method=method, shaping=shaping)))
        assert point.step == 0
        starts.append(embeddings)
    for start in starts[1:]:
        torch.testing.assert_close(start, starts[0], atol=0, rtol=0)


def test_byol_trains_encoder_and_predictor_but_not_the_target():
    config = replace(SMALL, method="byol", shaping=None)
    method = build_method(config)
    before = [parameter.clone() for parameter in method.criterion.target.parameters()]
    inputs, labels = draw_samples(config).train
    method.loss(inputs, labels).backward()
    assert all(parameter.grad is not None for parameter in method.encoder.parameters())
    assert all(parameter.grad is None for parameter in method.criterion.target.parameters())
    with torch.no_grad():
        for parameter in method.encoder.parameters():
            parameter.add_(1.0)
    method.after_step(0, 100)
    moved = [
        (a - b).abs().max()
        for a, b in zip(method.criterion.target.parameters(), before, strict=True)
    ]
    assert all(0 < float(distance) < 0.01 for distance in moved)


def test_a_run_that_loses_its_numbers_stops_there(monkeypatch):
    built = build_method(SMALL)
    calls = iter(range(100))

    def loss(inputs, labels):
        value = type(built).loss(built, inputs, labels)
        return value * math.nan if next(calls) == 3 else value

    monkeypatch.setattr(built, "loss", loss)
    monkeypatch.setattr(training, "build_method", lambda config: built)
    points = [point for point, _ in train(SMALL)]
    assert points[-1].step == 3
    assert not points[-1].finite


def test_embeddings_without_numbers_give_a_loss_and_measurements_without_numbers():
    config = replace(SMALL, learning_rate=1e30)
    points = [point for point, _ in train(config)]
    assert not points[-1].finite
    assert points[-1].step < config.steps
    assert len(points[-1].spectrum) == 3


def test_shuffled_batches_have_the_same_size_and_follow_the_class_sizes():
    config = replace(SMALL, sampler="shuffled", imbalance=6.0)
    labels = draw_samples(config).train[1]
    drawn = list(batches(config, labels))
    assert len(drawn) == config.steps
    assert {len(batch) for batch in drawn} == {16}
    counts = torch.bincount(labels[torch.tensor(drawn).flatten()])
    assert counts[0] > 3 * counts[-1]


def test_class_uniform_batches_are_the_default():
    labels = draw_samples(SMALL).train[1]
    for batch in batches(SMALL, labels):
        assert torch.bincount(labels[batch]).tolist() == [4] * 4


def test_the_rate_falls_to_zero_unless_it_is_constant():
    assert rate_factor(SMALL, 0) == 1.0
    assert rate_factor(SMALL, 15) == pytest.approx(0.5)
    assert rate_factor(SMALL, 29) < 0.01
    assert rate_factor(replace(SMALL, schedule="constant"), 29) == 1.0


@pytest.mark.parametrize(
    ("losses", "deviation", "spectrum", "dim", "word"),
    [
        (FALLING, 0.001, [1.0, 0.99, 0.96], 8, "etf"),
        (FALLING, 0.02, [1.0, 0.99, 0.96], 8, "rich"),
        (FALLING, 0.001, [1.0, 0.99, 0.90], 8, "rich"),
        (FALLING, 0.3, [1.0, 0.5, 0.02], 8, "rich"),
        (FALLING, 0.3, [1.0, 0.5, 0.005], 8, "reduced"),
        (FALLING, 0.3, [1.0, 0.5, 0.0], 2, "rich"),  # two dimensions have no third direction
        (FALLING, 0.3, [1.0, 0.03, 0.01], 8, "collapsed"),
        (FALLING, 0.0, [1e-3, 1e-3, 1e-3], 8, "collapsed"),
        (FALLING, 0.0, [0.0, 0.0, 0.0], 8, "collapsed"),
        (FALLING, 0.0, [2.0], 8, "etf"),  # two classes: one direction is all there is
        ([1.0, 1.2], 0.0, [1.0, 1.0, 1.0], 8, "diverged"),
        ([1.0, 1.02], 0.0, [1.0, 1.0, 1.0], 8, "etf"),  # the noise of a batch
        ([-0.5, -0.4], 0.0, [1.0, 1.0, 1.0], 8, "diverged"),
        ([1.0, math.nan], 0.0, [1.0, 1.0, 1.0], 8, "diverged"),
        (FALLING, math.nan, [math.nan], 8, "diverged"),
    ],
)
def test_verdict(losses, deviation, spectrum, dim, word):
    assert judge(losses, deviation, spectrum, dim) == word
    assert word in MEANINGS
