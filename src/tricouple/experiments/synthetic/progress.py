"""The live display: how many runs are done, and what those at work look like."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TaskID as Row

from tricouple.experiments.synthetic.measure import Measurement

COLOURS = {"etf": "green", "rich": "cyan", "reduced": "yellow"}


class LiveProgress:
    """A bar for the study and one for every run at work; finished runs scroll by above.

    Example:
        >>> with LiveProgress(Console(quiet=True), total=3, done=1) as display:
        ...     display.finished({"id": "a", "status": "done", "verdict": "etf", "seconds": 1.0,
        ...                       "curves": {"nc2_deviation": [1e-4]}})
    """

    def __init__(self, console: Console, total: int, done: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._all = self._progress.add_task("runs", total=total, completed=done, note="")
        self._rows: dict[str, Row] = {}

    def __enter__(self) -> LiveProgress:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def measured(self, name: str, point: Measurement, steps: int) -> None:
        """Show the latest figures of a run."""
        if name not in self._rows:
            self._rows[name] = self._progress.add_task(name, total=steps, note="")
        note = f"loss {point.loss:.4f}  NC2 {point.nc2_deviation:.1e}  k-NN {point.knn:.2f}"
        self._progress.update(self._rows[name], completed=point.step, note=note)

    def finished(self, record: dict[str, Any]) -> None:
        """Replace the bar of a run by a line."""
        row = self._rows.pop(record["id"], None)
        if row is not None:
            self._progress.remove_task(row)
        verdict = record["verdict"] or record["status"]
        colour = COLOURS.get(verdict, "red")
        deviation = record["curves"]["nc2_deviation"][-1]
        figure = "" if deviation is None else f"NC2 {deviation:.1e}"
        self._progress.console.print(
            f"[{colour}]{verdict:9}[/] {record['seconds']:6.1f} s  {figure}  {record['id']}",
            highlight=False,
            soft_wrap=True,
        )
        self._progress.advance(self._all)
