"""The folder of a run on images and captions."""

from __future__ import annotations

from pathlib import Path

from tricouple.conf.schema import Clip
from tricouple.experiments.runs.loss_settings import sharpness_of
from tricouple.experiments.runs.run_folder import RunFolder, digest

GALLERY = "gallery.npz"  # beside the evaluation: what the report shows of it


def folder_of(config: Clip) -> RunFolder:
    """The folder that a configuration asks for, or the one its values name.

    Example:
        >>> from tricouple.conf.compose import configure
        >>> folder_of(configure(["seed=3"], Clip)).path.name[:35]
        'clip-shapes-neg_mmiot-c10-small-see'
    """
    if config.run is not None:
        return RunFolder(Path(config.run))
    parts = [
        "clip",
        config.data.name,
        config.loss["name"],
        f"c{sharpness_of(config.loss):g}",
        config.model.name,
        f"seed{config.seed}",
        digest(config)[:8],
    ]
    return RunFolder(Path(config.runs) / "-".join(parts))
