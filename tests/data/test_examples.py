"""Every public name of the data and evaluation packages has an example, and the examples run."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import tricouple.data
import tricouple.evaluation
from tricouple.data import augment, images
from tricouple.evaluation import evaluate, features, geometry, knn, probe, retrieval, zero_shot

MODULES = [
    info.name
    for package in (tricouple.data, tricouple.evaluation)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]
PUBLIC = [
    *(vars(images)[name] for name in images.__all__),
    augment.Recipe,
    augment.random_view,
    augment.recipe_for,
    features.extract,
    knn.knn_accuracy,
    knn.knn_predictions,
    probe.linear_probe,
    evaluate.evaluate_features,
    geometry.measure_geometry,
    geometry.measure_modalities,
    retrieval.in_batches,
    retrieval.whole_split,
    zero_shot.class_embeddings,
    zero_shot.classify,
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(module, extraglobs={"torch": torch})
    assert failures == 0


@pytest.mark.parametrize(
    "value",
    [value for value in PUBLIC if callable(value) and value is not images.DataError],
    ids=lambda value: value.__name__,
)
def test_public_names_have_an_example(value):
    assert ">>>" in inspect.getdoc(value)
