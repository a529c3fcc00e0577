"""The quadrature of the log-sigmoid kernel: statements of `verify` that can fail."""

import math
from pathlib import Path

import pytest
import torch

from tricouple.ot.quadrature import trapezoid_error
from tricouple_lab.experiments.verify import quadrature
from tricouple_lab.experiments.verify.setting import Report, Setting

STORED = Path(__file__).parents[2] / "results/theory/theory.json"


def test_stored_measurements_are_repeated():
    stored = Report.from_json(STORED.read_text(encoding="utf-8")).find("quadrature-kernel").rows
    for ours, kept in zip(quadrature.kernel(Setting()).rows, stored, strict=True):
        assert ours["terms Q"] == kept["terms Q"]
        assert ours["error of K"] == pytest.approx(kept["error of K"], rel=0.01, abs=1e-13)


@pytest.mark.parametrize("power", [1.0, 3.0])
@pytest.mark.parametrize("step", [2.0, 0.7])
def test_predicted_error_is_the_sum_of_gamma_functions(power, step):
    # |Γ(1 + iω)|² = πω/sinh(πω), and Γ(z + 1) = z Γ(z).
    total = 0.0
    for k in range(1, 9):
        w = 2 * math.pi * k / step
        size = math.sqrt(math.pi * w / math.sinh(math.pi * w))
        total += size if power == 1.0 else size * abs((1 + 1j * w) * (2 + 1j * w)) / 2
    assert trapezoid_error(power, step) == pytest.approx(2 * total, rel=1e-10)


def test_wrong_costs_are_caught(monkeypatch):
    right = quadrature.pair_costs

    def wrong(*arguments):
        sums, slopes = right(*arguments)
        return 1.001 * sums, 1.001 * slopes

    monkeypatch.setattr(quadrature, "pair_costs", wrong)
    assert quadrature.cost(Setting()).residual > 1


def test_measured_error_is_that_of_a_sum_over_nodes():
    nodes = torch.arange(-80.0, 20.0, 1.0, dtype=torch.float64)
    found = abs(float(torch.exp(nodes - torch.exp(nodes)).sum()) - 1)
    worst = quadrature.measured_error(1.0, 1.0)
    assert found <= worst * (1 + 1e-9)
    assert found > 0.1 * worst
