"""``tricouple bench``: measure, print, and keep the numbers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tricouple_lab.experiments.bench import targets
from tricouple_lab.experiments.bench.contenders import BY_NAME, GATHERED
from tricouple_lab.experiments.bench.measure import QUICK, Effort, Report, measure, measure_steps
from tricouple_lab.experiments.bench.problem import QUICK_STEPS, STEPS, Problem
from tricouple_lab.experiments.bench.processes import QUICK_GROUP, GroupEffort, measure_processes
from tricouple_lab.files import write_text
from tricouple_lab.options import CommandError, explained, require_writable
from tricouple_lab.provenance import collect_provenance
from tricouple_lab.report.tables import to_terminal

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
        report = (measure_training if args.training_step else measure_losses)(args, console)
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
    """Measure all contenders in one process, or one batch over several.

    A progress bar names what runs now. The file is written after every measurement: an interrupted
    run keeps what it has.
    """
    effort: Effort
    if args.processes:
        effort = replace(QUICK_GROUP if args.quick else GroupEffort(), processes=args.processes)
    else:
        effort = replace(QUICK if args.quick else Effort(), largest_cubic=args.largest_cubic)
    effort = replace(
        effort,
        sizes=args.sizes or effort.sizes,
        rounds=args.rounds or effort.rounds,
        memory=effort.memory and not args.no_memory,
        only=tuple(args.only),
    )
    if not effort.total:
        known = ", ".join(GATHERED if args.processes else BY_NAME)
        raise CommandError(f"--only {' '.join(args.only)} matches none of: {known}")
    problem = Problem(seed=args.seed)
    report = Report(problem, (), circumstances(console))
    texts = MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    # Drawn by hand between the measurements: a refreshing thread would compete for the cores.
    with Progress(BarColumn(), *texts, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=effort.total)

        def on_turn(text: str) -> None:
            progress.update(task, description=text, refresh=True)

        rows = (
            measure_processes(effort, problem, on_turn)
            if isinstance(effort, GroupEffort)
            else measure(effort, problem, on_turn)
        )
        for row in rows:
            report = replace(report, measurements=(*report.measurements, row))
            write_text(args.out, report.to_json())
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
