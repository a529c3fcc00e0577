"""``tricouple study``: questions that are decided by running."""

from __future__ import annotations

import argparse
import json
from operator import methodcaller
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tricouple_lab.experiments.runs.command import user_errors
from tricouple_lab.experiments.runs.record import Record, Store
from tricouple_lab.experiments.runs.study import in_workers
from tricouple_lab.experiments.studies.hubs import Hubs
from tricouple_lab.experiments.studies.length import Length
from tricouple_lab.experiments.studies.noise import Noise
from tricouple_lab.experiments.studies.plan import (
    Conduct,
    Plan,
    Results,
    Study,
    Verdict,
    describe,
    open_study,
)
from tricouple_lab.experiments.studies.tail import Tail
from tricouple_lab.experiments.studies.three_way import ThreeWay
from tricouple_lab.files import write_atomically, write_text
from tricouple_lab.options import CommandError
from tricouple_lab.provenance import collect_provenance, require_clean
from tricouple_lab.report.draw_matplotlib import png
from tricouple_lab.report.tables import to_markdown, to_terminal

STUDIES: dict[str, Study] = {
    study.name: study for study in (ThreeWay(), Length(), Noise(), Hubs(), Tail())
}


def run(args: argparse.Namespace) -> int:
    """Run what is missing, and judge."""
    console = Console()
    if args.list or args.name is None:
        for study in STUDIES.values():
            plan = study.plan("cpu")
            console.print(f"{study.name}: {study.title} ({study.hours} of one core)", markup=False)
            console.print(f"  hypothesis: {plan.hypothesis}", markup=False)
            console.print(f"  refuted if: {plan.refuted}\n", markup=False)
        return 0
    if args.name not in STUDIES:
        raise CommandError(f"no study {args.name!r}: choose one of {', '.join(STUDIES)}")
    study = STUDIES[args.name]
    out = args.out or Path("runs") / f"study-{study.name}"
    if args.verdict:
        plan = study.plan(_scale_of(out))
        _publish(study, plan, Store(out), console)
        return 0
    require_clean(allow_dirty=args.allow_dirty)
    plan, origin = study.plan(args.scale), collect_provenance()
    store = open_study(out, study, plan, args.scale, origin)
    conduct = Conduct(study, plan, store, origin)
    tasks = [(condition, method) for condition in plan.conditions for method in plan.methods]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    going_on = f"what was done is kept in {out}: the same command goes on from here"
    with user_errors(going_on), Progress(*columns, console=console) as progress:
        bar = progress.add_task("methods in conditions", total=len(tasks))
        for (condition, method), count in in_workers(conduct.finish, tasks, args.workers, out):
            progress.console.print(f"{describe(condition)}: {method}: {count} runs", markup=False)
            progress.advance(bar)
    _publish(study, plan, store, console)
    return 0


def _scale_of(out: Path) -> str:
    try:
        return str(json.loads((out / "study.json").read_text(encoding="utf-8"))["config"]["scale"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{out} holds no study that could be judged: {error!r}") from error


def _publish(study: Study, plan: Plan, store: Store, console: Console) -> None:
    """Print the verdict, and write it with its pictures into the folder."""
    records = list(store.records().values())
    verdict = study.judge(plan, Results(records))
    for table in verdict.tables:
        console.print(to_terminal(table))
    for sentence in verdict.sentences:
        console.print(sentence, markup=False, highlight=False)
    console.print(f"verdict: {verdict.word}", style="bold")
    write_text(store.path / "verdict.md", as_markdown(study, plan, verdict, records))
    for chart in verdict.charts:
        write_atomically(store.path / f"{chart.id}.png", methodcaller("write", png(chart)))
    console.print(f"{store.path / 'verdict.md'}", markup=False)


def as_markdown(study: Study, plan: Plan, verdict: Verdict, records: list[Record]) -> str:
    """The verdict as a page of Markdown."""
    seconds = sum(record["seconds"] for record in records)
    commits = sorted({str(record["provenance"].get("commit")) for record in records})
    parts = [
        f"# {study.title}: {verdict.word}",
        f"Hypothesis: {plan.hypothesis}",
        f"Refuted if: {plan.refuted}",
        *([f"The plan was changed: {plan.changed}"] if plan.changed else []),
        *verdict.sentences,
        *(f"![{chart.title}. {chart.caption}]({chart.id}.png)" for chart in verdict.charts),
        *(to_markdown(table) for table in verdict.tables),
        f"{len(records)} runs, {seconds / 3600:.2f} hours of computing, "
        f"{plan.budget.steps} steps each, from commit {', '.join(commits)}.",
    ]
    return "\n\n".join(parts) + "\n"
