"""What a study of vision runs keeps of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tricouple.conf.schema import Train
from tricouple.evaluation.geometry import MEASURES
from tricouple.experiments.runs.loss_settings import loss_parameters, sharpness_of
from tricouple.experiments.runs.records import DONE, shortened


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
