"""The folder of a run: its name says what it is, its files whether it is finished.

===========================  ===================================================================
``config.yaml``              every setting
``data.json``                which files it was trained on
``metrics.csv``              the curves, one row an epoch
``tensorboard/``             the same and the loss of every step, for TensorBoard
``last.ckpt``                where training continues; gone when the run is finished
``encoder.pt``               the trained weights
``evaluation.json``          what they are worth, with provenance
``gallery.npz``              what the report draws of the evaluation
``study.json, runs.jsonl``   the run as a study of one, for the report; see ``record``
===========================  ===================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from torch import Tensor, nn

from tricouple_lab.conf.compose import read_yaml, to_yaml
from tricouple_lab.conf.schema import RunConfig
from tricouple_lab.conf.words import STARTS, ConfigurationError
from tricouple_lab.experiments.runs.identity import (
    Listing,
    changes,
    differences,
    digest,
    former_digest,
    identity,
    of_ones_own,
    resolved,
)
from tricouple_lab.experiments.runs.record import Store
from tricouple_lab.files import (
    CheckpointError,
    load_tensors,
    locked,
    remove_debris,
    save_tensors,
    write_text,
)
from tricouple_lab.options import CommandError
from tricouple_lab.training.trainer import History, Row

C = TypeVar("C", bound=RunConfig)

_PREFIX = "encoder."  # of the encoder's weights in a checkpoint of the whole training


class RunError(ValueError):
    """A run folder that cannot be used; the message names it."""


@dataclass(frozen=True)
class Trained:
    """How far a run has come."""

    identity: str  # digest of the configuration
    weights: dict[str, Tensor]  # of the encoder
    rows: list[Row]  # of its curves, one an epoch and one before the first
    # What it takes to use the encoder without its data; empty in files of the version before.
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isinstance(self.weights, dict) and isinstance(self.about, dict)):
            raise TypeError("a table of weights")
        if not all(isinstance(value, Tensor) for value in self.weights.values()):
            raise TypeError("tensors")
        if not (isinstance(self.rows, list) and self.rows and self.epoch >= 0):
            raise TypeError("a row an epoch")

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return int(self.rows[-1]["epoch"])

    def restore(self, encoder: nn.Module, folder: RunFolder) -> None:
        """Load the weights into an encoder of the same configuration."""
        try:
            encoder.load_state_dict(self.weights)
        except RuntimeError as error:
            raise CheckpointError(
                f"the weights in {folder.path} do not fit the network of its config.yaml: delete "
                "the folder"
            ) from error


class _File:
    """The path of a file in the folder that is asked for it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, _: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run, as the table above has them, and what they hold."""

    path: Path

    config = _File("config.yaml")
    data = _File("data.json")
    metrics = _File("metrics.csv")
    checkpoint = _File("last.ckpt")
    encoder = _File("encoder.pt")
    evaluation = _File("evaluation.json")
    gallery = _File("gallery.npz")

    def read(self, kind: type[C]) -> C:
        """The configuration of the run.

        Raises:
            RunError: If this is no run, or one of another command.
            ConfigurationError: If its config.yaml cannot be read.
        """
        try:
            return read_yaml(self.config, kind)
        except FileNotFoundError as error:
            raise RunError(f"{self.path} is not a run: it has no config.yaml") from error
        except ConfigurationError:
            for other, start in STARTS.items():
                with suppress(ConfigurationError):
                    read_yaml(self.config, other)
                    raise RunError(
                        f"{self.path} is a run of tricouple {start.name}: that command again, with "
                        "other evaluation.* settings if they are wanted, evaluates it"
                    ) from None
            raise

    def read_evaluation(self) -> dict[str, Any]:
        """The last evaluation, empty if there is none."""
        return _read_json(self.evaluation, "the same command evaluates again")

    def provenance(self) -> dict[str, Any]:
        """Where the run comes from, as its last record says; empty if it does not."""
        try:
            record = Store(self.path).records().get(self.path.name, {})
            return dict(record.get("provenance") or {})
        except (CommandError, AttributeError, TypeError, ValueError):
            return {}

    def read_trained(self, config: RunConfig) -> Trained:
        """The weights of the run: the final ones, or those of the last finished epoch.

        Raises:
            CheckpointError: If there are none, or the file is damaged.
        """
        path = self.encoder if self.encoder.exists() else self.checkpoint
        if not path.exists():
            raise CheckpointError(f"{self.path} has no weights yet: no epoch is finished")
        content = load_tensors(path)
        try:
            if path == self.checkpoint:
                rows = content["callbacks"][History.__qualname__]["rows"]
                weights = {
                    name.removeprefix(_PREFIX): value
                    for name, value in content["state_dict"].items()
                    if name.startswith(_PREFIX)
                }
                content = {"identity": content["identity"], "weights": weights, "rows": rows}
            trained = Trained(**content)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{path} is damaged, it lacks {error}: delete it") from error
        if trained.identity not in (digest(config), former_digest(config)):
            raise CheckpointError(
                f"{path} is of another configuration: move it away, or choose another folder with "
                "run=FOLDER"
            )
        return trained

    def write_trained(self, trained: Trained) -> None:
        """Keep the result of a training, without what only its continuation would need."""
        save_tensors(self.encoder, vars(trained))

    @contextmanager
    def held(self, console: Console) -> Iterator[None]:
        """Work on the run alone: another command waits until this one is done."""

        def waiting(who: str) -> None:
            console.print(
                f"Another process works on {self.path} ({who}): waiting for it …",
                soft_wrap=True,
                markup=False,
            )

        with locked(self.path / ".lock", waiting):
            remove_debris(self.path)
            yield

    def claim(self, config: RunConfig, data: Listing) -> None:
        """Make this the folder of a configuration and of the files that it is about.

        Raises:
            RunError: If another configuration lives here, or the data have changed.
        """
        self.check(config, data)
        if data:  # also for a run of an earlier version, which noted nothing of published data
            write_text(self.data, json.dumps(data, indent=1) + "\n")
        write_text(self.config, to_yaml(resolved(config)))

    def check(self, config: RunConfig, data: Listing) -> None:
        """See that no other configuration lives here, and that the data are the same.

        Raises:
            RunError: If another configuration lives here, or the data have changed.
        """
        choose = "choose another folder with run=FOLDER, or delete this one"
        if self.config.exists():
            try:
                there = self.read(type(config))
            except ConfigurationError as error:
                raise RunError(
                    f"{error}; another version of tricouple may have written it: {choose}"
                ) from error
            if other := list(differences(identity(there), identity(config))):
                raise RunError(
                    f"{self.path} belongs to another configuration ({'; '.join(other[:3])}): "
                    f"{choose}"
                )
            self.check_data(data, choose)
        elif self.checkpoint.exists() or self.encoder.exists():
            raise RunError(f"{self.path} has weights but no config.yaml: {choose}")

    def check_data(self, data: Listing, todo: str) -> None:
        """See that the files are those that the run was trained on.

        Raises:
            RunError: If they are not, or the run does not say; ``todo`` is what to do then.
        """
        if not data:
            return
        there = _read_json(self.data, todo)
        if not there and of_ones_own(data):
            raise RunError(
                f"{self.path} was made by an earlier version, which did not note its data: {todo}"
            )
        if changed := list(changes(there, data)):
            more = f"; and {len(changed) - 3} more" * (len(changed) > 3)
            raise RunError(
                f"{self.path}: the data have changed since: {'; '.join(changed[:3])}{more}: {todo}"
            )


def _read_json(path: Path, todo: str) -> dict[str, Any]:
    """A JSON object, empty if there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"cannot read {path}: {error}; delete it: {todo}") from error
    if not isinstance(content, dict):
        raise RunError(f"cannot read {path}: it holds no table; delete it: {todo}")
    return content
