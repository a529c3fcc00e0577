"""Running a study: every trial once, its record kept, its folder removed when no longer needed."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console

from tricouple.conf.compose import ConfigurationError, configure, read_yaml
from tricouple.conf.schema import Study, Train
from tricouple.experiments.provenance import collect_provenance
from tricouple.experiments.vision.loss_settings import sharpness_of
from tricouple.experiments.vision.records import (
    DIVERGED,
    DONE,
    Records,
    describe,
    flat,
    shortened,
)
from tricouple.experiments.vision.run_folder import RunFolder, folder_of
from tricouple.experiments.vision.study import Trial, run_block
from tricouple.experiments.vision.train import train
from tricouple.training.files import write_text
from tricouple.training.module import DivergenceError

CHOSEN_BY = "penultimate/knn"


def read_study(name: str) -> Study:
    """A study by its name, or by the path of its YAML file.

    Raises:
        ConfigurationError: If there is none, or it cannot be read.
    """
    own = files("tricouple.conf") / "study"
    try:
        return read_yaml(Path(name) if name.endswith(".yaml") else own / f"{name}.yaml", Study)
    except FileNotFoundError as error:
        names = sorted(entry.name.removesuffix(".yaml") for entry in own.iterdir())
        raise ConfigurationError(
            f"study {name!r} is not there: choose one of {', '.join(names)}, or give a YAML file"
        ) from error


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


class StudyRuns:
    """The runs of a study, done and to do.

    Args:
        study: What to compare.
        out: Folder of the results.
        runs: Folder of the runs, which are removed block by block.
        console: Says what happens.
    """

    def __init__(self, study: Study, out: Path, runs: Path, console: Console) -> None:
        self.study = study
        self.runs = runs
        self.console = console
        self.records = Records(out / "runs.jsonl")
        head = {
            "kind": "vision",
            "name": study.name,
            "config": {**asdict(study), "chosen_by": f"{CHOSEN_BY} on validation images"},
            "provenance": collect_provenance(),
        }
        write_text(out / "study.json", json.dumps(head, indent=1, ensure_ascii=False) + "\n")

    def go(self) -> None:
        """Do everything that is missing."""
        for words in self.study.blocks:
            folders: set[RunFolder] = set()

            def measure(trial: Trial, folders: set[RunFolder] = folders) -> float:
                config = self.configuration(trial)
                folders.add(folder_of(config))
                return self.measure(trial, config)

            run_block(self.study, tuple(words), measure)
            for folder in folders:
                shutil.rmtree(folder.path, ignore_errors=True)

    def configuration(self, trial: Trial) -> Train:
        """The configuration of a trial's run."""
        return configure([*self.study.base, *trial.words(), f"runs={self.runs}"], Train)

    def measure(self, trial: Trial, config: Train) -> float:
        """The accuracy of a trial, from its record if there is one.

        Raises:
            ValueError: If the record is of a run with other settings.
        """
        name = trial_id(config)
        record = self.records.by_id.get(name)
        if record is None:
            record = {"id": name, "part": trial.part, **self.compute(config)}
            self.records.add(record)
            accuracy = record.get("metrics", {}).get(CHOSEN_BY)
            self.console.print(f"{trial.part}: {name}: {accuracy or record['status']}")
        elif record["config"] != shortened(flat(config)):
            raise ValueError(
                f"{self.records.path}: {name} was run with other settings than the study has now: "
                "choose another --out, or delete the line"
            )
        return float(record["metrics"][CHOSEN_BY]) if record["status"] == DONE else 0.0

    def compute(self, config: Train) -> dict[str, Any]:
        """Train and evaluate; a run that diverges is a result too."""
        try:
            return describe(config, train(config, self.console).evaluation)
        except DivergenceError as error:
            return {
                "status": DIVERGED,
                "verdict": str(error),
                "config": shortened(flat(config)),
                "provenance": collect_provenance(),
            }
