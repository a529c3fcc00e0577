"""Read a folder of runs of ``tricouple train``, such as a sweep leaves, as if it were a study."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tricouple.report.read import Study, StudyError, run_of

CONFIG, EVALUATION, METRICS = "config.yaml", "evaluation.json", "metrics.csv"


def has_runs(folder: Path) -> bool:
    """Whether a folder is a run, or holds some."""
    return bool(_runs(folder))


def read_runs_folder(folder: Path) -> Study:
    """Read all runs of a folder; one that is not finished counts as partial.

    Raises:
        StudyError: If a file cannot be understood.
    """
    records = [_record(path) for path in _runs(folder)]
    runs = tuple(run_of(record, 0, path / EVALUATION) for path, record in records)
    origins = [run.provenance for run in runs if run.provenance]
    newest = max(origins, key=lambda origin: str(origin.get("date")), default={})
    return Study(
        folder=folder,
        kind="vision",
        name=folder.resolve().name,
        config={},
        provenance=newest,
        runs=runs,
    )


def _runs(folder: Path) -> list[Path]:
    if (folder / CONFIG).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))


def _record(path: Path) -> tuple[Path, dict[str, Any]]:
    evaluation = _evaluation(path)
    config = evaluation["config"] if evaluation else _config(path)
    result = (evaluation or {}).get("result")
    record: dict[str, Any] = {
        "id": path.resolve().name,
        "config": _flat(config, evaluation or {}, path),
        "status": "partial",
    }
    if evaluation is None:
        return path, record | {"curves": _curves(path / METRICS)}
    seconds = sum((evaluation.get("seconds") or {}).values())
    # An evaluation in the middle of training says so: it is not of the whole run.
    whole = evaluation.get("epoch") == record["config"]["epochs"]
    return path, record | {
        "status": "done" if whole else "partial",
        "seconds": seconds,
        "metrics": (evaluation.get("accuracy") or {}) | _counted(result),
        "curves": evaluation.get("curves"),
        "spectrum": _spectrum(result),
        "provenance": evaluation.get("provenance"),
    }


def _flat(config: dict[str, Any], evaluation: dict[str, Any], path: Path) -> dict[str, Any]:
    """The settings that tell runs apart, under the names that a study gives them."""
    try:
        data, training, loss = config["data"], config["training"], config["loss"]
        flat = {
            "data": data["name"],
            "train_size": data["train_size"],
            "max_train_size": data.get("max_train_size"),
            "validation_size": data["validation_size"],
            "setting": config["setting"]["name"],
            "loss": loss["name"],
            "sharpness": evaluation.get("sharpness", loss.get("sharpness")),
            **{key: value for key, value in loss.items() if key not in ("name", "target")},
            "backbone": config["backbone"]["name"],
            "pretrained": config["backbone"]["pretrained"],
            "head_dim": config["backbone"]["head_dim"],
            "image_size": data["image_size"],
            **{key: value for key, value in training.items() if not key.startswith("geometry")},
            "seed": config["seed"],
            "evaluated_on": config["evaluation"]["part"],
            "probe_epochs": config["evaluation"]["probe_epochs"],
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise StudyError(f"{path / CONFIG}: not a run of tricouple train: no {error}") from error
    return flat


def _counted(result: object) -> dict[str, Any]:
    """The geometry of both kinds of features, and the number of images they were learned from."""
    if not isinstance(result, dict):
        return {}
    return {"images": result["n_train"]} | {
        f"{kind}/{name}": value
        for kind in ("penultimate", "embedding")
        for name, value in (result[kind]["geometry"] or {}).items()
        if name != "spectrum"
    }


def _spectrum(result: object) -> list[float]:
    if not isinstance(result, dict):
        return []
    return list((result["embedding"]["geometry"] or {}).get("spectrum", []))


def _evaluation(path: Path) -> dict[str, Any] | None:
    file = path / EVALUATION
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
            raise ValueError("it has no configuration")
    except (OSError, ValueError) as error:
        raise StudyError(f"cannot read {file}: {error}") from error
    return content


def _config(path: Path) -> dict[str, Any]:
    file = path / CONFIG
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StudyError(f"cannot read {file}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise StudyError(f"{file}: not a run of tricouple train")
    return content


def _curves(path: Path) -> dict[str, list[float | None]]:
    """The curves so far, None where a row has no value; a row that is being written is left out."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return (
        {name: [float(row[name]) if row[name] else None for row in rows] for name in rows[0]}
        if rows
        else {}
    )
