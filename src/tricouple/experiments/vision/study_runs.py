"""Studies of vision runs."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from tricouple.conf.schema import Study, Train
from tricouple.experiments.runs.loss_settings import sharpness_of
from tricouple.experiments.runs.study import Trial
from tricouple.experiments.runs.study_runs import TrialRuns, read_named_study
from tricouple.experiments.vision.records import describe, flat
from tricouple.experiments.vision.run_folder import RunFolder, folder_of
from tricouple.experiments.vision.train import train


def read_study(name: str) -> Study:
    """A study by its name, or by the path of its YAML file.

    Raises:
        ConfigurationError: If there is none, or it cannot be read.
    """
    return read_named_study(name, files("tricouple.conf") / "study")


def trial_id(config: Train) -> str:
    """What tells the runs of a study apart, as a name."""
    parts = (
        config.data.name,
        config.setting.name,
        config.loss["name"],
        f"c{sharpness_of(config.loss):g}",
        f"lr{config.training.learning_rate:g}",
        f"seed{config.seed}",
        config.evaluation.part,
    )
    return "-".join(parts)


class StudyRuns(TrialRuns[Train]):
    """The runs of a study of image encoders."""

    kind = "vision"
    chosen_by = "penultimate/knn"
    config = Train

    def folder(self, config: Train) -> RunFolder:
        """Where a run is."""
        return folder_of(config)

    def name(self, config: Train) -> str:
        """What tells the runs of a study apart."""
        return trial_id(config)

    def flat(self, config: Train) -> dict[str, Any]:
        """The settings that tell the runs of a study apart, in one level."""
        return flat(config)

    def train(self, trial: Trial, config: Train) -> dict[str, Any]:
        """Train and evaluate."""
        return describe(config, train(config, self.console).evaluation)
