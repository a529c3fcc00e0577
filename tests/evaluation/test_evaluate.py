"""An evaluation says which features each number is of, and its numbers are the parts' own."""

from __future__ import annotations

import io
import json
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix

from tricouple import geometry
from tricouple_lab.data.images.sets import ImageSet
from tricouple_lab.evaluation import features as measuring
from tricouple_lab.evaluation.features import Features, measure_geometry, sample
from tricouple_lab.evaluation.gallery import image_gallery
from tricouple_lab.evaluation.probe import evaluate_features, knn_accuracy, linear_probe

CLASSES = ("ant", "bee", "cat")


def features(n: int, seed: int) -> Features:
    """Three classes, told apart better by the penultimate features than by the embedding."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    means = 2 * torch.eye(3, 7)
    penultimate = means[labels] + torch.randn(n, 7, generator=generator)
    return Features(penultimate, penultimate[:, :2].clone(), labels)


@pytest.fixture(scope="module")
def parts() -> tuple[Features, Features]:
    return features(90, 0), features(60, 1)


def test_numbers_are_those_of_the_parts(parts):
    train, test = parts
    result = evaluate_features(train, test, CLASSES, k=5, epochs=4, lr=0.02, seed=3)
    assert (result.n_train, result.n_test, result.k, result.classes) == (90, 60, 5, CLASSES)
    kinds = zip(train.kinds(), test.kinds(), (result.penultimate, result.embedding), strict=True)
    for (kind, known), (_, unseen), found in kinds:
        probe = linear_probe(known, train.labels, unseen, test.labels, 3, epochs=4, lr=0.02, seed=3)
        assert found.features == kind
        assert found.dim == known.shape[1]
        assert (found.linear, found.linear_train) == (probe.accuracy, probe.train_accuracy)
        assert found.knn == knn_accuracy(known, train.labels, unseen, test.labels, 5)
        wanted = confusion_matrix(test.labels.numpy(), probe.predictions.numpy())
        assert [list(row) for row in found.confusion] == wanted.tolist()
        collapse = geometry.neural_collapse(unseen, test.labels)
        distances = geometry.two_distance(unseen, test.labels)
        assert found.geometry.nc1 == collapse.nc1
        assert found.geometry.nc2_deviation == collapse.nc2_deviation
        assert found.geometry.spectrum == tuple(collapse.spectrum.tolist())
        assert found.geometry.effective_rank == geometry.effective_rank(unseen)
        assert (found.geometry.alpha, found.geometry.beta) == (distances.alpha, distances.beta)
    assert result.penultimate.linear > result.embedding.linear


def test_results_are_immutable_and_turn_into_json_and_named_accuracies(parts):
    result = evaluate_features(*parts, CLASSES, k=5, epochs=2)
    content = json.loads(json.dumps(result.as_json()))
    assert content["embedding"]["features"] == "embedding"
    assert content["penultimate"]["geometry"]["n_samples"] == 60
    assert sum(map(sum, content["penultimate"]["confusion"])) == 60
    assert result.accuracy() == {
        "penultimate/linear": result.penultimate.linear,
        "penultimate/knn": result.penultimate.knn,
        "embedding/linear": result.embedding.linear,
        "embedding/knn": result.embedding.knn,
    }
    with pytest.raises(FrozenInstanceError):
        result.k = 3


def test_all_training_samples_vote_if_there_are_few(parts):
    train, test = parts
    few = Features(*(getattr(train, field.name)[:6] for field in fields(train)))
    assert evaluate_features(few, test, CLASSES, epochs=1).k == 6


def test_diverged_features_are_refused_by_name(parts):
    train, test = parts
    broken = Features(train.penultimate, train.embedding / 0, train.labels)
    with pytest.raises(ValueError, match=r"train_features must be finite.*the encoder diverged"):
        evaluate_features(broken, test, CLASSES, epochs=1)


def test_geometry_of_many_samples_is_that_of_a_stratified_few(monkeypatch):
    test = features(300, 2)
    monkeypatch.setattr(measuring, "GEOMETRY_SAMPLES", 100)
    found = measure_geometry(test.penultimate, test.labels)
    whole = geometry.two_distance(test.penultimate, test.labels)
    assert found.n_samples == 100
    assert found.alpha == pytest.approx(whole.alpha, abs=0.1)
    assert found.alpha != whole.alpha


def test_geometry_needs_classes_and_pairs():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert measure_geometry(x, torch.zeros(4, dtype=torch.int64)) is None
    assert measure_geometry(x, torch.arange(4)) is None
    assert measure_geometry(x, torch.tensor([0, 0, 1, 2])).n_samples == 4


def test_an_evaluation_without_geometry_still_has_accuracies_and_the_confusion_of_all_classes():
    x = torch.eye(3)
    train = Features(x.repeat(3, 1), x.repeat(3, 1), torch.arange(3).repeat(3))
    test = Features(x, x, torch.arange(3))
    result = evaluate_features(train, test, (*CLASSES, "dog"), k=3, epochs=1)
    assert [sum(row) for row in result.embedding.confusion] == [1, 1, 1, 0]
    assert {len(row) for row in result.embedding.confusion} == {4}
    assert result.embedding.geometry is None
    assert result.accuracy()["embedding/knn"] == 1.0


def test_samples_keep_proportions_and_small_sets_are_kept_whole():
    labels = torch.tensor([0] * 80 + [1] * 20)
    chosen = sample(labels, 10, seed=0)
    assert torch.bincount(labels[chosen]).tolist() == [8, 2]
    assert sample(labels, 100, seed=0).tolist() == list(range(100))


def test_the_gallery_holds_what_was_measured_and_the_nearest_training_images(parts):
    train, test = parts
    result = evaluate_features(train, test, CLASSES, k=5, epochs=1)
    pixels = torch.arange(len(train.labels) * 100 * 100).remainder(251).to(torch.uint8)
    known = ImageSet(pixels.reshape(-1, 1, 100, 100), train.labels)
    unseen = ImageSet(known.images[: len(test.labels)], test.labels)
    with np.load(io.BytesIO(image_gallery(result, train, test, (known, unseen)))) as file:
        found = dict(file)
    assert tuple(found["classes"]) == CLASSES
    for kind, features in test.kinds():
        assert found[f"confusion_{kind}"].sum() == len(test.labels)
        assert found[f"features_{kind}"].shape == features.shape
    queries = len(found["query_labels"])
    assert found["queries"].shape == (queries, 1, 64, 64)
    assert found["answers"].shape == (4 * queries, 1, 64, 64)
    assert (np.diff(found["scores"], axis=1) <= 0).all()
    z, w = (torch.nn.functional.normalize(part.embedding, dim=1) for part in (test, train))
    assert found["scores"][:, 0] == pytest.approx((z @ w.T).amax(1).numpy()[_rows(found, test)])


def _rows(found, test):
    """Where the queries of a gallery are: their order is that of the test set."""
    return sample(test.labels, len(found["query_labels"]), 1).numpy()
