"""What a study is, and how its runs are done and read.

A module of a study has ``TITLE``, ``HYPOTHESIS``, ``REFUTED``, ``plans(scale)`` with one plan of
runs per condition, and ``judge(frame)``. A study without training has ``measure`` instead of plans.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from studies.methods import method_of
from tricouple_lab.files import write_text
from tricouple_lab.names import UserError
from tricouple_lab.report import stats
from tricouple_lab.report.frame import frame
from tricouple_lab.runs.sweep import sweep

LEVEL = stats.LEVEL
SEEDS = tuple(range(10))


@dataclass(frozen=True)
class Verdict:
    """What a study found: a few numbers, and what the rule of its plan makes of them."""

    word: Literal["supported", "refuted", "open"]  # open: runs are missing
    numbers: pd.DataFrame

    def to_markdown(self) -> str:
        """The numbers as a table, and the word."""
        texts = self.numbers.map(lambda x: f"{x:.4g}" if isinstance(x, float) else str(x))
        rows = [texts.columns, ["---"] * texts.shape[1], *texts.itertuples(index=False)]
        lines = [f"| {' | '.join(row)} |" for row in rows if len(row)]
        return "\n".join([*lines, "", f"verdict: {self.word}", ""])


def describe(condition: Mapping[str, Any]) -> str:
    """A condition as the committed lines write it.

    Example:
        >>> describe({"data": "banking77", "noise": 0.2})
        'data banking77, noise 0.2'
    """
    return ", ".join(f"{name} {value}" for name, value in condition.items())


def run(study: Any, scale: str, out: Path, workers: int) -> None:
    """Do the runs that are missing, below ``out/CONDITION``."""
    if hasattr(study, "measure"):
        out.mkdir(parents=True, exist_ok=True)
        records = study.measure(scale, workers)
        write_text(out / "runs.jsonl", "".join(record.to_json() + "\n" for record in records))
        return
    for condition, plan in study.plans(scale).items():
        print(condition)
        print(sweep(plan, out / folder_of(condition), workers=workers).to_string())


def folder_of(condition: str) -> str:
    """The name of a condition's folder."""
    return re.sub(r"[^\w.]+", "-", condition)


def read(study: Any, scale: str, out: Path) -> pd.DataFrame:
    """Read the runs of a study, one folder per condition or committed lines, as ``frame`` does."""
    plans = {} if hasattr(study, "measure") else study.plans(scale)
    there = {key: out / folder_of(key) for key in plans}
    parts = [frame(path).assign(condition=key) for key, path in there.items() if path.is_dir()]
    runs = pd.concat(parts or [frame(out)], ignore_index=True)
    if "condition" not in runs:
        raise UserError(f"{out}: holds no runs of this study at scale={scale}")
    return runs.assign(method=method_of(runs))


def scores(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A metric of the final runs: one row per seed, one column per (condition, method).

    A run that diverged has 0.
    """
    final = runs[runs["stage"] == "final"]
    found = [final[key] for key in (f"after/embedding/{metric}", f"after/{metric}") if key in final]
    values = final.assign(score=pd.concat(found, axis=1).bfill(axis=1).iloc[:, 0].fillna(0.0))
    return values.pivot_table(index="seed", columns=["condition", "method"], values="score")


def complete(table: pd.DataFrame, condition: str, methods: Sequence[str]) -> bool:
    """Whether a condition has every method with every seed."""
    wanted = [(condition, method) for method in methods]
    known = [key for key in wanted if key in table.columns]
    return known == wanted and bool(table.reindex(SEEDS)[wanted].notna().all(axis=None))


def row(name: str, found: stats.Paired, p: float | None = None) -> dict[str, Any]:
    """A paired difference as a row of a verdict's numbers."""
    return {"": name, **found._asdict(), **({} if p is None else {"p": p})}
