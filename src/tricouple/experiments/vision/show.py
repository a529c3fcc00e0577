"""Results of runs on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tricouple.experiments.runs.once import Finished


def show(finished: Finished, console: Console) -> None:
    """Print what a run has reached."""
    console.print(evaluation_table(finished.evaluation))


def evaluation_table(record: Mapping[str, Any]) -> Table | str:
    """The content of an evaluation.json as a table; a sentence if nothing could be measured."""
    if record["accuracy"] is None:
        return f"{record['run']}: not evaluated, {record['result']}"
    result, settings = record["result"], record["settings"]
    sharpness = record["sharpness"]
    seconds = sum(record["seconds"].values())
    table = Table(
        title=record["run"],
        caption=(
            f"epochs: {record['epoch']}, {seconds:.0f} s"
            + ("" if sharpness is None else f"; sharpness c = {sharpness:g}")
            + f"; {result['n_test']} {settings['part']} images, {result['n_train']} to learn "
            f"from; probe of {settings['probe_epochs']} epochs, k = {result['k']}"
        ),
    )
    headings = ("features", "dim", "linear %", "k-NN %", "α", "β", "NC2", "effective rank")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for kind in ("penultimate", "embedding"):
        row, geometry = result[kind], result[kind]["geometry"] or {}
        shown = [geometry.get(name) for name in ("alpha", "beta", "nc2_deviation")]
        table.add_row(
            kind,
            str(row["dim"]),
            f"{100 * row['linear']:.2f}",
            f"{100 * row['knn']:.2f}",
            *("–" if value is None else f"{value:.3f}" for value in shown),
            f"{geometry['effective_rank']:.1f}" if geometry else "–",
        )
    return table
