"""A library that is not installed is named with the extra that brings it."""

import importlib
import sys

import pytest


@pytest.mark.parametrize("library", ["pytorch_metric_learning", "sentence_transformers"])
def test_the_extra_is_named(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    for loaded in [name for name in sys.modules if name.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.delitem(sys.modules, f"tricouple.adapters.{library}", raising=False)
    wanted = rf"{library} is missing: pip install '\.\[adapters\]'"
    with pytest.raises(ImportError, match=wanted):
        importlib.import_module(f"tricouple.adapters.{library}")


@pytest.mark.parametrize(
    ("library", "name"), [("lightly", "TwoViewLoss"), ("open_clip", "ClipLoss")]
)
def test_conventions_alone_need_no_library(library, name, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"tricouple.adapters.{library}", raising=False)
    assert hasattr(importlib.import_module(f"tricouple.adapters.{library}"), name)
