"""The folder of a run: its name says what it is, its files whether it is finished.

=====================  ===========================================================
``config.yaml``        every setting
``metrics.csv``        the curves, one row an epoch
``tensorboard/``       the same and the loss of every step, for TensorBoard
``last.ckpt``          where training continues; gone when the run is finished
``encoder.pt``         the trained weights
``evaluation.json``    what they are worth, with provenance
``figures/``           pictures of the evaluation
=====================  ===========================================================
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tricouple.conf.compose import ConfigurationError, read_yaml, to_yaml
from tricouple.conf.schema import Clip, Train
from tricouple.files import write_text

RunConfig: TypeAlias = Train | Clip
C = TypeVar("C", Train, Clip)


class RunError(ValueError):
    """A run folder that cannot be used; the message names it."""


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run."""

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
                there = self.read(Train) if isinstance(config, Train) else self.read(Clip)
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
    for name in ("target", "sharpness"):
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
