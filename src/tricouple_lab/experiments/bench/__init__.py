"""Time, memory and growth of the losses beside the dense algorithm and other libraries."""

from __future__ import annotations

import argparse
from pathlib import Path

from tricouple_lab.options import at_least, several

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
  tricouple bench --processes 2,4                   one batch over several processes, gathered peers
  tricouple bench --read bench.json                 print an earlier run again
  tricouple bench --read bench.json --readme README.md    put an earlier run into a README
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    from tricouple_lab.experiments.bench.measure import Effort
    from tricouple_lab.experiments.bench.problem import STEPS, Problem

    effort, problem = Effort(), Problem()
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--quick", action="store_true", help="sizes 32 and 64, few calls, no memory")
    sizes = ",".join(map(str, effort.sizes))
    add("--sizes", type=several(16), help=f"batch sizes (default: {sizes})")
    add("--largest-cubic", type=at_least(0), default=effort.largest_cubic, metavar="N",
        help="largest size for the contenders with N^3 memory")  # fmt: skip
    add("--rounds", type=at_least(1), help=f"interleaved rounds (default: {effort.rounds})")
    add("--only", action="append", default=[], metavar="PATTERN",
        help="only contenders of such names, e.g. 'NegMMIOT*'; may be given several times",
    )  # fmt: skip
    add("--no-memory", action="store_true", help="do not measure memory")
    add("--training-step", nargs="?", const="vision", choices=tuple(STEPS),
        help="instead: whole training steps, of a ResNet-18 or of a small CLIP, loss beside loss",
    )  # fmt: skip
    add("--processes", type=process_counts, metavar="R,…",
        help="instead: one batch over so many processes of a thread each, beside gathered peers",
    )  # fmt: skip
    add("--seed", type=int, default=problem.seed, help="seed of the random batches")
    add("--out", type=Path, default=Path("bench.json"), help="JSON file with all measurements")
    add("--read", type=Path, metavar="JSON", help="read an earlier run instead of measuring")
    add("--readme", type=Path, metavar="FILE", help="put the run between the markers of FILE")


def process_counts(text: str) -> tuple[int, ...]:
    """Read numbers of processes such as ``2,4``."""
    return tuple(sorted({at_least(2)(part) for part in text.split(",")}))


def run(args: argparse.Namespace) -> int:
    """Measure or read, print, and write."""
    from tricouple_lab.experiments.bench import command

    return command.run(args)
