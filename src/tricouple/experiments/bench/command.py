"""``tricouple bench``: measure, print, and keep the numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tricouple.experiments.bench import targets
from tricouple.experiments.bench.contenders import CONTENDERS, Contender
from tricouple.experiments.bench.gathered import GATHERED, Gathered
from tricouple.experiments.bench.measure import (
    QUICK,
    Effort,
    Measurement,
    Report,
    measure,
    measure_steps,
)
from tricouple.experiments.bench.problem import QUICK_STEPS, STEPS, Problem
from tricouple.experiments.bench.processes import QUICK_GROUP, GroupEffort, measure_processes
from tricouple.files import write_text
from tricouple.options import CommandError, explained, require_writable
from tricouple.provenance import collect_provenance
from tricouple.report.tables import to_terminal

# A load average above which other programs visibly disturb the times.
BUSY = 0.5


def run(args: argparse.Namespace) -> int:
    """Measure or read, print, and write; 1 if training steps are measured and miss their target."""
    console = Console()
    name = Path(args.read or args.out).stem
    if args.readme is not None:  # before minutes of measuring
        with explained(args.readme, "read"):
            text = args.readme.read_text(encoding="utf-8")
        with explained(args.readme, "write into"):
            targets.places(text, name)
    if args.read is not None:
        with explained(args.read, "read"):
            report = Report.from_json(args.read.read_text(encoding="utf-8"))
    else:
        require_writable(args.out)
        kinds = {args.training_step: measure_training, args.processes: measure_shared}
        do = next((do for asked, do in kinds.items() if asked), measure_losses)
        report = do(args, console)
    found = targets.claims(report)
    for table in (*targets.tables(report), *([targets.claims_table(found)] if found else [])):
        console.print(to_terminal(table))
    console.print(targets.conditions(report))
    if args.read is None:
        console.print(f"All measurements: {args.out}", markup=False)
    if args.readme is not None:
        text = args.readme.read_text(encoding="utf-8")
        write_text(args.readme, targets.insert_into(text, report, name))
        console.print(f"Table written into {args.readme}", markup=False)
    measured_steps = args.read is None and args.training_step
    return 1 if measured_steps and not all(claim.met for claim in found) else 0


def measure_training(args: argparse.Namespace, console: Console) -> Report:
    """Time whole training steps."""
    setup = (QUICK_STEPS if args.quick else STEPS)[args.training_step]
    setup = replace(setup, seed=args.seed, rounds=args.rounds or setup.rounds)
    provenance = circumstances(console)
    with console.status("") as status:
        found = measure_steps(setup, lambda loss: status.update(f"step with {loss}"))
    report = Report(setup, found, provenance)
    write_text(args.out, report.to_json())
    return report


def measure_losses(args: argparse.Namespace, console: Console) -> Report:
    """Measure all contenders in one process."""
    usual = QUICK if args.quick else Effort()
    effort = replace(
        usual,
        sizes=args.sizes or usual.sizes,
        largest_cubic=args.largest_cubic,
        rounds=args.rounds or usual.rounds,
        memory=usual.memory and not args.no_memory,
        only=tuple(args.only),
    )
    total = sum(effort.meets(contender, size) for size in effort.sizes for contender in CONTENDERS)
    if not total:
        raise nobody(args.only, CONTENDERS)
    problem = Problem(seed=args.seed)
    return keep(partial(measure, effort, problem), total, problem, args.out, console)


def measure_shared(args: argparse.Namespace, console: Console) -> Report:
    """Measure one batch over several processes."""
    usual = QUICK_GROUP if args.quick else GroupEffort()
    effort = replace(
        usual,
        processes=args.processes,
        sizes=args.sizes or usual.sizes,
        rounds=args.rounds or usual.rounds,
        memory=usual.memory and not args.no_memory,
        only=tuple(args.only),
    )
    if not effort.contenders:
        raise nobody(args.only, GATHERED)
    problem = Problem(seed=args.seed)
    rows = partial(measure_processes, effort, problem)
    return keep(rows, effort.total, problem, args.out, console)


def nobody(patterns: Sequence[str], contenders: Sequence[Contender | Gathered]) -> CommandError:
    """What to say of patterns that match no contender."""
    names = ", ".join(contender.name for contender in contenders)
    return CommandError(f"--only {' '.join(patterns)} matches none of: {names}")


def keep(
    rows: Callable[[Callable[[str], None]], Iterator[Measurement]],
    total: int,
    problem: Problem,
    out: Path,
    console: Console,
) -> Report:
    """Measure under a progress bar that names what runs now.

    The file is written after every measurement: an interrupted run keeps what it has.
    """
    report = Report(problem, (), circumstances(console))
    texts = MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    # Drawn by hand between the measurements: a refreshing thread would compete for the cores.
    with Progress(BarColumn(), *texts, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=total)
        for row in rows(lambda text: progress.update(task, description=text, refresh=True)):
            report = replace(report, measurements=(*report.measurements, row))
            write_text(out, report.to_json())
            progress.update(task, advance=1, refresh=True)
    return report


def circumstances(console: Console) -> dict[str, Any]:
    """Return the provenance of a run that begins; say so if others disturb it."""
    found = collect_provenance()
    if found["load"] > BUSY:
        console.print(
            f"[yellow]Other programs keep this machine busy (load {found['load']:.1f}): "
            "times and their ratios will be unreliable."
        )
    return found
