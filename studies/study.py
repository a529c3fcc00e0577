"""A study: a plan that is committed before its first run, lines of runs, a verdict from both.

``results/NAME/plan.json`` has the question, the hypotheses with what would refute them, rows, grid
and seeds; ``results/NAME/runs.jsonl`` has one line per run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tricouple_lab.files import locked, versions
from tricouple_lab.names import UserError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
Metrics = Mapping[str, float]
Measure = Callable[[Mapping[str, Any], str], Metrics]  # of a configuration, in a part


class Plan(dict[str, Any]):
    """The content of a ``plan.json``, its name, and the first digits of its sha256."""

    def __init__(self, name: str, content: Mapping[str, Any], digest: str) -> None:
        super().__init__(content)
        self.name, self.digest = name, digest

    @property
    def metrics(self) -> set[str]:
        """What the tables and the hypotheses read of a final run."""
        names = [rule["metric"] for rule in self["hypotheses"]]
        return {*self["show"]}.union(*([name] if isinstance(name, str) else name for name in names))

    def smoke(self) -> Plan:
        """The same plan on generated data: what its key ``smoke`` replaces."""
        return Plan(self.name, {**self, **self["smoke"]}, self.digest)


def read_plan(name: str) -> Plan:
    """Read ``results/NAME/plan.json``."""
    text = (RESULTS / name / "plan.json").read_bytes()
    return Plan(name, json.loads(text), hashlib.sha256(text).hexdigest()[:12])


class Runs:
    """The lines of a study in a folder, and the commit of the sources, or "smoke".

    A run that has a line is not done again, so a killed study continues.
    """

    def __init__(self, plan: Plan, folder: Path, origin: str) -> None:
        self.plan, self.file, self.origin = plan, folder / "runs.jsonl", origin
        self.data = ""  # digest of the data, which a study sets
        self.lines = read_lines(self.file, repair=True)
        strange = [line for line in self.lines if line["plan"] != plan.digest]
        if strange:
            raise UserError(
                f"{self.file}: {len(strange)} runs of another plan ({strange[0]['plan']}, now "
                f"{plan.digest}): a changed plan is a new folder of results/"
            )
        self.done = {_key(line["part"], line["config"]): line["metrics"] for line in self.lines}

    def __call__(self, part: str, config: Mapping[str, Any], run: Callable[[], Metrics]) -> Metrics:
        """The metrics of a run: of its line, or measured now and written."""
        key = _key(part, config)
        if key not in self.done:
            start = time.process_time()
            found, kept = run(), self.plan.metrics if part == "final" else set()
            metrics = {k: round(float(v), 4) for k, v in found.items() if k in (kept or found)}
            line = {
                "plan": self.plan.digest,
                "commit": self.origin,
                "config": dict(config),
                "part": part,
                "metrics": metrics,
                "cpu_seconds": round(time.process_time() - start, 2),
                "versions": {name: versions().get(name) for name in ("tricouple", "torch")},
                "data": self.data,
            }
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self.lines.append(line)
            self.done[key] = metrics
            shown = (f"{key}={value}" for key, value in {**config, **metrics}.items())
            print(part, *shown, flush=True)
        return self.done[key]  # type: ignore[no-any-return]


def run(study: Any, plan: Plan, folder: Path, smoke: bool) -> None:
    """Do the runs of a plan that are missing; ``study.run(plan, runs)`` asks for all of them."""
    origin = "smoke" if smoke else clean_commit(plan)
    used = plan.smoke() if smoke else plan
    with locked(folder if smoke else RESULTS / ".locks" / plan.name):
        study.run(used, Runs(used, folder, origin))


def clean_commit(plan: Plan) -> str:
    """The commit of the sources; refuses changed sources and a plan that is not committed."""
    file = f"results/{plan.name}/plan.json"
    if not git("log", "-1", "--format=%H", "--", file):
        raise UserError(f"{file}: is not committed: commit the plan before its first run")
    # Lines that are being written are no change of the sources.
    changed = git("status", "--porcelain", "--", ".", ":!results/*/runs.jsonl", ":!results/.locks")
    if changed:
        first = changed.splitlines()[0].strip()
        raise UserError(f"uncommitted changes ({first}): results need a clean commit; commit first")
    return git("rev-parse", "HEAD")


def git(*words: str) -> str:
    """What git says in this clone."""
    command = ["git", "-C", str(ROOT), *words]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            f"git {words[0]}: studies run in a clone of the repository ({error})"
        ) from None
    return found.stdout.strip()


def read_lines(file: Path, repair: bool = False) -> list[dict[str, Any]]:
    """The runs of a file; a last line that a killed process left unfinished is cut off."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if repair and whole != text:
        file.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def grid_of(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of settings; one that is no list is the same in all.

    Example:
        >>> grid_of({"c": [1, 2], "decay": 0})
        [{'c': 1, 'decay': 0}, {'c': 2, 'decay': 0}]
    """
    lists = [value if isinstance(value, list) else [value] for value in options.values()]
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*lists)]


class Stage(NamedTuple):
    """Lists of settings, and the metric of validation data that chooses among them."""

    options: Mapping[str, Any]
    metric: str
    base: Mapping[str, Any] = {}  # what the configurations of the pilot have besides


def run_rows(
    plan: Plan,
    runs: Runs,
    prepare: Callable[[str, Any], Measure],
    stages: Callable[[str, Any], Sequence[Stage]],
    seedless: str = "",
) -> None:
    """Choose the settings of each row of each cell in the pilot, then do its final seeds.

    Args:
        plan: The plan.
        runs: Where the lines are.
        prepare: Of the name and the content of a cell: a run, from its configuration and its part,
            "pilot" or "final".
        stages: Of a row and the content of its cell: what is chosen first, and what is chosen then.
        seedless: A row that no seed changes.
    """
    for name, cell in cells_of(plan):
        measure = prepare(name, cell)
        for row in rows_of(plan, cell):
            base: dict[str, Any] = {"cell": name, "row": row}
            pilot = plan.get("pilot_seeds", [])[: 1 if row == seedless else None]
            first, *others = stages(row, cell)
            base |= choose(runs, base, first, measure, pilot)
            settings: dict[str, Any] = {}
            for stage in others:
                settings |= choose(runs, base, stage, measure, pilot)
            for seed in plan["seeds"] if row != seedless else [None]:
                config = {**base, **settings, "seed": seed}
                runs("final", config, lambda: measure(config, "final"))


def cells_of(plan: Plan) -> Iterator[tuple[str, Any]]:
    """Name and content of each cell; a cell without content has an empty one."""
    cells = plan["cells"]
    yield from cells.items() if isinstance(cells, dict) else ((name, {}) for name in cells)


def rows_of(plan: Plan, cell: Any) -> list[str]:
    """The rows of a cell."""
    own = cell if isinstance(cell, dict) else {}
    rows: list[str] = own.get("rows", plan["rows" if own.get("all", True) else "main_rows"])
    return rows


def choose(
    runs: Runs, config: Mapping[str, Any], stage: Stage, measure: Measure, seeds: Sequence[int]
) -> dict[str, Any]:
    """The settings with the highest mean of the stage's metric over the pilot seeds.

    ``config`` is what all settings share; ``measure`` does a run from its configuration.
    """
    grid, metric = grid_of(stage.options), stage.metric
    if len(grid) == 1:
        return grid[0]

    def score(settings: Mapping[str, Any]) -> float:
        ones = [{**config, **stage.base, **settings, "seed": seed} for seed in seeds]
        return sum(
            runs("pilot", one, lambda one=one: {metric: measure(one, "pilot")[metric]})[metric]  # type: ignore[misc]
            for one in ones
        )

    return max(grid, key=score)


def _key(part: str, config: Mapping[str, Any]) -> str:
    return json.dumps([part, config], sort_keys=True)
