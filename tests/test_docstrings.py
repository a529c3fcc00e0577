"""Every public name has a docstring with an example, and the examples run."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import tricouple

CORE = ["geometry", "losses", "ot", "relations", "shaping"]


def modules() -> list[str]:
    names = []
    for name in CORE:
        module = importlib.import_module(f"tricouple.{name}")
        names.append(module.__name__)
        if hasattr(module, "__path__"):
            found = pkgutil.walk_packages(module.__path__, module.__name__ + ".")
            names += [info.name for info in found if not info.name.endswith("._native")]
    return names


@pytest.mark.parametrize("name", modules())
def test_examples_run(name):
    torch.manual_seed(0)
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(module, extraglobs={"torch": torch})
    assert failures == 0


def public() -> dict[str, object]:
    names = {name: getattr(tricouple, name) for name in tricouple.__all__}
    found = {name: value for name, value in names.items() if not inspect.ismodule(value)}
    functions = [tricouple.ot.sinkhorn, tricouple.ot.triplet_sinkhorn]
    functions += [
        value
        for name, value in vars(tricouple.geometry).items()
        if inspect.isfunction(value)
        and value.__module__ == "tricouple.geometry"
        and not name.startswith("_")
    ]
    return found | {function.__name__: function for function in functions}


@pytest.mark.parametrize("name", public())
def test_public_names_have_an_example(name):
    text = inspect.getdoc(public()[name])
    assert text is not None
    assert ">>>" in text
