"""Studies of image-text runs."""

from __future__ import annotations

import shutil
from importlib.resources import files
from typing import Any

from tricouple.conf.schema import Clip, Study
from tricouple.experiments.clip.records import KIND, describe, flat
from tricouple.experiments.clip.run_folder import GALLERY, folder_of
from tricouple.experiments.clip.train import train
from tricouple.experiments.runs.loss_settings import sharpness_of
from tricouple.experiments.runs.run_folder import RunFolder
from tricouple.experiments.runs.study import FINAL, Trial
from tricouple.experiments.runs.study_runs import TrialRuns, read_named_study


def read_study(name: str) -> Study:
    """A study by its name, or by the path of its YAML file.

    Raises:
        ConfigurationError: If there is none, or it cannot be read.
    """
    return read_named_study(name, files("tricouple.conf.clip") / "study")


class StudyRuns(TrialRuns[Clip]):
    """The runs of a study of image and text encoders.

    The gallery of each loss at the first seed is kept beside the records.
    """

    kind = KIND
    chosen_by = "in_batch/at1"
    config = Clip

    def folder(self, config: Clip) -> RunFolder:
        """Where a run is."""
        return folder_of(config)

    def name(self, config: Clip) -> str:
        """What tells the runs of a study apart."""
        parts = (
            config.data.name,
            config.loss["name"],
            f"c{sharpness_of(config.loss):g}",
            f"lr{config.training.learning_rate:g}",
            f"seed{config.seed}",
            config.evaluation.part,
        )
        return "-".join(parts)

    def flat(self, config: Clip) -> dict[str, Any]:
        """The settings that tell the runs of a study apart, in one level."""
        return flat(config)

    def train(self, trial: Trial, config: Clip) -> dict[str, Any]:
        """Train and evaluate."""
        finished = train(config, self.console)
        if trial.part == FINAL and trial.seed == self.study.seeds[0]:
            galleries = self.out / "galleries"
            galleries.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(finished.folder.path / GALLERY, galleries / f"{self.name(config)}.npz")
        return describe(config, finished.evaluation)
