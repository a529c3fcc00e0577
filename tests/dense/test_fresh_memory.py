"""Tests of couplings run with NaN in memory that is not yet written."""

import pytest
import torch


@pytest.mark.parametrize(
    "call", ["torch.empty(3)", "torch.empty_like(torch.ones(3))", "torch.ones(1).new_empty(3)"]
)
def test_the_package_finds_nan_in_fresh_memory(call):
    assert eval(call, {"torch": torch, "__name__": "tricouple.ot.anything"}).isnan().all()


def test_others_and_integers_are_left_alone(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "fill_", None)  # not called
    eval("torch.empty(3)", {"torch": torch, "__name__": "tricoupled"})
    eval("torch.empty(3, dtype=torch.long)", {"torch": torch, "__name__": "tricouple"})
