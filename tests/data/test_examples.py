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
from tricouple.evaluation import (
    confusion,
    features,
    knn,
    modalities,
    probe,
    report,
    retrieval,
    zero_shot,
)

MODULES = [
    info.name
    for package in (tricouple.data, tricouple.evaluation)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]
PUBLIC = [
    *(value for module in (images, augment) for value in map(vars(module).get, module.__all__)),
    confusion.confusion_matrix,
    features.extract,
    knn.knn_accuracy,
    knn.knn_predictions,
    probe.linear_probe,
    report.evaluate_features,
    report.measure_geometry,
    modalities.measure_modalities,
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
