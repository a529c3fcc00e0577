"""Lightning's Trainer with what every run needs: resuming, curves, logs."""

from __future__ import annotations

import inspect
import logging
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger

from tricouple.files import load_tensors, save_tensors
from tricouple.training.history import History

# Flags that a run sets itself, and how to set them.
_OWN = {
    "max_epochs": "set training.epochs",
    "default_root_dir": "set run",
    "enable_progress_bar": "set progress",
    "accumulate_grad_batches": (
        "a contrastive loss compares the samples of one batch, so accumulating over small batches "
        "is not the loss of a large one; set training.batch_size"
    ),
    "use_distributed_sampler": "every process already draws its own share of an epoch",
    **dict.fromkeys(("callbacks", "logger", "plugins"), "runs bring their own"),
}


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
    """Saves everything that is needed to continue, after each epoch, to one file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save; Lightning calls checkpoint callbacks after all others."""
        trainer.save_checkpoint(self.path)


def make_trainer(
    flags: Mapping[str, Any],
    *,
    epochs: int,
    folder: Path,
    history: History,
    checkpoint: Path,
    progress: bool,
) -> L.Trainer:
    """A trainer for one run.

    Args:
        flags: Of Lightning's Trainer, from the configuration.
        epochs: How long to train.
        folder: Of the run; TensorBoard's files go there.
        history: Writes the curves.
        checkpoint: Where training continues.
        progress: Whether to show a progress bar, if this is a terminal.

    Raises:
        ValueError: If there is no such flag, or it is not the user's to set.
    """
    check_flags(flags)
    bar = progress and sys.stdout.isatty()
    return L.Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=[history, SaveEachEpoch(checkpoint), *([RichProgressBar()] if bar else [])],
        logger=TensorBoardLogger(folder, name="", version="tensorboard"),
        plugins=[AtomicCheckpointIO()],
        enable_progress_bar=bar,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **{"log_every_n_steps": 10, **flags},
    )


def check_flags(flags: Mapping[str, Any]) -> None:
    """Refuse flags that Lightning does not know, and those that runs set themselves."""
    known = [*inspect.signature(L.Trainer.__init__).parameters][1:]
    for name in flags:
        if name in _OWN:
            raise ValueError(f"trainer.{name} cannot be set: {_OWN[name]}")
        if name not in known:
            choices = ", ".join(choice for choice in known if choice not in _OWN)
            raise ValueError(f"trainer.{name} is not a flag of Lightning; it has {choices}")


def train_to_the_end(
    trainer: L.Trainer,
    module: L.LightningModule,
    batches: L.LightningDataModule,
    checkpoint: Path | None,
) -> None:
    """Train to the end, from a checkpoint if there is one.

    Raises:
        KeyboardInterrupt: If the user interrupts; Lightning would leave the program.
    """
    try:
        trainer.fit(module, datamodule=batches, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as error:
        if not trainer.interrupted:
            raise
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning ignores it from here
        raise KeyboardInterrupt from error


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
