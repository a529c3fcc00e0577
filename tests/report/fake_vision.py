"""A vision study with made-up accuracies: two data sets, two settings, five losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from report.fake import noise, write_folder

LOSSES = ("infonce", "invaspread", "iot", "pushpull", "neg_mmiot")
SHARPNESS = (3.0, 10.0, 30.0, 100.0)
BLOCKS = (("mnist", "scl"), ("cifar10", "scl"), ("mnist", "ucl"), ("cifar10", "ucl"))
SEEDS = (0, 1, 2)


def run(
    loss: str = "neg_mmiot",
    data: str = "mnist",
    setting: str = "scl",
    part: str = "final",
    c: float | None = 10.0,
    seed: int = 0,
    accuracy: float | None = None,
    **config: object,
) -> dict:
    """One finished run as a line of runs.jsonl."""
    rng = noise(loss, data, setting, part, c, seed)
    base = 0.9 - 0.05 * abs(np.log10((c or 10.0) / 10)) if accuracy is None else accuracy
    metrics = {
        f"{kind}/{m}": base + 0.01 * rng.random() * (accuracy is None)
        for kind in ("penultimate", "embedding")
        for m in ("linear", "knn")
    }
    geometry = {
        "nc1": 100.0,
        "nc2_std": 0.2,
        "nc2_deviation": 0.1,
        "effective_rank": 8.5,
        "alpha": 0.9,
        "beta": -0.1,
    }
    metrics |= {
        f"embedding/{name}": value * (1 + 0.1 * rng.random()) for name, value in geometry.items()
    }
    curves = {"epoch": [0, 1, 2], "step": [0, 19, 38], "loss": [None, 2.0, 1.0]}
    curves |= {name: [3 * value, 2 * value, value] for name, value in geometry.items()}
    rate = config.get("learning_rate", 0.001)
    tested = "test" if part == "final" else "validation"
    return {
        "id": f"{data}-{setting}-{loss}-c{c}-lr{rate}-seed{seed}-{tested}",
        "part": part,
        "status": "done",
        "config": {"data": data, "train_size": 7000, "validation_size": 2000, "setting": setting,
                   "loss": loss, "sharpness": c, "temperature": 1 / (c or 1.0),
                   "backbone": "resnet18", "epochs": 3, "learning_rate": rate, "seed": seed,
                   "evaluated_on": tested} | config,
        "seconds": 60.0,
        "metrics": metrics,
        "curves": curves,
        "spectrum": [0.2, 0.1],
        "provenance": {"commit": "0123abc"},
    }  # fmt: skip


def runs(blocks: tuple[tuple[str, str], ...] = BLOCKS) -> list[dict]:
    """Every run of a whole study."""
    found = []
    for data, setting in blocks:
        for loss in LOSSES:
            where = {"loss": loss, "data": data, "setting": setting}
            found += [run(**where, part="sharpness", c=c) for c in SHARPNESS]
            found.append(run(**where, part="learning_rate", learning_rate=0.003))
            found += [run(**where, seed=seed) for seed in SEEDS]
    return found


def write_study(folder: Path, records: list[dict], **head: object) -> Path:
    """Write a study folder."""
    study = {
        "kind": "vision",
        "name": "made-up images",
        "config": {"blocks": [[f"data={d}", f"setting={s}"] for d, s in BLOCKS],
                   "losses": LOSSES, "sharpness": SHARPNESS, "learning_rates": [0.001, 0.003],
                   "seeds": SEEDS},
        "provenance": {"command": "tricouple train --study made-up", "commit": "0123abc",
                       "versions": {"torch": "9.9"}},
    } | head  # fmt: skip
    return write_folder(folder, study, records)


def write_run(folder: Path, record: dict, *, finished: bool = True) -> Path:
    """Write the folder of a run of ``tricouple train``: a study of one."""
    path = folder / record["id"]
    record = record | {"part": "final"}
    if not finished:
        record |= {"status": "partial", "metrics": {}}
    write_study(path, [record], name=path.name, config={"scale": "smoke"})
    return path
