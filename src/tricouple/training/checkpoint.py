"""Checkpoints for Lightning: atomic on disk, and loaded without running any code from them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO

from tricouple.files import save_tensors


class CheckpointError(ValueError):
    """A file that is no usable checkpoint; the message names it."""


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


def load_tensors(path: Path) -> dict[str, Any]:
    """Read a file of tensors and plain values onto the CPU.

    Raises:
        CheckpointError: If the file is missing, damaged, or holds anything else.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} is not a checkpoint, or damaged: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a checkpoint: it holds a {type(content).__name__}")
    return content
