"""The examples in all docstrings run, and every public name of the library has one."""

import doctest
import importlib
import inspect
import pkgutil

import numpy as np
import pytest
import torch
from torch import nn

import tricouple
import tricouple_lab

MODULES = [
    info.name
    for package in (tricouple, tricouple_lab)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not info.name.endswith(("._native", ".__main__"))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    torch.manual_seed(0)
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(module, extraglobs={"torch": torch, "nn": nn, "np": np})
    assert failures == 0


def functions_of(module) -> list[object]:
    found = [value for name, value in vars(module).items() if not name.startswith("_")]
    return [v for v in found if inspect.isfunction(v) and v.__module__ == module.__name__]


PUBLIC = [
    *(getattr(tricouple, name) for name in tricouple.__all__),
    *(tricouple.ot.sinkhorn, tricouple.ot.triplet_sinkhorn, tricouple.ot.multimodal_sinkhorn),
    *functions_of(tricouple.geometry),
]


@pytest.mark.parametrize(
    "value", [value for value in PUBLIC if callable(value)], ids=lambda value: value.__qualname__
)
def test_public_names_have_an_example(value):
    assert ">>>" in inspect.getdoc(value)
