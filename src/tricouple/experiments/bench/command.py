"""``tricouple bench``: measure, print, and keep the numbers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tricouple.experiments.bench import targets
from tricouple.experiments.bench.contenders import CONTENDERS
from tricouple.experiments.bench.measure import QUICK, Effort, Report, measure, measure_steps
from tricouple.experiments.bench.problem import Problem
from tricouple.experiments.bench.training import QUICK_STEPS, STEPS
from tricouple.files import write_text
from tricouple.options import CommandError, at_least, batch_sizes, explained, require_writable
from tricouple.provenance import collect_provenance
from tricouple.report.tables import to_terminal

DESCRIPTION = """\
Time and memory of the losses beside the dense N^3 algorithm, a plain InfoNCE, SupConLoss
(pytorch-metric-learning), MMSinkhorn (OTT-JAX) and Sinkhorn (POT). A loss is timed forward and
backward; compilation is never timed. Contenders of one size run in interleaved rounds and the
best call counts. Memory is measured in a fresh process for each contender and size.
"""

EXAMPLES = """\
examples:
  tricouple bench --quick                           seconds: does it run, who is installed
  tricouple bench                                   everything, many minutes; keep the machine quiet
  tricouple bench --sizes 256,1024 --no-memory      two sizes, times only
  tricouple bench --sizes 8192,32768 --only 'NegMMIOT' --only '* streamed'   what streaming costs
  tricouple bench --training-step --out step.json   a ResNet-18 step with each loss (a minute)
  tricouple bench --training-step clip              a CLIP step with each loss, both directions
  tricouple bench --read bench.json                 print an earlier run again
  tricouple bench --read bench.json --readme README.md    put an earlier run into a README
"""

# A load average above which other programs visibly disturb the times.
BUSY = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    effort, problem = Effort(), Problem()
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--quick", action="store_true", help="sizes 32 and 64, few calls, no memory")
    sizes = ",".join(map(str, effort.sizes))
    add("--sizes", type=batch_sizes, help=f"batch sizes (default: {sizes})")
    add(
        "--largest-cubic",
        type=at_least(0),
        default=effort.largest_cubic,
        metavar="N",
        help="largest size for the contenders with N^3 memory",
    )
    add("--rounds", type=at_least(1), help=f"interleaved rounds (default: {effort.rounds})")
    add(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only contenders of such names, e.g. 'NegMMIOT*'; may be given several times",
    )
    add("--no-memory", action="store_true", help="do not measure memory")
    add(
        "--training-step",
        nargs="?",
        const="vision",
        choices=tuple(STEPS),
        help="instead: whole training steps, of a ResNet-18 or of a small CLIP, loss beside loss",
    )
    add("--seed", type=int, default=problem.seed, help="seed of the random batches")
    add("--out", type=Path, default=Path("bench.json"), help="JSON file with all measurements")
    add("--read", type=Path, metavar="JSON", help="read an earlier run instead of measuring")
    add("--readme", type=Path, metavar="FILE", help="put the run between the markers of FILE")


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
        console.print(f"All measurements: {args.out}")
    if args.readme is not None:
        text = args.readme.read_text(encoding="utf-8")
        write_text(args.readme, targets.insert_into(text, report, name))
        console.print(f"Table written into {args.readme}")
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
    """Run the benchmark under a progress bar that names what runs now.

    The file is written after every measurement: an interrupted run keeps what it has.
    """
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
        names = ", ".join(contender.name for contender in CONTENDERS)
        raise CommandError(f"--only {' '.join(args.only)} matches none of: {names}")
    report = Report(Problem(seed=args.seed), (), circumstances(console))
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("N={task.fields[size]} {task.fields[text]}"),
    )
    # Drawn by hand between the measurements: a refreshing thread would compete for the cores.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=total, size=effort.sizes[0], text="")

        def show(size: int, text: str) -> None:
            progress.update(task, size=size, text=text, refresh=True)

        for measurement in measure(effort, Problem(seed=args.seed), show):
            report = replace(report, measurements=(*report.measurements, measurement))
            write_text(args.out, report.to_json())
            progress.update(task, advance=1, text="done", refresh=True)
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
