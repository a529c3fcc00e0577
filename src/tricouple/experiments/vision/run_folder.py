"""The folder of a vision run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tricouple.conf.schema import Train
from tricouple.experiments.runs import run_folder
from tricouple.experiments.runs.loss_settings import sharpness_of
from tricouple.experiments.runs.run_folder import RunError, digest

__all__ = ["RunError", "RunFolder", "digest", "folder_of"]


@dataclass(frozen=True)
class RunFolder(run_folder.RunFolder):
    """Paths of a run that trains an image encoder."""

    def read_config(self) -> Train:
        """The configuration of the run.

        Raises:
            RunError: If this is no run.
        """
        return self.read(Train)


def folder_of(config: Train) -> RunFolder:
    """The folder that a configuration asks for, or the one its values name.

    Example:
        >>> from tricouple.conf.compose import configure
        >>> folder_of(configure(["seed=3"], Train)).path.name[:38]
        'digits-scl-neg_mmiot-c10-resnet18-seed'
    """
    if config.run is not None:
        return RunFolder(Path(config.run))
    sharpness = sharpness_of(config.loss)
    parts = [
        config.data.name,
        config.setting.name,
        config.loss["name"],
        *([] if sharpness is None else [f"c{sharpness:g}"]),
        config.backbone.name,
        f"seed{config.seed}",
        digest(config)[:8],
    ]
    return RunFolder(Path(config.runs) / "-".join(parts))
