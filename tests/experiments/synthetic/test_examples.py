"""The examples in the docstrings run."""

import doctest
import importlib

import pytest
import torch

MODULES = [
    "tricouple.data.gmm",
    "tricouple.data.sampler",
    "tricouple.models.encoders",
    *(
        f"tricouple.experiments.synthetic.{name}"
        for name in ("grid", "measure", "pool", "progress", "train")
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    failures, attempted = doctest.testmod(module, extraglobs={"torch": torch})
    assert failures == 0
    assert attempted > 0
