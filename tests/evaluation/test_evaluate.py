"""An evaluation says which features each number is of, and its numbers are the parts' own."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields

import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix

from tricouple import geometry
from tricouple.evaluation import geometry as measuring
from tricouple.evaluation.evaluate import evaluate_features
from tricouple.evaluation.features import Features
from tricouple.evaluation.geometry import measure_geometry, sample
from tricouple.evaluation.probe import knn_accuracy, linear_probe
from tricouple.experiments.vision import write_figures

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


def test_figures_are_written_for_both_kinds(parts, tmp_path):
    train, test = parts
    result = evaluate_features(train, test, CLASSES, k=5, epochs=1)
    written = write_figures(result, test, tmp_path / "new")
    names = ["confusion_penultimate", "tsne_penultimate", "confusion_embedding", "tsne_embedding"]
    assert [path.name for path in written] == [f"{name}.png" for name in names]
    for path in written:
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert image.width > 400
            assert len(image.convert("RGB").resize((60, 60)).getcolors(3600)) > 5
