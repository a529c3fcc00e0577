"""What a study of image-text runs keeps of each; a single run is a study of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tricouple.conf.schema import Clip
from tricouple.experiments.clip.run_folder import folder_of
from tricouple.experiments.runs.loss_settings import loss_parameters, sharpness_of
from tricouple.experiments.runs.records import DONE, Records, shortened
from tricouple.files import write_text

KIND = "clip"


def describe(config: Clip, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Figures and what guessing would give (``chance/…``), curves, time and provenance."""
    result = evaluation["result"]
    chance = {
        f"chance/{place}/{direction}/{name}": value
        for place in ("whole_split", "in_batch")
        for direction, key in (("image_to_text", "chance"), ("text_to_image", "chance_text"))
        for name, value in result[place][key].items()
    }
    for name, row in result["zero_shot"].items():
        chance[f"chance/zero_shot/{name}/top1"] = row["chance"]
        chance[f"chance/zero_shot/{name}/top5"] = min(1.0, 5 * row["chance"])
    sizes = {name: result[name] for name in ("n_images", "n_captions", "batch_size")}
    record = {
        "status": DONE,
        "config": flat(config),
        "seconds": sum(evaluation["seconds"].values()),
        "metrics": {**evaluation["metrics"], **chance, **sizes},
        "notes": evaluation["notes"],
        "curves": evaluation["curves"],
        "provenance": evaluation["provenance"],
    }
    short: dict[str, Any] = shortened(record)
    return short


def flat(config: Clip) -> dict[str, Any]:
    """The settings that tell the runs of a study apart, in one level."""
    training = config.training
    return {
        "data": config.data.name,
        "train_size": config.data.train_size,
        "loss": config.loss["name"],
        "sharpness": sharpness_of(config.loss),
        **loss_parameters(config.loss),
        "model": config.model.name,
        "image_size": config.model.vision.get("image_size"),
        "epochs": training.epochs,
        "batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
        "weight_decay": training.weight_decay,
        "decoupled_decay": training.decoupled_decay,
        "captions": training.captions,
        "learn_temperature": training.learn_temperature,
        "seed": config.seed,
        "evaluated_on": config.evaluation.part,
        "zero_shot_size": config.evaluation.zero_shot_size,
    }


def write_as_study(config: Clip, evaluation: Mapping[str, Any]) -> None:
    """Make the folder of a run one that ``tricouple report`` reads."""
    folder = folder_of(config).path
    head = {
        "kind": KIND,
        "name": folder.name,
        "config": {"scale": config.scale.name},
        "provenance": evaluation["provenance"],
    }
    record = {"id": folder.name, "part": "final", **describe(config, evaluation)}
    (folder / "runs.jsonl").unlink(missing_ok=True)
    Records(folder / "runs.jsonl").add(record)
    write_text(folder / "study.json", json.dumps(head, indent=1, ensure_ascii=False) + "\n")
