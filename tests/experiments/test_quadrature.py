"""The page on the log-sigmoid quadrature: its numbers are measured, stored, and can fail."""

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tricouple.experiments.verify import markdown, quadrature, quadrature_errors
from tricouple.experiments.verify.page import standalone_chart
from tricouple.experiments.verify.results import Report
from tricouple.ot.sweeps.log_sigmoid import log_sigmoid_terms, trapezoid_error

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stored() -> Report:
    text = (ROOT / "results/theory/quadrature.json").read_text(encoding="utf-8")
    return Report.from_json(text)


def test_stored_measurements_hold_and_are_those_of_the_module(stored):
    assert [outcome.id for outcome in stored.outcomes] == list(quadrature.STUDIES)
    assert not stored.failed
    for outcome in stored.outcomes:
        assert (outcome.words, outcome.residual_is) == quadrature.STUDIES[outcome.id][:2]


def test_page_and_figure_show_the_stored_numbers(stored):
    docs = (ROOT / "docs/quadrature.md").read_text(encoding="utf-8")
    assert docs == markdown.fill(docs, stored)
    drawn = (ROOT / "docs/assets/quadrature_error.svg").read_text(encoding="utf-8")
    assert drawn == standalone_chart(stored.find("kernel").figure)


def test_figure_is_a_file_of_its_own(stored):
    root = ElementTree.fromstring(standalone_chart(stored.find("kernel").figure))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    lines = root.findall(".//{*}polyline")
    assert len(lines) == 2 * len(quadrature_errors.EPSILONS)  # each once more in the legend


def test_command_repeats_the_stored_measurements(stored, tmp_path):
    page, out, figure = tmp_path / "page.md", tmp_path / "out.json", tmp_path / "figure.svg"
    page.write_text("<!-- verify:poisson -->\n<!-- /verify -->\n", encoding="utf-8")
    words = ["--out", str(out), "--docs", str(page), "--figure", str(figure)]
    assert quadrature.main(words) == 0
    report = Report.from_json(out.read_text(encoding="utf-8"))
    assert page.read_text(encoding="utf-8") == markdown.fill(page.read_text("utf-8"), report)
    assert "0.0646" in page.read_text(encoding="utf-8")
    for ours, kept in zip(report.find("kernel").rows, stored.find("kernel").rows, strict=True):
        assert ours["terms Q"] == kept["terms Q"]
        assert ours["error of K"] == pytest.approx(kept["error of K"], rel=0.01, abs=1e-13)
    assert figure.read_text(encoding="utf-8").startswith("<svg xmlns=")


def test_missing_page_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        quadrature.main(["--docs", str(tmp_path / "missing.md")])
    assert "missing.md" in capsys.readouterr().err


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


def test_wrong_quadratures_are_caught(monkeypatch):
    def coarse(*arguments):
        terms = log_sigmoid_terms(*arguments)
        return replace(terms, nodes=terms.nodes[::2], step=2 * terms.step)

    monkeypatch.setattr(quadrature_errors, "log_sigmoid_terms", coarse)
    assert quadrature_errors.kernel().residual > 1


def test_wrong_costs_are_caught(monkeypatch):
    wrong = quadrature_errors.mean_log_sigmoid_cost
    monkeypatch.setattr(
        quadrature_errors, "mean_log_sigmoid_cost", lambda *arguments: 1.001 * wrong(*arguments)
    )
    assert quadrature_errors.cost().residual > 1


def test_measured_error_is_that_of_a_sum_over_nodes():
    nodes = torch.arange(-80.0, 20.0, 1.0, dtype=torch.float64)
    found = abs(float(torch.exp(nodes - torch.exp(nodes)).sum()) - 1)
    worst = quadrature_errors.measured_error(1.0, 1.0)
    assert found <= worst * (1 + 1e-9)
    assert found > 0.1 * worst
