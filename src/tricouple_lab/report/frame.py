"""Records as one table, a row per run: new ones, and the lines committed in ``results``."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import entropy

from tricouple_lab.report.run_page import method_name
from tricouple_lab.runs.folder import Record, read_lines

# Settings of committed lines → settings of today. The three last rows are of metrics.
RENAMED = {
    "data": "data.name",
    "train_size": "data.train_size",
    "shots": "data.shots",
    "n_classes": "data.n_classes",
    "kappa": "data.kappa",
    "imbalance": "data.imbalance",
    "backbone": "backbone.name",
    "model": "model.name",
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "learning_rate": "training.learning_rate",
    "loss": "loss.name",
    "method": "loss.name",
    "sharpness": "loss.sharpness",
    "shaping": "loss.shaping",
    "penultimate/": "features/",
    "in_batch/": "recall_in_batch/",
    "whole_split/": "recall/",
}
STAGES = {"main": "final", "sharpness": "choose", "learning_rate": "choose"}
METRICS = {"right": "embedding/ncm", "in_batch/at1": "recall_in_batch/mean@1"}
TASKS = {"vision": "images", "image_tables": "images", "synthetic": "mixture"}
GEOMETRY = ("nc1", "nc2_std", "nc2_deviation", "alpha", "beta", "effective_rank")


def frame(source: Iterable[Path | Record] | Path) -> pd.DataFrame:
    """Return one row per run, the last line of an id.

    Columns: ``id task stage status metric method validation seconds steps``, settings by name,
    ``chance/…``, ``before/…``, ``after/…``, and as objects ``curves`` (rows of history.csv),
    ``spectrum`` and ``provenance``.
    """
    rows: list[dict[str, Any]] = []
    for item in [source] if isinstance(source, Path) else source:
        if isinstance(item, Path):
            rows += read_lines(item, _row)
        else:
            rows.append(_row(asdict(item), Path()))
    table = pd.DataFrame(rows, columns=None if rows else ["id", "task", "stage", "status"])
    return table.drop_duplicates(["id", "stage"], keep="last", ignore_index=True)


def _row(record: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return a line of today, or a committed one, as a row."""
    if "after" not in record:
        study = file.with_name("study.json")
        head = json.loads(study.read_text(encoding="utf-8")) if study.exists() else {}
        return _old_row(record, head)
    scores = {
        f"{when}/{key}": value
        for when in ("chance", "before", "after")
        for key, value in record[when].items()
    }
    nested = ("config", "chance", "before", "after")
    plain = {key: value for key, value in record.items() if key not in nested}
    method, digest = method_name(record["config"]["loss"]), record["data"]["digest"]
    named = {"data.digest": digest, "method": method}
    return {"status": "done", **plain, **_flat(record["config"]), **scores, **named}


def _old_row(line: Mapping[str, Any], study: Mapping[str, Any]) -> dict[str, Any]:
    """Return a committed line as a row."""
    kind, curves = study.get("kind", ""), line.get("curves") or {}
    known = (*RENAMED, "setting", "condition", "seed")
    config = {
        RENAMED.get(key, key) if key in known else f"old.{key}": value
        for key, value in line["config"].items()
    }
    history = pd.DataFrame(curves).rename(columns={key: f"geometry/{key}" for key in GEOMETRY})
    metrics = dict(line.get("metrics") or {})
    if not metrics and len(history):  # the mixture: what the curves end at
        history = history.rename(columns={"knn": "embedding/knn"})
        metrics = {key: value for key, value in history.iloc[-1].items() if "/" in str(key)}
        metrics["geometry/directions"] = np.exp(entropy(np.clip(line["spectrum"], 0, None)))
    scores = {}
    for key, value in metrics.items():
        if key.startswith("n_") or key in ("images", "batch_size"):
            continue
        new = _metric(key)
        scores[new if new.startswith("chance/") else f"after/{new}"] = value
    if kind == "text" and config["model.name"] == "minilm":  # the head begins as the identity
        scores |= {
            key.replace("after/features", "before/embedding"): value
            for key, value in scores.items()
            if key.startswith("after/features")
        }
    metric = _old_metric(study, [key[6:] for key in scores if key.startswith("after/")], line)
    return {
        "id": line["id"],
        "task": TASKS.get(kind, kind),
        "stage": STAGES.get(line["part"], line["part"]),
        "status": line["status"],
        "metric": metric,
        "validation": scores.get(f"after/{metric}"),
        "seconds": line.get("seconds"),
        "steps": line.get("steps") or (curves.get("step") or [config.get("old.steps")])[-1],
        **config,
        **scores,
        "method": method_name({"name": config.get("loss.name", "")}),
        "curves": history.to_dict("records"),
        "spectrum": line.get("spectrum"),
        "verdict": line.get("verdict"),
        "provenance": line.get("provenance") or study.get("provenance", {}),
    }


def _old_metric(study: Mapping[str, Any], metrics: list[str], line: Mapping[str, Any]) -> str:
    """Return what a committed study chose by, else the value at the end, else the first one."""
    chosen = str(study.get("config", {}).get("chosen_by") or "").split(" on ")[0]
    ends = [key for key in metrics if key.endswith(f"@{line.get('steps')}")]
    usual = [key for key in ("geometry/nc2_deviation", "features/knn") if key in metrics]
    return next((key for key in (_metric(chosen), *ends, *usual) if key in metrics), metrics[0])


def _metric(key: str) -> str:
    """Return today's name of a metric of a committed line."""
    if key in METRICS:
        return METRICS[key]
    for old, new in (row for row in RENAMED.items() if row[0].endswith("/")):
        key = key.replace(old, new)
    return re.sub(r"/at(\d+)$", r"@\1", key)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted name; a list becomes a text."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = ",".join(map(str, value)) if isinstance(value, list) else value
    return found
