"""Running a study: every trial once, its record kept, its folder removed when no longer needed."""

from __future__ import annotations

import gc
import json
import shutil
from abc import ABC, abstractmethod
from dataclasses import asdict
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console

from tricouple.conf.compose import ConfigurationError, configure, read_yaml
from tricouple.conf.schema import Study
from tricouple.experiments.runs.records import DIVERGED, DONE, Records, shortened
from tricouple.experiments.runs.run_folder import RunConfig, RunFolder
from tricouple.experiments.runs.study import Trial, run_block
from tricouple.files import write_text
from tricouple.provenance import collect_provenance
from tricouple.training.module import DivergenceError

C = TypeVar("C", bound=RunConfig)


def read_named_study(name: str, own: Traversable) -> Study:
    """A study by its name, or by the path of its YAML file.

    Args:
        name: Of the study or the file.
        own: Folder of the studies that have a name.

    Raises:
        ConfigurationError: If there is none, or it cannot be read.
    """
    try:
        return read_yaml(Path(name) if name.endswith(".yaml") else own / f"{name}.yaml", Study)
    except FileNotFoundError as error:
        names = sorted(entry.name.removesuffix(".yaml") for entry in own.iterdir())
        raise ConfigurationError(
            f"study {name!r} is not there: choose one of {', '.join(names)}, or give a YAML file"
        ) from error


class TrialRuns(ABC, Generic[C]):
    """The runs of a study, done and to do; subclasses say what a run is.

    Args:
        study: What to compare.
        out: Folder of the results.
        runs: Folder of the runs, which are removed block by block.
        console: Says what happens.
    """

    kind: str  # of the study, for its report
    chosen_by: str  # the metric that settings are chosen by
    config: type[C]

    def __init__(self, study: Study, out: Path, runs: Path, console: Console) -> None:
        self.study = study
        self.out = out
        self.runs = runs
        self.console = console
        self.records = Records(out / "runs.jsonl")
        head = {
            "kind": self.kind,
            "name": study.name,
            "config": {**asdict(study), "chosen_by": f"{self.chosen_by} on validation images"},
            "provenance": collect_provenance(),
        }
        write_text(out / "study.json", json.dumps(head, indent=1, ensure_ascii=False) + "\n")

    @abstractmethod
    def folder(self, config: C) -> RunFolder:
        """Where a run is."""

    @abstractmethod
    def name(self, config: C) -> str:
        """What tells the runs of a study apart."""

    @abstractmethod
    def flat(self, config: C) -> dict[str, Any]:
        """The settings that tell the runs of a study apart, in one level."""

    @abstractmethod
    def train(self, trial: Trial, config: C) -> dict[str, Any]:
        """Train and evaluate; what the study keeps of it.

        Raises:
            DivergenceError: If the loss stopped being a number.
        """

    def go(self) -> None:
        """Do everything that is missing."""
        for words in self.study.blocks:
            folders: set[RunFolder] = set()

            def measure(trial: Trial, folders: set[RunFolder] = folders) -> float:
                config = self.configuration(trial)
                folders.add(self.folder(config))
                return self.measure(trial, config)

            run_block(self.study, tuple(words), measure)
            for folder in folders:
                shutil.rmtree(folder.path, ignore_errors=True)

    def configuration(self, trial: Trial) -> C:
        """The configuration of a trial's run."""
        return configure([*self.study.base, *trial.words(), f"runs={self.runs}"], self.config)

    def measure(self, trial: Trial, config: C) -> float:
        """The accuracy of a trial, from its record if there is one.

        Raises:
            ValueError: If the record is of a run with other settings.
        """
        name = self.name(config)
        record = self.records.by_id.get(name)
        if record is None:
            record = {"id": name, "part": trial.part, **self.compute(trial, config)}
            self.records.add(record)
            gc.collect()  # trainer and module refer to each other: they would stay in memory
            accuracy = record.get("metrics", {}).get(self.chosen_by)
            self.console.print(f"{trial.part}: {name}: {accuracy or record['status']}")
        elif record["config"] != shortened(self.flat(config)):
            raise ValueError(
                f"{self.records.path}: {name} was run with other settings than the study has now: "
                "choose another --out, or delete the line"
            )
        return float(record["metrics"][self.chosen_by]) if record["status"] == DONE else 0.0

    def compute(self, trial: Trial, config: C) -> dict[str, Any]:
        """Train and evaluate; a run that diverges is a result too."""
        try:
            return self.train(trial, config)
        except DivergenceError as error:
            return {
                "status": DIVERGED,
                "verdict": str(error),
                "config": shortened(self.flat(config)),
                "provenance": collect_provenance(),
            }
