"""The folder of a run: its name says what it is, its files whether it is finished.

===========================  ===================================================================
``config.yaml``              every setting
``metrics.csv``              the curves, one row an epoch
``tensorboard/``             the same and the loss of every step, for TensorBoard
``last.ckpt``                where training continues; gone when the run is finished
``encoder.pt``               the trained weights
``evaluation.json``          what they are worth, with provenance
``figures/``                 pictures of the evaluation
``study.json, runs.jsonl``   the run as a study of one, for the report; see ``record``
===========================  ===================================================================
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from tricouple.conf.compose import read_yaml, to_yaml
from tricouple.conf.schema import RunConfig
from tricouple.conf.words import ConfigurationError
from tricouple.files import CheckpointError, load_tensors, save_tensors, write_text
from tricouple.training.trainer import History, Row

C = TypeVar("C", bound=RunConfig)

_PREFIX = "encoder."  # of the encoder's weights in a checkpoint of the whole training


class RunError(ValueError):
    """A run folder that cannot be used; the message names it."""


@dataclass(frozen=True)
class Trained:
    """How far a run has come."""

    identity: str  # digest of the configuration
    weights: dict[str, Any]  # of the encoder
    rows: list[Row]  # of its curves, one an epoch and one before the first

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return int(self.rows[-1]["epoch"])

    def restore(self, encoder: nn.Module, identity: str, folder: RunFolder) -> None:
        """Load the weights into an encoder of the same configuration."""
        if self.identity != identity:
            raise CheckpointError(f"the weights in {folder.path} are of another configuration")
        encoder.load_state_dict(self.weights)


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run, and what they hold."""

    path: Path

    @property
    def config(self) -> Path:
        """Every setting."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """The curves."""
        return self.path / "metrics.csv"

    @property
    def checkpoint(self) -> Path:
        """Where training continues."""
        return self.path / "last.ckpt"

    @property
    def encoder(self) -> Path:
        """The trained weights."""
        return self.path / "encoder.pt"

    @property
    def evaluation(self) -> Path:
        """What they are worth."""
        return self.path / "evaluation.json"

    @property
    def figures(self) -> Path:
        """Pictures of the evaluation."""
        return self.path / "figures"

    def read(self, kind: type[C]) -> C:
        """The configuration of the run.

        Raises:
            RunError: If this is no run.
        """
        try:
            return read_yaml(self.config, kind)
        except FileNotFoundError as error:
            raise RunError(f"{self.path} is not a run: it has no config.yaml") from error

    def read_evaluation(self) -> dict[str, Any] | None:
        """The last evaluation, None if there is none."""
        try:
            content: dict[str, Any] = json.loads(self.evaluation.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {self.evaluation}: {error}; delete it") from error
        return content

    def read_trained(self) -> Trained:
        """The weights of the run: the final ones, or those of the last finished epoch.

        Raises:
            CheckpointError: If there are none, or the file is damaged.
        """
        try:
            if self.encoder.exists():
                return Trained(**load_tensors(self.encoder))
            if self.checkpoint.exists():
                content = load_tensors(self.checkpoint)
                weights = {
                    name.removeprefix(_PREFIX): value
                    for name, value in content["state_dict"].items()
                    if name.startswith(_PREFIX)
                }
                rows = content["callbacks"][History.__qualname__]["rows"]
                return Trained(content["identity"], weights, rows)
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"the weights in {self.path} lack {error}: delete them"
            ) from error
        raise CheckpointError(f"{self.path} has no weights yet: no epoch is finished")

    def write_trained(self, trained: Trained) -> None:
        """Keep the result of a training, without what only its continuation would need."""
        save_tensors(self.encoder, vars(trained))

    def claim(self, config: RunConfig) -> None:
        """Make this the folder of a configuration.

        Raises:
            RunError: If another configuration lives here.
        """
        self.check(config)
        write_text(self.config, to_yaml(config))

    def check(self, config: RunConfig) -> None:
        """See that no other configuration lives here.

        Raises:
            RunError: If another configuration lives here.
        """
        if self.config.exists():
            try:
                there = self.read(type(config))
            except ConfigurationError as error:
                raise RunError(
                    f"{error}; another version of tricouple may have written it: choose another "
                    "folder with run=FOLDER, or delete this one"
                ) from error
            differences = list(_differences(identity(there), identity(config)))
            if differences:
                raise RunError(
                    f"{self.path} belongs to another configuration ({'; '.join(differences[:3])}): "
                    "choose another folder with run=FOLDER, or delete this one"
                )
        elif self.checkpoint.exists() or self.encoder.exists():
            raise RunError(
                f"{self.path} has weights but no config.yaml: choose another folder with "
                "run=FOLDER, or delete this one"
            )


def digest(config: RunConfig) -> str:
    """A hexadecimal number that differs between configurations that train differently."""
    text = json.dumps(identity(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def identity(config: RunConfig) -> dict[str, Any]:
    """What decides the trained weights: all settings but those of the evaluation and the places."""
    parts = asdict(config)
    for name in ("evaluation", "runs", "run", "progress", "scale"):
        del parts[name]
    for name in ("target", "_target_", "sharpness"):  # the first in files of earlier versions
        parts["loss"].pop(name, None)
    for name in config.data.places():
        del parts["data"][name]
    return parts


def _differences(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name in {**here, **there}:
        old, new = there.get(name), here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name} is {old} there and {new} here"
