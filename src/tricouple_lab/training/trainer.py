"""Lightning's Trainer with what every run needs: resuming, curves, logs.

Lightning's own CSV logger starts an empty file when a run is resumed; here the rows travel with
the checkpoint, so that they always belong to the weights, however often a run was interrupted.
"""

from __future__ import annotations

import csv
import inspect
import io
import logging
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import lightning as L
import torch
import torch.distributed as dist
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, Checkpoint, RichProgressBar, Timer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from tricouple_lab.files import load_tensors, save_tensors, write_text
from tricouple_lab.training.module import Training
from tricouple_lab.training.processes import SyncedNorms, cause, forget

Row = dict[str, float | int]


class Measured(Protocol):
    """Held-out data that an encoder can be measured on during training."""

    def measure(self, encoder: nn.Module) -> dict[str, float]:
        """What is found now; the mode of the encoder is as before afterwards."""
        ...


class History(Callback):
    """Writes down the loss of every epoch and, every few epochs, what held-out data say.

    A row has ``epoch`` and ``step`` (0 is before training), ``seconds`` of training so far,
    ``loss`` (mean of the epoch), ``sharpness`` if it learns, and the measures. The first and the
    last epoch are always measured.
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
        """Add the row of this epoch; one that was cut short has none."""
        if not _whole_epoch(trainer):
            return
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
    """Rows as text; numbers in full precision, empty where a row has no value."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def curves(rows: list[Row]) -> dict[str, list[float | None]]:
    """Rows as columns, None where a row has no value."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


# Flags that a run sets itself, and how to set them.
_OWN = {
    "max_epochs": "set training.epochs",
    "default_root_dir": "set run",
    "enable_progress_bar": "set progress",
    "accumulate_grad_batches": (
        "a contrastive loss compares the samples of one batch, so accumulating over small batches "
        "is not the loss of a large one; set training.batch_size"
    ),
    "use_distributed_sampler": "processes already share each batch",
    "sync_batchnorm": "batch norm is of all processes wherever PyTorch can",
    "enable_checkpointing": "an interrupted run continues from its checkpoint",
    "fast_dev_run": "set training.epochs=1 and data.train_size",
    **dict.fromkeys(
        ("callbacks", "logger", "plugins", "enable_model_summary", "barebones"),
        "runs bring their own",
    ),
}
# Flags that do not change what is computed, but where, how fast, for how long, and what is said.
SPEED_ONLY = frozenset(
    {
        "accelerator", "devices", "num_nodes", "strategy", "max_time", "max_steps",
        "log_every_n_steps", "profiler", "benchmark", "deterministic", "detect_anomaly",
        "inference_mode", "num_sanity_val_steps",
    }
)  # fmt: skip


class AtomicCheckpointIO(TorchCheckpointIO):
    """Replaces a checkpoint only when the new one is wholly on disk.

    Lightning writes through fsspec, whose temporary file may be on another disk, and does not wait
    for the disk; after a power cut the file may then be empty.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Save, or leave what was there."""
        save_tensors(Path(path), checkpoint)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Load tensors and plain values only, whatever the caller trusts."""
        return load_tensors(Path(path))


class SaveEachEpoch(Checkpoint):
    """Saves everything that is needed to continue, after each epoch, to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save; Lightning calls checkpoint callbacks after all others."""
        if _whole_epoch(trainer):
            trainer.save_checkpoint(self.path)


class Limits(Timer):
    """Stops training after some time or steps of this command, however far the run had come.

    Lightning's own limits are for a whole run: it would never get further.
    """

    def __init__(self, max_time: Any, max_steps: int) -> None:
        super().__init__(max_time, verbose=False)
        self.max_steps = max_steps
        self._first = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start to count."""
        super().on_train_start(trainer, pl_module)
        self._first = trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """Stop if it is time."""
        super().on_train_batch_end(trainer, *args, **kwargs)
        if 0 < self.max_steps <= trainer.global_step - self._first:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the next command begins anew."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing."""


def _whole_epoch(trainer: L.Trainer) -> bool:
    """Whether the epoch that ends was not cut short by a limit."""
    return trainer.fit_loop.epoch_loop.batch_progress.is_last_batch


def make_trainer(
    flags: Mapping[str, Any],
    *,
    epochs: int,
    folder: Path,
    history: History,
    checkpoint: Path,
    progress: bool,
) -> L.Trainer:
    """A trainer for one run, with the user's flags; a progress bar is for terminals alone.

    Raises:
        ValueError: If Lightning cannot do what the flags ask for.
    """
    check_flags(flags)
    norms = SyncedNorms()
    bar = progress and sys.stdout.isatty()
    passed = {"log_every_n_steps": 10, **flags}
    try:
        limits = Limits(passed.pop("max_time", None), passed.pop("max_steps", -1))
        callbacks = [history, limits, SaveEachEpoch(checkpoint)]
        trainer = L.Trainer(
            max_epochs=epochs,
            default_root_dir=folder,
            callbacks=[*callbacks, *([RichProgressBar()] if bar else [])],
            logger=TensorBoardLogger(folder, name="", version="tensorboard"),
            plugins=[AtomicCheckpointIO(), norms],
            enable_progress_bar=bar,
            enable_model_summary=False,
            use_distributed_sampler=False,
            **passed,
        )
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        given = ", ".join(f"trainer.{name}={value}" for name, value in flags.items())
        raise ValueError(f"{given}: {error}") from error
    norms.device = trainer.strategy.root_device.type
    return trainer


def check_flags(flags: Mapping[str, Any]) -> None:
    """Refuse flags that Lightning does not know, that runs set themselves, or that cannot work."""
    known = [*inspect.signature(L.Trainer.__init__).parameters][1:]
    for name in flags:
        if name in _OWN:
            raise ValueError(f"trainer.{name} cannot be set: {_OWN[name]}")
        if name not in known:
            choices = ", ".join(choice for choice in known if choice not in _OWN)
            raise ValueError(f"trainer.{name} is not a flag of Lightning; it has {choices}")
    if flags.get("limit_train_batches", 1) in (0, 0.0):
        raise ValueError(
            "trainer.limit_train_batches is 0: nothing would be trained; use 1 or more"
        )
    steps = flags.get("max_steps", -1)
    if not isinstance(steps, int) or steps == 0 or steps < -1:
        raise ValueError(f"trainer.max_steps is {steps}: use 1 or more, or leave it out")
    strategy = str(flags.get("strategy", "auto"))
    if not strategy.startswith(("auto", "ddp", "single")):
        raise ValueError(
            f"trainer.strategy={strategy}: runs keep whole networks in every process: use ddp or "
            'ddp_fork; in a loop of your own, losses with group="world" work under FSDP too'
        )
    if strategy.startswith("ddp_spawn"):
        raise ValueError(
            f"trainer.strategy={strategy}: use ddp, whose processes start as this one does, or "
            "ddp_fork"
        )
    if flags.get("precision") in ("16-true", 16, "16"):
        raise ValueError(
            f"trainer.precision={flags['precision']}: Adam needs numbers that float16 does not "
            "have: use 16-mixed, bf16-mixed or bf16-true"
        )


def train_to_the_end(
    trainer: L.Trainer,
    module: L.LightningModule,
    batches: L.LightningDataModule,
    checkpoint: Path | None,
) -> None:
    """Train to the end, from a checkpoint if there is one.

    Raises:
        KeyboardInterrupt: If the user interrupts; Lightning would leave the program.
        ConnectionError: If another process of the training is gone.
    """
    threads = torch.get_num_threads()  # of which several processes of one machine have a part each
    press = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, datamodule=batches, ckpt_path=checkpoint, weights_only=True)
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()  # all at the same time: what follows one does alone
    except MisconfigurationException as error:
        raise ValueError(f"trainer: {error}") from error
    except SystemExit as error:
        if not trainer.interrupted:
            raise
        signal.signal(signal.SIGINT, press)  # Lightning ignores it from here
        raise KeyboardInterrupt from error
    except Exception as error:
        forget(trainer)
        if (found := cause(error)) is not error:
            raise found from error
        raise
    finally:
        torch.set_num_threads(threads)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without the hints that Lightning prints about itself; errors and real warnings remain."""
    names = ("lightning.pytorch", "lightning.fabric")
    before = [logging.getLogger(name).level for name in names]
    for name in names:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in (
                # Images in memory are indexed, not decoded: workers would only copy them.
                ".*does not have many workers.*",
                ".*smaller than the logging interval.*",
                # A folder that holds a run's config is not empty, and should not be.
                ".*Checkpoint directory .* exists and is not empty.*",
                # Lightning's own use of torch.
                ".*isinstance.treespec, LeafSpec.*",
            ):
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        for name, level in zip(names, before, strict=True):
            logging.getLogger(name).setLevel(level)
