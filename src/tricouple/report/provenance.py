"""Where the numbers come from: settings, seeds, commit, versions, command and time."""

from __future__ import annotations

import json
from typing import Any

from tricouple.report.read import Study
from tricouple.report.tables_before import Table, html_table
from tricouple.report.words import duration


def provenance_tables(study: Study) -> str:
    """Return what is needed to judge or repeat a study."""
    origin = dict(study.provenance)
    versions = origin.pop("versions", None) or {}
    runs = {
        "runs": f"{len(study.runs)} ({_statuses(study)})",
        "seeds": ", ".join(str(seed) for seed in sorted(_seeds(study))),
        "time of all runs": duration(sum(run.seconds for run in study.runs)),
        "commits of the runs": ", ".join(sorted(_commits(study))),
    }
    tables = {
        "How it was run": origin | runs,
        "Settings of the study": study.config,
        "Versions": versions,
    }
    return "\n".join(_table(caption, values) for caption, values in tables.items() if values)


def _table(caption: str, values: dict[str, Any]) -> str:
    rows = [(key, _shown(value)) for key, value in _flat(values) if _shown(value)]
    return html_table(Table(caption, ("what", "value"), rows, words=2))


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings as dotted names.

    Example:
        >>> _flat({"loss": {"epsilon": 0.5}, "seed": 0})
        [('loss.epsilon', 0.5), ('seed', 0)]
    """
    rows: list[tuple[str, Any]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        rows += _flat(value, f"{name}.") if isinstance(value, dict) else [(name, value)]
    return rows


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _statuses(study: Study) -> str:
    statuses = [run.status for run in study.runs]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


def _seeds(study: Study) -> set[int]:
    seeds = (run.config.get("seed") for run in study.runs)
    return {seed for seed in seeds if isinstance(seed, int)}


def _commits(study: Study) -> set[str]:
    return {str(run.provenance["commit"]) for run in study.runs if run.provenance.get("commit")}
