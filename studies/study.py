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
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tricouple_lab.files import locked, versions
from tricouple_lab.names import UserError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
SEEDLESS = "CCA"  # the row that no seed changes
Config = Mapping[str, Any]  # cell, row, settings and seed of a run
Metrics = Mapping[str, float]
Measure = Callable[[Config, str], Metrics]  # a run, in the part "pilot" or "final"


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
    """The runs of a plan in a folder; one that has a line there is not done again.

    ``origin`` is the commit of the sources, or "smoke"; ``data`` a digest that a program sets.
    """

    def __init__(self, plan: Plan, folder: Path, origin: str) -> None:
        self.plan, self.file, self.origin, self.data = plan, folder / "runs.jsonl", origin, ""
        lines = read_lines(self.file, repair=True)
        strange = [line["plan"] for line in lines if line["plan"] != plan.digest]
        if strange:
            raise UserError(
                f"{self.file}: {len(strange)} runs of another plan ({strange[0]}, now "
                f"{plan.digest}): a changed plan is a new folder of results/"
            )
        self.done = {_key(line["part"], line["config"]): line["metrics"] for line in lines}

    def __call__(self, part: str, config: Config, run: Measure, kept: Container[str]) -> Metrics:
        """The metrics of a run: of its line, or measured now and written, those that are kept."""
        key = _key(part, config)
        if key not in self.done:
            start, found = time.process_time(), run(config, part)
            metrics = {k: round(float(v), 4) for k, v in found.items() if k in kept}
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
            self.done[key] = metrics
            shown = (f"{key}={value}" for key, value in {**config, **metrics}.items())
            print(part, *shown, flush=True)
        return self.done[key]  # type: ignore[no-any-return]


class Stage(NamedTuple):
    """Lists of settings, and the metric of validation data that chooses among them."""

    options: Config
    metric: str = ""
    base: Mapping[str, Any] = {}  # what the configurations of the pilot have besides


def run(program: Any, plan: Plan, folder: Path, smoke: bool) -> None:
    """Choose the settings of each row of each cell in the pilot, then do its final seeds.

    ``program`` is a module: ``prepare(runs, name, cell)`` returns the measure of a cell;
    ``stages(runs, row, cell)`` a list: what is chosen first, and what is chosen then.
    """
    origin = "smoke" if smoke else clean_commit(plan)
    used = plan.smoke() if smoke else plan
    with locked(folder if smoke else RESULTS / ".locks" / plan.name):
        runs = Runs(used, folder, origin)
        for name, cell, rows in cells_of(used):
            measure = program.prepare(runs, name, cell)
            for row in rows:
                first, *others = program.stages(runs, row, cell)
                config: dict[str, Any] = {"cell": name, "row": row}
                config |= choose(runs, config, first, measure)
                for settings in [choose(runs, config, stage, measure) for stage in others]:
                    config |= settings
                for seed in used["seeds"] if row != SEEDLESS else [None]:
                    runs("final", {**config, "seed": seed}, measure, used.metrics)


def choose(runs: Runs, config: Config, stage: Stage, measure: Measure) -> dict[str, Any]:
    """The settings with the highest mean of the stage's metric over the pilot seeds.

    ``config`` is what all settings share.
    """
    grid = grid_of(stage.options)
    if len(grid) == 1:
        return grid[0]
    seeds = runs.plan["pilot_seeds"][: 1 if config["row"] == SEEDLESS else None]

    def score(settings: Config) -> float:
        ones = ({**config, **stage.base, **settings, "seed": seed} for seed in seeds)
        return sum(runs("pilot", one, measure, {stage.metric})[stage.metric] for one in ones)

    return max(grid, key=score)


def grid_of(options: Config) -> list[dict[str, Any]]:
    """Every combination of settings; one that is no list is the same in all.

    Example:
        >>> grid_of({"c": [1, 2], "decay": 0})
        [{'c': 1, 'decay': 0}, {'c': 2, 'decay': 0}]
    """
    lists = [value if isinstance(value, list) else [value] for value in options.values()]
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*lists)]


def cells_of(plan: Plan) -> Iterator[tuple[str, Any, list[str]]]:
    """Name, content and rows of each cell; a cell without content has an empty one."""
    for name in plan["cells"]:
        cell = plan["cells"][name] if isinstance(plan["cells"], dict) else {}
        own = cell if isinstance(cell, dict) else {}
        yield name, cell, own.get("rows", plan["rows" if own.get("all", True) else "main_rows"])


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
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise UserError(f"studies run in a clone of the repository: {found.stderr.strip()}")
    return found.stdout.strip()


def read_lines(file: Path, repair: bool = False) -> list[dict[str, Any]]:
    """The runs of a file; a last line that a killed process left unfinished is cut off."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if repair and whole != text:
        file.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def _key(part: str, config: Config) -> str:
    return json.dumps([part, config], sort_keys=True)
