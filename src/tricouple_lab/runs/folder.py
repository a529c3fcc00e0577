"""The folder of a run, the record of a run, and how both are read without trusting them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from tricouple_lab import names
from tricouple_lab.config.compose import assign, identity_settings, split_word
from tricouple_lab.config.schema import SCHEMAS
from tricouple_lab.files import write_atomically, write_text
from tricouple_lab.names import UserError
from tricouple_lab.tasks.base import Data, Header

FILES = (
    "config.yaml", "history.csv", "last.ckpt", "encoder.safetensors", "best.safetensors",
    "metrics.json", "examples.npz", "report.html", "README.md",
)  # fmt: skip
WEIGHTS = {"last": "encoder", "best": "best"}  # which → name of the file
# Flags of Lightning that change where, how fast and how verbosely the same numbers are computed.
SPEED = (
    "accelerator", "benchmark", "detect_anomaly", "deterministic", "devices", "inference_mode",
    "log_every_n_steps", "num_nodes", "profiler", "strategy",
)  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """What is known about a run that has ended; accuracies are shares in [0, 1]."""

    id: str  # name of its folder
    task: str
    config: dict[str, Any]  # every setting
    data: dict[str, Any]  # name, digest, sizes of the splits, classes
    metric: str  # the most important key of the three below
    chance: dict[str, float]
    before: dict[str, float]  # before training
    after: dict[str, float]
    validation: float | None  # ``metric`` on validation data after the last epoch, if there are any
    curves: list[dict[str, Any]]  # the rows of history.csv
    per_class: dict[str, float]  # accuracy of the predictions in ``Evaluation.arrays``
    steps: int  # of training
    seconds: float  # of training, with its measurements
    provenance: dict[str, Any]
    stage: str = "final"  # "choose": a run of a sweep that only serves to choose a setting
    status: str = "done"  # "diverged": a run of a sweep whose loss was no longer finite

    def to_json(self, indent: int | None = None) -> str:
        """Return the record as JSON, on one line unless indented."""
        return json.dumps(asdict(self), indent=indent, ensure_ascii=False)

    @classmethod
    def read(cls, file: Path) -> Record:
        """Return the record of ``metrics.json``."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise UserError(f"{file}: damaged; delete it, and the run is measured again") from None


def read_records(path: Path) -> list[Record]:
    """Return the records below a folder."""
    return read_lines(path, lambda line, _: Record(**line))


def read_lines(path: Path, convert: Callable[[dict[str, Any], Path], T]) -> list[T]:
    """Convert each record below a folder: of sweeps (runs.jsonl), else of runs (metrics.json)."""
    files = sorted(path.rglob("runs.jsonl")) or sorted(path.rglob("metrics.json"))
    if not files:
        raise UserError(f"{path}: no finished run here (no metrics.json, no runs.jsonl)")
    found = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        for number, line in enumerate(text.split("\n") if file.suffix == ".jsonl" else [text], 1):
            if line:
                try:
                    found.append(convert(json.loads(line), file))
                except (ValueError, LookupError, TypeError, AttributeError):
                    raise UserError(f"{file}, line {number}: not the record of a run") from None
    return found


@dataclass(frozen=True)
class RunFolder:
    """Where a run is, and which run it is."""

    path: Path
    identity: str  # sha256 of task, settings that matter and decoded data

    @classmethod
    def of(cls, task_name: str, config: Any, data_digest: str) -> RunFolder:
        """Name the folder after what a reader looks for, and the identity."""
        flags = {key: value for key, value in config.trainer.items() if key not in SPEED}
        content = [task_name, identity_settings(config), flags, data_digest]
        identity = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        sharpness = config.loss.get("sharpness")
        c = f"c{sharpness:g}" if isinstance(sharpness, int | float) else ""
        network = getattr(config, "backbone", getattr(config, "model", None))
        place = config.data.name, getattr(config, "setting", ""), config.loss["name"], c
        parts = *place, getattr(network, "name", ""), f"seed{config.seed}", identity[:8]
        path = Path(config.run or Path(config.runs) / "-".join(filter(None, parts))).expanduser()
        return cls(path, identity)

    @property
    def checkpoint(self) -> Path:
        """What training continues from."""
        return self.path / "last.ckpt"

    def check(self) -> None:
        """Refuse a folder that holds another run, or files of something else."""
        marker = self.path / ".identity"
        if marker.exists():
            if marker.read_text(encoding="utf-8") != self.identity:
                why = "holds a run of other settings or data"
                raise UserError(f"run={self.path}: {why}; --restart deletes that run")
            return
        found = [name for name in FILES if (self.path / name).exists()]
        if found:
            raise UserError(f"run={self.path}: holds {found[0]} but no run; choose another folder")

    def record(self) -> Record | None:
        """Return the record if the run has finished."""
        file = self.path / "metrics.json"
        return Record.read(file) if file.exists() else None

    def clear(self) -> None:
        """Delete the files of whatever run is here, and no others."""
        for name in (".identity", *FILES):
            (self.path / name).unlink(missing_ok=True)
        for name in ("tensorboard", "encoder"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def begin(self, config: Any) -> None:
        """Write ``config.yaml`` and the identity."""
        text = yaml.safe_dump(asdict(config), sort_keys=False, allow_unicode=True)
        write_text(self.path / "config.yaml", text)
        write_text(self.path / ".identity", self.identity)

    def save_encoder(self, encoder: nn.Module, name: str, config: Any, data: Data) -> None:
        """Write the encoder's weights; settings, class names and ``about`` go into the header."""
        state = encoder.state_dict().items()
        weights = {key: value.detach().cpu().contiguous().clone() for key, value in state}
        settings = {"task": config.task, **identity_settings(config)}
        parts = {"config": settings, "classes": data.classes, "about": data.about}
        # One key: safetensors writes several in an order that changes from process to process.
        header = {"tricouple": json.dumps(parts, ensure_ascii=False)}
        file = self.path / f"{name}.safetensors"
        write_atomically(file, lambda part: save_file(weights, part, header))


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Return what the page of a run draws; empty if nothing was kept."""
    file = folder / "examples.npz"
    if not file.exists():
        return {}
    try:
        with np.load(file, allow_pickle=False) as found:
            return dict(found)
    except Exception as error:  # zip, zlib and NumPy raise many kinds for a damaged file
        raise UserError(f"{file}: damaged ({error}); tricouple evaluate writes it again") from None


def read_config(folder: Path, words: Sequence[str] = ()) -> Any:
    """Return the configuration of a run, changed by words; nothing is imported or executed.

    Loggers that are classes of other packages are left out: only a command line may name them.
    """
    file = folder / "config.yaml"
    if not file.exists():
        raise UserError(f"{folder}: not the folder of a run (no config.yaml)")
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
        task = str(found["task"])
        stored = OmegaConf.structured(SCHEMAS[task])
        # Each ``${`` is text, not a reference to something.
        plain = json.loads(json.dumps(found).replace("${", r"\\${"))
        stored.merge_with(OmegaConf.create(plain))
        for word in words:
            assign(task, stored, *split_word(word))
        config: Any = OmegaConf.to_object(stored)
    except (yaml.YAMLError, OmegaConfBaseException, LookupError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        reason = str(error).split("\n")[0]
        raise UserError(f"{file}: not the configuration of a run ({reason})") from None
    if config.loss.get("name") not in names.TABLES[task]["loss"]:
        raise UserError(f"{file}: loss {config.loss.get('name')!r} is unknown")
    config.logger = [name for name in config.logger if "." not in name]
    return config


def weights_file(folder: Path, which: str) -> Path:
    """Return the file of the ``last`` or the ``best`` weights; without validation, the last."""
    if which not in WEIGHTS:
        raise UserError(f"which={which!r}: choices are {', '.join(WEIGHTS)}")
    file = folder / f"{WEIGHTS[which]}.safetensors"
    if file.exists():
        return file
    if (folder / "encoder.safetensors").exists():
        return folder / "encoder.safetensors"
    raise UserError(f"{folder}: training has not finished; tricouple train --resume {folder}")


def read_header(file: Path) -> Header:
    """Return class names and ``Data.about`` from the header of a file of weights."""
    try:
        with safe_open(file, framework="pt") as content:
            parts = json.loads((content.metadata() or {})["tricouple"])
        return Header(tuple(map(str, parts["classes"])), dict(parts["about"]))
    except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{file}: damaged, or not of a run ({error})") from None


def load_weights(folder: Path, encoder: nn.Module, which: str = "last") -> None:
    """Load the weights of the last or the best epoch into an encoder of the same configuration.

    A child module without any tensor in the file, such as a frozen backbone, is left as it is.
    """
    file = weights_file(folder, which)
    try:
        weights = load_file(file)
        found = encoder.load_state_dict(weights, strict=False)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{file}: damaged ({error})") from None
    except RuntimeError as error:  # other shapes
        reason = " ".join(str(error).split("\n\t")[-1].split())
        raise UserError(f"{file}: not the weights of this configuration ({reason})") from None
    children = {key.split(".")[0] for key in weights}
    missing = [key for key in found.missing_keys if key.split(".")[0] in children]
    if different := [*missing, *found.unexpected_keys]:
        raise UserError(f"{file}: not the weights of this configuration ({different[0]})")
