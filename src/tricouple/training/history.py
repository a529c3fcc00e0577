"""The curves of a run: one row an epoch, kept in the checkpoint and written as CSV.

Lightning's own CSV logger starts an empty file when a run is resumed; here the rows travel with
the checkpoint, so that they always belong to the weights, however often a run was interrupted.
"""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path
from typing import Any, Protocol

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import nn

from tricouple.files import write_text
from tricouple.training.module import Training

Row = dict[str, float | int]


class Measured(Protocol):
    """Held-out data that an encoder can be measured on during training."""

    def measure(self, encoder: nn.Module) -> dict[str, float]:
        """What is found now; the mode of the encoder is as before afterwards."""
        ...


class History(Callback):
    """Writes down the loss of every epoch and, every few epochs, what held-out data say.

    Args:
        path: The CSV file.
        held_out: What is measured on; None if there is nothing to measure.
        every: Epochs between two measurements; the first and the last epoch are always measured.

    Attributes:
        rows: ``epoch`` and ``step`` (0 is before training), ``seconds`` of training so far,
            ``loss`` (mean of the epoch), ``sharpness`` if it learns, and the measures.
    """

    def __init__(self, path: Path, held_out: Measured | None, every: int) -> None:
        self.path = path
        self.held_out = held_out
        self.every = every
        self.rows: list[Row] = []
        self._started = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock where it stopped; describe the untrained network."""
        before = self.rows[-1]["seconds"] if self.rows else 0.0
        self._started = time.monotonic() - before
        if not self.rows:
            self._add(trainer, pl_module, 0, {})

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Add the row of this epoch."""
        found = trainer.callback_metrics
        logged: Row = {"loss": float(found["loss_epoch"])}
        if "sharpness" in found:
            logged["sharpness"] = float(found["sharpness"])
        self._add(trainer, pl_module, trainer.current_epoch + 1, logged)

    def _add(
        self, trainer: L.Trainer, pl_module: L.LightningModule, epoch: int, logged: Row
    ) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, Training)
        due = epoch % self.every == 0 or epoch == trainer.max_epochs
        found = self.held_out.measure(pl_module.encoder) if self.held_out and due else {}
        for logger in trainer.loggers:
            logger.log_metrics({**logged, **found, "epoch": epoch}, trainer.global_step)
        seconds = round(time.monotonic() - self._started, 3)
        step = trainer.global_step
        self.rows.append({"epoch": epoch, "step": step, "seconds": seconds, **logged, **found})
        write_text(self.path, as_csv(self.rows))

    def state_dict(self) -> dict[str, Any]:
        """The rows, for the checkpoint."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the rows of a checkpoint."""
        self.rows = list(state_dict["rows"])


def as_csv(rows: list[Row]) -> str:
    """Rows as text; numbers in full precision, empty where a row has no value.

    Example:
        >>> print(as_csv([{"epoch": 0, "rank": 2.5}, {"epoch": 1, "loss": 0.5}]), end="")
        epoch,rank,loss
        0,2.5,
        1,,0.5
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def curves(rows: list[Row]) -> dict[str, list[float | None]]:
    """Rows as columns, None where a row has no value.

    Example:
        >>> curves([{"step": 0}, {"step": 8, "loss": 0.5}])
        {'step': [0, 8], 'loss': [None, 0.5]}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
