"""The results of a study: one compact line a run, in a file that grows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tricouple.conf.schema import Train
from tricouple.experiments.vision.loss_settings import loss_parameters, sharpness_of
from tricouple.training.files import write_text
from tricouple.training.geometry import MEASURES

DONE, DIVERGED = "done", "diverged"


class Records:
    """The lines of ``runs.jsonl``, by the id of their run.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_id: dict[str, dict[str, Any]] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for number, line in enumerate(text.splitlines(), 1):
            try:
                record = json.loads(line)
                self.by_id[record["id"]] = record
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is not a record: {error!r}") from error

    def add(self, record: dict[str, Any]) -> None:
        """Add a run; the file is either as before or complete."""
        self.by_id[record["id"]] = record
        lines = (json.dumps(entry, ensure_ascii=False) for entry in self.by_id.values())
        write_text(self.path, "".join(f"{line}\n" for line in lines))


def describe(config: Train, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """What a study keeps of an evaluation: accuracies, geometry, curves, time, provenance."""
    result = evaluation["result"]
    kinds = ("penultimate", "embedding")
    metrics = dict(evaluation["accuracy"])
    for kind in kinds:
        geometry = result[kind]["geometry"] or {}
        for name in MEASURES:
            metrics[f"{kind}/{name}"] = geometry.get(name)
    geometry = result["embedding"]["geometry"] or {}
    record = {
        "status": DONE,
        "config": flat(config),
        "seconds": sum(evaluation["seconds"].values()),
        "metrics": metrics,
        "curves": evaluation["curves"],
        "spectrum": geometry.get("spectrum", []),
        "provenance": evaluation["provenance"],
    }
    short: dict[str, Any] = shortened(record)
    return short


def flat(config: Train) -> dict[str, Any]:
    """The settings that tell the runs of a study apart, in one level."""
    return {
        "data": config.data.name,
        "train_size": config.data.train_size,
        "validation_size": config.data.validation_size,
        "setting": config.setting.name,
        "loss": config.loss["name"],
        "sharpness": sharpness_of(config.loss),
        **loss_parameters(config.loss),
        "backbone": config.backbone.name,
        "epochs": config.training.epochs,
        "batch_size": config.training.batch_size,
        "learning_rate": config.training.learning_rate,
        "weight_decay": config.training.weight_decay,
        "seed": config.seed,
        "evaluated_on": config.evaluation.part,
        "probe_epochs": config.evaluation.probe_epochs,
        "neighbours": config.evaluation.neighbours,
    }


def shortened(value: Any) -> Any:
    """The same with at most six significant digits.

    Example:
        >>> shortened({"loss": [0.123456789, None], "step": 1000000})
        {'loss': [0.123457, None], 'step': 1000000}
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: shortened(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(entry) for entry in value]
    return value
