"""The examples in the docstrings of training, models, configuration and runs run."""

import doctest
import importlib
import pkgutil

import pytest
import torch
from torch import nn

PACKAGES = (
    "conf",
    "models",
    "training",
    "experiments.runs",
    "experiments.vision",
    "experiments.clip",
)


def modules() -> list[str]:
    names = []
    for package in PACKAGES:
        module = importlib.import_module(f"tricouple.{package}")
        found = pkgutil.iter_modules(module.__path__, module.__name__ + ".")
        names += [info.name for info in found]
    return names


@pytest.mark.parametrize("name", modules())
def test_examples_run(name):
    torch.manual_seed(0)
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(module, extraglobs={"torch": torch, "nn": nn})
    assert failures == 0
