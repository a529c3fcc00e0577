"""``tricouple bench``: measure or read, print, and keep the numbers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

BUSY = 0.5  # a load above which other programs disturb the times
DESCRIPTION = """\
Time and memory of the losses beside the dense N^3 algorithm, InfoNCE in plain PyTorch, SupConLoss
(pytorch-metric-learning), MMSinkhorn (OTT-JAX) and Sinkhorn (POT). A call is value and gradient;
compilation is not counted. Contenders of one size take turns in rounds and the best call counts:
compare ratios within one run. Memory is measured in a fresh process per contender and size, in N×N
float32 matrices. A library that is not installed is a row without numbers.
"""
EXAMPLES = """\
examples:
  tricouple bench --quick                         seconds: does it run, what is installed
  tricouple bench                                 everything, many minutes; keep the machine quiet
  tricouple bench --sizes 256,1024 --no-memory    two sizes, times only
  tricouple bench --sizes 8192,32768 --only NegMMIOT --only '* streamed'   the price of streaming
  tricouple bench --step                          whole training steps of a ResNet-18 (a minute)
  tricouple bench --step resnet18,clip_small      and of a small CLIP
  tricouple bench --processes 2,4                 one batch over several processes
  tricouple bench --read bench.json               print an earlier run
  tricouple bench --read results/bench/core.json --markdown docs/assets/bench-core.md
"""


def parse(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "tricouple bench", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=shape
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="sizes 32 and 64, few calls, no memory")
    add("--sizes", type=numbers(16), metavar="N,…", help="batch sizes (64 to 8192, doubling)")
    add("--largest-cubic", type=int, default=256, metavar="N", help="largest size for the "
        "contenders with N×N×N tensors (256)")  # fmt: skip
    add("--rounds", type=int, help="rounds in which contenders take turns (5; of steps 40)")
    add("--only", action="append", default=[], metavar="PATTERN",
        help="only contenders of such names, as 'NegMMIOT*'; may be repeated")  # fmt: skip
    add("--no-memory", action="store_true", help="do not measure memory")
    add("--step", nargs="?", const="resnet18", metavar="BACKBONE,…", help="instead: whole training "
        "steps with each loss; backbones of tricouple train, or clip_small")  # fmt: skip
    add("--processes", type=numbers(2), metavar="R,…",
        help="instead: one batch over so many processes of one thread each")  # fmt: skip
    add("--seed", type=int, default=0, help="seed of the random batches (0)")
    add("--out", type=Path, default=Path("bench.json"), help="file of the run (bench.json)")
    add("--read", type=Path, metavar="FILE", help="print an earlier run; measure nothing")
    add("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    return parser.parse_args(words)


def numbers(least: int) -> Any:
    """Read numbers such as ``256,1024``."""

    def read(text: str) -> tuple[int, ...]:
        found = tuple(sorted({int(part) for part in text.split(",")}))
        if found[0] < least:
            raise argparse.ArgumentTypeError(f"{found[0]} is too small: use {least} or more")
        return found

    read.__name__ = "list of numbers"
    return read


def main(words: list[str]) -> int:
    """Run the command."""
    args = parse(words)
    from benchmarks import table
    from tricouple_lab.files import write_text

    run = table.read(args.read) if args.read else measured(args, words)
    for caption, found in table.tables(run).items():
        print(f"{caption}\n{found.to_string(index=False)}\n")
    print("\n".join(table.notes(run)))
    if args.markdown:
        write_text(args.markdown, table.markdown(run))
        print(f"Tables: {args.markdown}")
    return 0


def measured(args: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    """Measure; the file is written after every row: an interrupted run keeps what it has."""
    from benchmarks import measure
    from benchmarks.problem import Problem
    from tricouple_lab.files import write_text, written

    problem = {"backbones": args.step} if args.step else asdict(Problem(seed=args.seed))
    facts = measure.circumstances(words)
    run: dict[str, Any] = {"problem": problem, "measurements": [], "provenance": facts}
    rows = chosen(args)
    with written(args.out):  # before minutes of measuring
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.open("a").close()
    if facts["load"] > BUSY:
        print(f"Other programs keep this machine busy (load {facts['load']:.1f}): times and "
              "ratios will be unreliable.")  # fmt: skip
    try:
        for row in rows:
            run["measurements"].append(row)
            write_text(args.out, json.dumps(run, indent=1) + "\n")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{args.out} has what was measured") from None
    measure.say("")
    print(f"All measurements: {args.out}")
    return run


def chosen(args: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """Rows of what the command line asks for, measured as they are taken."""
    from benchmarks import contenders, measure
    from benchmarks.problem import Problem
    from tricouple_lab.names import UserError

    if args.step:
        tiny = {"batch_size": 16, "image_size": 16} if args.quick else {}
        rounds = args.rounds or (2 if args.quick else 40)
        return measure.measure_steps(args.step.split(","), rounds=rounds, seed=args.seed, **tiny)
    full, quick, known = measure.Effort(), measure.QUICK, contenders.BY_NAME
    measuring = measure.measure
    if args.processes:
        from benchmarks import processes as p

        full, quick, known, measuring = p.FULL, p.QUICK, p.BY_NAME, p.measure_processes
    given = {key: getattr(args, key) for key in ("sizes", "rounds", "largest_cubic", "processes")}
    effort = replace(quick if args.quick else full, only=tuple(args.only),
                     **{key: value for key, value in given.items() if value})  # fmt: skip
    if not any(map(effort.matches, known)):
        raise UserError(f"--only {' '.join(args.only)}: matches none of {', '.join(known)}")
    if args.no_memory:
        effort = replace(effort, memory=False)
    return measuring(effort, Problem(seed=args.seed))


if __name__ == "__main__":
    from tricouple_lab.cli import main as command

    sys.exit(command(["bench", *sys.argv[1:]]))
