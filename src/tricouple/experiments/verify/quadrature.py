"""Measure the quadrature of the log-sigmoid kernel and put the numbers into its page.

In a checkout, to refresh docs/quadrature.md, its figure and the data behind them:

    python -m tricouple.experiments.verify.quadrature
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from tricouple.experiments.verify import markdown
from tricouple.experiments.verify.page import standalone_chart
from tricouple.experiments.verify.quadrature_errors import SEED, cost, kernel, loss, poisson
from tricouple.experiments.verify.results import Finding, Outcome, Report
from tricouple.provenance import collect_provenance

STUDIES: dict[str, tuple[str, str, Callable[[], Finding]]] = {
    "kernel": (
        "the kernel has the relative error that was asked for",
        "largest error in units of the tolerance",
        kernel,
    ),
    "poisson": (
        "the trapezoid rule has the error that Poisson's formula predicts",
        "largest error, beyond rounding, in units of the prediction",
        poisson,
    ),
    "cost": (
        "the mean cost by Frullani's integral is that of the triplets",
        "largest relative error of its gradient in units of 1e-6",
        cost,
    ),
    "loss": (
        "the loss inherits the kernel's tolerance",
        "largest relative error of its gradient in units of the tolerance, but at least of 1e-6",
        loss,
    ),
}
"""Statement, meaning of its residual (at most 1 where it holds) and measurement."""


def study() -> Report:
    """Run all measurements; seconds."""
    provenance = collect_provenance() | {"command": f"python -m {__spec__.name}"}
    return Report(SEED, tuple(_outcome(name) for name in STUDIES), provenance)


def _outcome(name: str) -> Outcome:
    words, residual_is, measure = STUDIES[name]
    found = measure()
    return Outcome(
        id=name,
        words=words,
        reference="not in the paper",
        kind="accuracy",
        residual_is=residual_is,
        residual=found.residual,
        tolerance=1.0,
        rows=found.rows,
        figure=found.figure,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and write numbers, page and figure; 1 if a statement fails."""
    parser = argparse.ArgumentParser(
        description="Measure the quadrature of the log-sigmoid kernel",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    results, docs = Path("results/theory"), Path("docs")
    add = parser.add_argument
    add("--out", type=Path, default=results / "quadrature.json", help="all numbers")
    add("--docs", type=Path, default=docs / "quadrature.md", help="page whose tables are filled")
    add("--figure", type=Path, default=docs / "assets/quadrature_error.svg", help="error and terms")
    args = parser.parse_args(words)
    try:
        page = args.docs.read_text(encoding="utf-8")
        report = study()
        args.docs.write_text(markdown.fill(page, report), encoding="utf-8")
        args.out.write_text(report.to_json(), encoding="utf-8")
        args.figure.write_text(standalone_chart(report.find("kernel").figure), encoding="utf-8")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
