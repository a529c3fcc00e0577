"""Many runs: choose a setting on validation data, measure with other seeds on test data."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import joblib
import pandas as pd
import torch
import yaml  # type: ignore[import-untyped]

from tricouple_lab.config.compose import check_arguments, compose
from tricouple_lab.files import provenance, write_text
from tricouple_lab.names import UserError
from tricouple_lab.report.page import sweep_page
from tricouple_lab.runs.execute import Say, check, execute
from tricouple_lab.runs.folder import Record, RunFolder, read_records
from tricouple_lab.tasks.base import Data, Task, loss_class
from tricouple_lab.training.module import DivergedError

Words = tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What is compared: each row is a method, given by its words, in each block of conditions."""

    task: Task[Any]
    rows: tuple[Words, ...]  # (("loss=infonce",), …); the first is the reference
    base: Words = ()  # words of every run
    blocks: tuple[Words, ...] = ((),)  # words of each comparison
    extra: tuple[Words, ...] = ()  # further methods, with their conditions, at the first seed
    seeds: tuple[int, ...] = tuple(range(10))
    setting: str = "loss.sharpness"  # what is chosen for each row of a block, if there is a grid
    grid: tuple[float, ...] = ()
    choose_seeds: tuple[int, ...] = (100, 101, 102)
    limits: tuple[float, float] = (0.3, 1000.0)  # the grid is extended up to these
    hypothesis: str = ""
    refuted: str = ""  # what would refute the hypothesis

    def methods(self) -> Iterator[Words]:
        """Words of each row in each block, and of what is extra."""
        yield from ((*self.base, *block, *row) for block in self.blocks for row in self.rows)
        yield from ((*self.base, *words) for words in self.extra)

    def jobs(self, chosen: Mapping[Words, Words]) -> Iterator[Words]:
        """Words of each run, given what was chosen for each method."""
        compared = len(self.blocks) * len(self.rows)
        for number, words in enumerate(self.methods()):
            for seed in self.seeds if number < compared else self.seeds[:1]:
                yield (*words, *chosen.get(words, ()), f"seed={seed}")


@dataclass
class Runner:
    """Executes runs in worker processes or on a cluster; those that are recorded are only read."""

    task: Task[Any]
    out: Path
    setting: str  # what is chosen, for the tables
    workers: int = 1
    cluster: Mapping[str, Any] | None = None  # parameters of submitit; None for this machine
    say: Say = print
    records: dict[str, Record] = field(default_factory=dict)  # by id, in the order they came
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if (self.out / "runs.jsonl").exists():
            self.records = {record.id: record for record in read_records(self.out)}

    def run(self, jobs: Sequence[Words], stage: str) -> list[Record | None]:
        """Return a record for each job, None for one that failed."""
        task, configs = self.task, map(self.config_of, jobs)
        of = (RunFolder.of(task.name, own, Loaded(task).load(own).digest) for own in configs)
        identities = [folder.path.name for folder in of]
        pairs = zip(identities, jobs, strict=True)
        missing = {identity: words for identity, words in pairs if identity not in self.records}
        for done, (words, found) in enumerate(self._execute(list(missing.values())), 1):
            if isinstance(found, str):
                text = f"{' '.join(words)}: failed: {found}"
                self.failures.append(text)
            else:
                origin = {**found.provenance, "chosen": self.setting} if stage == "choose" else {}
                record = replace(found, stage=stage, provenance=origin or found.provenance)
                self.records[record.id] = record
                lines = (other.to_json() + "\n" for other in self.records.values())
                write_text(self.out / "runs.jsonl", "".join(lines))
                score = record.validation if stage == "choose" else record.after.get(record.metric)
                text = f"{record.id}  {record.metric} {100 * (score or 0):.1f} %"
                if record.status == "diverged":
                    text = f"{record.id}  diverged: {record.provenance['error']}"
            self.say(f"[{stage} {done}/{len(missing)}] {text}")
        return [self.records.get(identity) for identity in identities]

    def config_of(self, words: Words) -> Any:
        """The configuration of a job, whose folder is below ``out``."""
        return compose(self.task.name, (*words, f"runs={self.out / 'runs'}"))

    def _execute(self, jobs: Sequence[Words]) -> Iterator[tuple[Words, Record | str]]:
        configs = [self.config_of(words) for words in jobs]
        if self.cluster is not None and jobs:
            import submitit

            executor = submitit.AutoExecutor(folder=self.out / "jobs")  # Slurm, else processes here
            executor.update_parameters(**self.cluster)
            submitted = executor.map_array(run_one, [self.task] * len(jobs), configs)
            yield from zip(jobs, (job.result() for job in submitted), strict=True)
            return
        parallel = joblib.Parallel(n_jobs=self.workers, return_as="generator")
        one_thread = self.workers > 1
        calls = (joblib.delayed(run_one)(self.task, config, one_thread) for config in configs)
        yield from zip(jobs, parallel(calls), strict=True)


def sweep(
    plan: Plan,
    out: Path,
    *,
    workers: int = 1,
    cluster: Mapping[str, Any] | None = None,
    say: Say = print,
) -> pd.DataFrame:
    """Do the runs that are missing; write ``plan.json``, ``runs.jsonl`` and ``report.html``.

    The runs are in ``out/runs``. Several ``workers`` have one thread each; ``cluster`` holds
    parameters of submitit's executor, such as ``slurm_partition``, to run there. Runs that fail
    are printed, and raise a ``UserError`` at the end.

    Returns:
        The table of the page: one row per method with mean, standard deviation, n and the paired
        difference from the first row.
    """
    if workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1")
    for words in plan.methods():  # errors before anything is trained
        check(compose(plan.task.name, words))
    if plan.grid and not any(has_setting(plan, words) for words in plan.methods()):
        raise UserError(f"--choose {plan.setting}: none of the losses has this argument")
    about = {**vars(plan), "task": plan.task.name, "planned": len(tuple(plan.jobs({})))}
    write_text(out / "plan.json", json.dumps(about, indent=1) + "\n")
    runner = Runner(plan.task, out, plan.setting, workers, cluster, say)
    chosen = choose(plan, runner)
    jobs = list(plan.jobs(chosen))
    found = runner.run(jobs, "final")
    final = [record for record in found if record is not None]
    tried = [record for record in runner.records.values() if record.stage == "choose"]
    write_text(out / "runs.jsonl", "".join(record.to_json() + "\n" for record in [*tried, *final]))
    if runner.failures:
        raise UserError(f"{len(runner.failures)} runs failed, first: {runner.failures[0]}")
    page, table = sweep_page([*tried, *final], planned=len(jobs))
    write_text(out / "report.html", page)
    return table


def choose(plan: Plan, runner: Runner) -> dict[Words, Words]:
    """Return the word of the best value for the words of each method that has the setting.

    The best value has the highest mean validation score; a run that diverged or failed counts as 0.
    If it is the first or last of the grid, the grid is extended by a factor √10, within the limits.
    """
    methods = [words for words in plan.methods() if plan.grid and has_setting(plan, words)]
    scores: dict[Words, dict[float, float]] = {words: {} for words in methods}
    missing = {words: sorted(plan.grid) for words in methods}
    while any(missing.values()):
        cases = [(words, value) for words in methods for value in missing[words]]
        jobs = [
            (*words, f"{plan.setting}={value:g}", f"seed={seed}")
            for words, value in cases
            for seed in plan.choose_seeds
        ]
        found, n = runner.run(jobs, "choose"), len(plan.choose_seeds)
        for index, (words, value) in enumerate(cases):
            records = [record for record in found[n * index : n * (index + 1)] if record]
            scores[words][value] = sum(record.validation or 0.0 for record in records) / n
        for words in methods:
            missing[words] = beyond(scores[words], plan.limits) if missing[words] else []
    return {words: (f"{plan.setting}={best_of(scores[words]):g}",) for words in methods}


def beyond(scores: Mapping[float, float], limits: tuple[float, float]) -> list[float]:
    """The next value of a grid whose best value is the first or last."""
    best = best_of(scores)
    following = {min(scores): best / 10**0.5, max(scores): best * 10**0.5}.get(best, -1.0)
    return [round(following, 3)] if limits[0] <= following <= limits[1] else []


def best_of(scores: Mapping[float, float]) -> float:
    """The value with the highest score; of equal ones the smallest."""
    return max(scores, key=lambda value: (scores[value], -value))


def has_setting(plan: Plan, words: Words) -> bool:
    """Whether a method has the setting that is chosen: VICReg, for one, has no sharpness."""
    group, _, argument = plan.setting.partition(".")
    if group != "loss":
        return True
    loss = loss_class(compose(plan.task.name, words).loss["name"])
    return argument in inspect.signature(loss).parameters


def run_one(task: Task[Any], config: Any, one_thread: bool = False) -> Record | str:
    """Execute one run quietly, in a worker process; return why it failed as text.

    A loss that is no longer finite is a result: a record without measurements.
    """
    if one_thread:
        torch.set_num_threads(1)
    origin = {"sweep": str(Path(config.runs).parent)}
    try:
        return execute(Loaded(task), config, say=lambda line: None, origin=origin)
    except DivergedError as error:
        data = Loaded(task).load(config)
        return Record(
            id=RunFolder.of(task.name, config, data.digest).path.name,
            task=task.name, config=asdict(config), metric=data.about.get("metric", task.metric),
            data={"name": config.data.name, "digest": data.digest, "classes": list(data.classes)},
            chance={}, before={}, after={}, validation=None, curves=[], per_class={}, steps=0,
            seconds=0.0, provenance={**provenance(), **origin, "error": str(error)},
            status="diverged",
        )  # fmt: skip
    except (UserError, OSError, RuntimeError) as error:
        return f"{error}"


class Loaded:
    """A task that keeps the data it loaded last: runs of a sweep differ in loss and seed only."""

    last: tuple[str, Data] | None = None

    def __init__(self, task: Task[Any]) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def load(self, config: Any) -> Data:
        """Load data, or return those of the last call if nothing they depend on has changed."""
        parts = {key: value for key, value in asdict(config).items() if key in _DATA}
        if self._task.name in _DRAWN or vars(self._task):
            parts |= {"seed": config.seed, "batch_size": config.training.batch_size}
        key = f"{type(self._task).__qualname__} {vars(self._task)} {parts}"
        if Loaded.last is None or Loaded.last[0] != key:
            Loaded.last = key, self._task.load(config)
        return Loaded.last[1]


_DATA = ("data", "setting", "backbone", "model")
_DRAWN = ("mixture", "text")  # tasks whose data depend on the seed as well


def read_plan(file: Path, task: Task[Any]) -> Plan:
    """Read a plan from a YAML file with the fields of ``Plan``; words are lists of texts."""
    try:
        values = dict(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(f"--study {file}: cannot be read as a plan ({reason})") from None
    check_arguments(f"--study {file}: ", values, Plan)
    return Plan(**{key: _tuples(value) for key, value in values.items()} | {"task": task})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
