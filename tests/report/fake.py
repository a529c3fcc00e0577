"""A study folder with made-up numbers: three methods of the paper's kind, a sweep, snapshots."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np

STEPS = [0, 50, 100, 150, 200]
# method → (how fast the classes shrink, how much of the spectrum survives)
METHODS = {
    "neg_mmiot": (6.0, 0.9),
    "pushpull": (5.0, 0.8),
    "iot": (1.0, 0.3),
    "infonce": (5.5, 0.85),
    "byol": (2.0, 0.05),
    "vicreg": (1.5, 0.4),
}
SHAPED = ("neg_mmiot", "pushpull")


def noise(*words: object) -> np.random.Generator:
    """Random numbers that belong to a name."""
    return np.random.default_rng(zlib.crc32(repr(words).encode()))


def run(
    method: str,
    n_classes: int = 10,
    seed: int = 0,
    shaping: str | None = None,
    part: str = "main",
    **config: object,
) -> dict:
    """One finished run as a line of runs.jsonl."""
    speed, richness = METHODS[method]
    rng = noise(method, n_classes, seed, shaping, part, config)
    decay = np.exp(-speed * np.array(STEPS) / STEPS[-1]) * (1 + 0.1 * rng.random())
    spectrum = richness ** np.arange(n_classes - 1) * (1 + 0.01 * rng.random(n_classes - 1))
    curves = {
        "step": STEPS,
        "loss": (2 * decay).tolist(),
        "nc1": (100 * decay).tolist(),
        "nc2_std": (0.3 * decay).tolist(),
        "nc2_deviation": (0.4 * decay).tolist(),
        "alpha": (1 - decay).tolist(),
        "beta": (-(1 - decay) / (n_classes - 1)).tolist(),
        "effective_rank": (1 + richness * (n_classes - 2) * (1 - decay)).tolist(),
        "knn": (1 - 0.5 * decay).tolist(),
    }
    shown = "".join(f"-{key}{value}" for key, value in config.items())
    name = f"{part.replace('/', '-')}-{method}-{shaping or 'none'}-k{n_classes}-s{seed}{shown}"
    return {
        "id": name,
        "config": {"method": method, "shaping": shaping, "n_classes": n_classes, "seed": seed,
                   "epsilon": 0.5, "temperature": 1.0, "dim": 16,
                   "sharpness": None if method in ("byol", "vicreg") else 2.0} | config,
        "part": part,
        "provenance": {"commit": "0123abc"},
        "status": "done",
        "verdict": "etf" if speed > 4 else "collapsed" if richness < 0.2 else "rich",
        "seconds": 12.5,
        "curves": curves,
        "spectrum": np.sort(spectrum)[::-1].tolist(),
    }  # fmt: skip


def runs(classes: tuple[int, ...] = (5, 10), seeds: int = 2) -> list[dict]:
    """A whole study: every method, both ψ, a sweep of ε and one of the dimension."""
    found = []
    for n_classes in classes:
        for seed in range(seeds):
            for method in METHODS:
                usual = "linear" if method in SHAPED else None
                found.append(run(method, n_classes, seed, usual))
                if method in SHAPED:
                    found.append(run(method, n_classes, seed, "log_sigmoid"))
    for axis, values in {"epsilon": (0.01, 0.1, 1.0), "dim": (2, 8, 32)}.items():
        for method in METHODS:
            shaping = "linear" if method in SHAPED else None
            part = f"maps/{axis}"
            found += [run(method, 10, 0, shaping, part, **{axis: value}) for value in values]
    return found


def snapshot(record: dict, samples: int = 40) -> dict[str, np.ndarray]:
    """Embeddings that walk from noise to their class means."""
    rng = noise(record["id"])
    n_classes = record["config"]["n_classes"]
    labels = np.arange(samples) % n_classes
    means = rng.normal(size=(n_classes, 16))
    embeddings = [
        share * means[labels] + (1.2 - share) * rng.normal(size=(samples, 16))
        for share in np.linspace(0, 1, len(STEPS))
    ]
    return {
        "steps": np.array(STEPS),
        "embeddings": np.stack(embeddings).astype(np.float16),
        "labels": labels,
    }


def write_folder(folder: Path, head: dict, records: list[dict]) -> Path:
    """Write study.json and runs.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps(head), encoding="utf-8")
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "runs.jsonl").write_text(lines, encoding="utf-8")
    return folder


def write_study(
    folder: Path, records: list[dict], snapshots: bool = True, samples: int = 40, **head: object
) -> Path:
    """Write a study folder, with snapshots of the first seed at the first K."""
    study = {
        "kind": "synthetic",
        "name": "A made-up mixture",
        "config": {"steps": STEPS[-1], "data": {"kappa": 5.0}},
        "provenance": {"date": "2030-01-02T03:04:05+00:00", "command": "tricouple demo --fast",
                       "commit": "0123abc", "versions": {"torch": "9.9"}},
    } | head  # fmt: skip
    write_folder(folder, study, records)
    if snapshots:
        (folder / "snapshots").mkdir(exist_ok=True)
        for record in records:
            first = (records[0]["config"]["n_classes"], 0)
            own = (record["config"]["n_classes"], record["config"]["seed"])
            if record["part"] == "main" and own == first:
                path = folder / "snapshots" / f"{record['id']}.npz"
                np.savez(path, **snapshot(record, samples))
    return folder
