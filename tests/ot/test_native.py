"""The compiled module is used only where it was built from these sources."""

import sys
from types import ModuleType

import pytest

from tricouple.ot.sweeps import native

NAME = "tricouple.ot.sweeps._native"


@pytest.mark.parametrize("calls", [None, native.CALLS - 1, native.CALLS + 1])
def test_a_module_of_other_sources_is_named_and_not_used(calls, monkeypatch):
    other = ModuleType(NAME)
    other.__file__ = "/somewhere/_native.so"
    if calls is not None:
        other.CALLS = calls
    monkeypatch.setitem(sys.modules, NAME, other)
    with pytest.warns(UserWarning, match=r"/somewhere/_native\.so was built from another version"):
        assert native.load() is None


def test_one_of_these_sources_is_used(monkeypatch):
    own = ModuleType(NAME)
    own.CALLS = native.CALLS
    monkeypatch.setitem(sys.modules, NAME, own)
    assert native.load() is own


def test_none_is_no_error(monkeypatch):
    monkeypatch.setitem(sys.modules, NAME, None)
    assert native.load() is None
