"""``tricouple bench``: measure, print, and keep the numbers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tricouple.experiments.bench import table
from tricouple.experiments.bench.contenders import CONTENDERS
from tricouple.experiments.bench.measure import Plan, measure
from tricouple.experiments.bench.problem import Problem
from tricouple.experiments.bench.record import Report
from tricouple.experiments.bench.summary import claims
from tricouple.options import CommandError, at_least, batch_sizes, require_writable
from tricouple.provenance import collect_provenance

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
    plan, problem = Plan(), Problem()
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--quick", action="store_true", help="sizes 32 and 64, few calls, no memory")
    add(
        "--sizes", type=batch_sizes, help=f"batch sizes (default: {','.join(map(str, plan.sizes))})"
    )
    add(
        "--largest-cubic",
        type=at_least(0),
        default=plan.largest_cubic,
        metavar="N",
        help="largest size for the contenders with N^3 memory",
    )
    add("--rounds", type=at_least(1), help=f"interleaved rounds (default: {plan.rounds})")
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
        choices=("vision", "clip"),
        help="instead: whole training steps, of a ResNet-18 or of a small CLIP, loss beside loss",
    )
    add("--seed", type=int, default=problem.seed, help="seed of the random batches")
    add("--out", type=Path, default=Path("bench.json"), help="JSON file with all measurements")
    add("--read", type=Path, metavar="JSON", help="read an earlier run instead of measuring")
    add("--readme", type=Path, metavar="FILE", help="put the table between the markers of FILE")


def run(args: argparse.Namespace) -> int:
    """Measure or read, print, and write."""
    console = Console()
    if args.training_step is not None:
        return run_training_step(args, console)
    if args.readme is not None:
        check_markers(args.readme)
    if args.read is not None:
        report = read_report(args.read)
    else:
        require_writable(args.out)
        report = measure_with_progress(make_plan(args), Problem(seed=args.seed), args.out, console)
    for part in table.terminal_tables(report):
        console.print(part)
    found = claims(report)
    if found:
        console.print(table.claims_table(found))
    console.print(table.conditions(report))
    if args.read is None:
        console.print(f"All measurements: {args.out}")
    if args.readme is not None:
        text = args.readme.read_text(encoding="utf-8")
        section = table.readme_section(report)
        args.readme.write_text(table.insert_into(text, section), encoding="utf-8")
        console.print(f"Table written into {args.readme}")
    return 0


def run_training_step(args: argparse.Namespace, console: Console) -> int:
    """Time whole training steps; 1 if the target is missed."""
    # Imported here: it needs timm, which the losses' own benchmark does not.
    from tricouple.experiments.bench import training_step
    from tricouple.experiments.bench.clip_step import ClipStepPlan

    require_writable(args.out)
    kinds = {"vision": training_step.StepPlan, "clip": ClipStepPlan}
    kind: type[training_step.AnyPlan] = kinds[args.training_step]
    plan = kind.quick() if args.quick else kind()
    plan = replace(plan, seed=args.seed, rounds=args.rounds or plan.rounds)
    provenance = collect_provenance()
    with console.status("") as status:
        times = training_step.measure_steps(plan, lambda loss: status.update(f"step with {loss}"))
    training_step.write_steps(args.out, plan, times, provenance)
    console.print(training_step.step_table(times, plan))
    claim = training_step.step_claim(times, plan)
    console.print(table.claims_table([claim]))
    return 0 if claim.met else 1


def make_plan(args: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for."""
    plan = replace(
        Plan.quick() if args.quick else Plan(),
        largest_cubic=args.largest_cubic,
        only=tuple(args.only),
    )
    if not any(plan.meets(contender, size) for size in plan.sizes for contender in CONTENDERS):
        names = ", ".join(contender.name for contender in CONTENDERS)
        raise CommandError(f"--only {' '.join(args.only)} matches none of: {names}")
    if args.sizes is not None:
        plan = replace(plan, sizes=args.sizes)
    if args.rounds is not None:
        plan = replace(plan, rounds=args.rounds)
    return replace(plan, memory=False) if args.no_memory else plan


def measure_with_progress(plan: Plan, problem: Problem, out: Path, console: Console) -> Report:
    """Run the benchmark under a progress bar that names what runs now.

    The file is written after every measurement: an interrupted run keeps what it has.
    """
    total = sum(plan.meets(contender, size) for size in plan.sizes for contender in CONTENDERS)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("N={task.fields[size]} {task.fields[text]}"),
    )
    report = Report(problem, (), collect_provenance())
    load = report.provenance["load"]
    if load > BUSY:
        console.print(
            f"[yellow]Other programs keep this machine busy (load {load:.1f}): "
            "times and their ratios will be unreliable."
        )
    # Drawn by hand between the measurements: a refreshing thread would compete for the cores.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=total, size=plan.sizes[0], text="")

        def show(size: int, text: str) -> None:
            progress.update(task, size=size, text=text, refresh=True)

        for measurement in measure(plan, problem, show):
            report = replace(report, measurements=(*report.measurements, measurement))
            out.write_text(report.to_json(), encoding="utf-8")
            progress.update(task, advance=1, text="done", refresh=True)
    return report


def read_report(path: Path) -> Report:
    """Read an earlier run."""
    try:
        return Report.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"cannot read {path}: {error}") from error


def check_markers(path: Path) -> None:
    """Make sure, before minutes of measuring, that the README has a place for the table."""
    try:
        table.insert_into(path.read_text(encoding="utf-8"), "")
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"cannot write into {path}: {error}") from error
