"""``tricouple bench``: measure or read, print, and keep the numbers."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks import measure, table
from benchmarks.cases import ANCHORS, CLASSES, N_ITERS, PAIR_PLAN, TRIPLET_PLAN, Case
from benchmarks.worker import ROOT, Workers
from tricouple_lab.files import write_text, written
from tricouple_lab.names import UserError

BUSY = 0.5  # a load above which other programs disturb the times
WEIGHED = 1024  # matrices of smaller batches are lost in the pages of an allocator
STORED = 8192  # above, N×N matrices take gigabytes
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


def of(name: str, loss: str = "", c: float = 100.0, shaping: str = "", **about: Any) -> Case:
    """A case without its size. τ = ε = 0.1 as in the paper: c = 100, or 10 for one of the two."""
    if shaping:
        about["options"] = {"shaping": shaping, "memory": "matrices"}
    return Case(name, loss or name, c=c, batch="classes", versions=("this",), **about)


STREAMED: dict[str, Any] = {"options": {"memory": "streamed"}, "matrices": 0.5}
CONTENDERS = (  # and the sizes from and up to which they run
    (of("NegMMIOT"), 0, STORED),
    (of("NegMMIOT implicit", "NegMMIOT", options={"gradient": "implicit"}), 0, STORED),
    (of("NegMMIOT envelope", "NegMMIOT", options={"gradient": "envelope"}), 0, STORED),
    (of("NegMMIOT streamed", "NegMMIOT", **STREAMED), STORED, math.inf),
    (of("NegMMIOT log-sigmoid", "NegMMIOT", shaping="log_sigmoid"), 0, 2048),
    (of("NegMMIOT hinge", "NegMMIOT", shaping="hinge"), 0, 2048),
    (of(f"NegMMIOT log-sigmoid, {ANCHORS}", "NegMMIOT", shaping=ANCHORS), 0, 512),
    (of("PushPull"), 0, STORED),
    (of("PushPull streamed", "PushPull", **STREAMED), STORED, math.inf),
    (of("IOT", c=10), 0, STORED),
    (of("IOT streamed", "IOT", 10, **STREAMED), STORED, math.inf),
    (of("InfoNCE", c=10, matrices=0.5), 0, math.inf),
    (of("InfoNCE (plain PyTorch)", "plain_info_nce", 10), 0, STORED),
    (of("SupConLoss (PML)", "sup_con", 10), 0, STORED),
    (of("dense Neg-MMIOT (PyTorch)", "dense_neg_mmiot", cubic=True), 0, STORED),
    (of("MMSinkhorn unrolled (OTT-JAX)", "unrolled", cubic=True), 0, STORED),
    (of("MMSinkhorn Danskin (OTT-JAX)", "Danskin", cubic=True), 0, STORED),
    (of("triplet_sinkhorn", "triplet_plan", task=TRIPLET_PLAN), 0, STORED),
    (of("MMSinkhorn plan only (OTT-JAX)", "plan only", task=TRIPLET_PLAN, cubic=True), 0, STORED),
    (of("sinkhorn", "pair_plan", 10, task=PAIR_PLAN), 0, STORED),
    (of("sinkhorn (POT)", "sinkhorn", 10, task=PAIR_PLAN), 0, STORED),
    (of("sinkhorn_log (POT)", "sinkhorn_log", 10, task=PAIR_PLAN), 0, STORED),
)
SHARED = (  # all compare N×N pairs: N samples with themselves, or N pairs of two sets
    of("NegMMIOT"),
    of("NegMMIOT, both directions", "NegMMIOT", sets="both"),
    of("PushPull"),
    of("InfoNCE", c=10),
    of("ClipLoss (open_clip)", "clip_loss", 10, sets="both"),
    of("NTXentLoss (lightly)", "nt_xent", 10),
    of("SupConLoss (PML)", "sup_con", 10, matrices=56),
    of("MultipleNegativesRankingLoss (ST)", "ranking", 10, sets="both"),
)


def parse(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "tricouple bench", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=shape
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="sizes 32 and 64, two rounds, no memory")
    add("--sizes", type=numbers(16), metavar="N,…", help="batch sizes (64 to 8192, doubling)")
    add("--dim", type=int, default=128, help="dimension of the embeddings (128)")
    add("--largest-cubic", type=int, default=256, metavar="N", help="largest size for the "
        "contenders with N×N×N tensors (256)")  # fmt: skip
    add("--rounds", type=int, help="rounds in which contenders take turns (as many as take 3 s "
        "per contender; of steps 40)")  # fmt: skip
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
    problem = {"dim": args.dim, "classes": CLASSES, "temperature": 0.1, "epsilon": 0.1,
               "n_iters": N_ITERS, "seed": args.seed}  # fmt: skip
    facts = measure.circumstances("tricouple bench", words)
    run: dict[str, Any] = {"problem": {"backbones": args.step} if args.step else problem}
    run |= {"measurements": [], "provenance": facts}
    groups = [] if args.step else chosen(args)
    with written(args.out):  # before minutes of measuring
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.open("a").close()
    if facts["load"] > BUSY:
        print(f"Other programs keep this machine busy (load {facts['load']:.1f}): times and "
              "ratios will be unreliable.")  # fmt: skip
    try:
        for row in steps(args) if args.step else rows_of(groups, args):
            run["measurements"].append(row)
            write_text(args.out, json.dumps(run, indent=1) + "\n")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{args.out} has what was measured") from None
    measure.say("")
    print(f"All measurements: {args.out}")
    return run


def steps(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of training steps."""
    tiny = {"batch_size": 16, "image_size": 16} if args.quick else {}
    rounds = args.rounds or (2 if args.quick else 40)
    return measure.measure_steps(args.step.split(","), rounds=rounds, seed=args.seed, **tiny)


def chosen(args: argparse.Namespace) -> list[list[Case]]:
    """Groups of cases that the command line asks for; those of a group take turns."""
    powers = (2048, 4096, 8192) if args.processes else [2**power for power in range(6, 14)]
    sizes = args.sizes or ((32, 64) if args.quick else powers)
    known = [(case, 0, math.inf) for case in SHARED] if args.processes else CONTENDERS
    patterns = args.only or ["*"]
    wanted = [one for one in known if any(fnmatch(one[0].name, text) for text in patterns)]
    if not wanted:
        every = ", ".join(case.name for case, *_ in known)
        raise UserError(f"--only {' '.join(args.only)}: matches none of {every}")
    return [
        [
            replace(case, n=n, d=args.dim, seed=args.seed, world=world)
            for case, least, most in wanted
            if least <= n <= (args.largest_cubic if case.cubic else most)
        ]
        for world in args.processes or (1,)
        for n in sizes
    ]


def rows_of(groups: list[list[Case]], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of groups as they are measured; memory of shared batches is that of the largest."""
    largest = max(case.n for cases in groups for case in cases) if args.processes else 0

    def weigh(case: Case) -> bool:
        unwanted = args.no_memory or args.quick or case.n < largest
        return not unwanted and (case.n >= WEIGHED or case.cubic)

    workers = Workers({"this": ROOT})
    try:
        for cases in filter(None, groups):
            found = measure.measure(cases, workers, args.rounds or 2 * args.quick, weigh)
            for case in cases:
                row = {"contender": case.name, "task": case.task, "size": case.n}
                row |= {"processes": case.world, "dim": case.d} if args.processes else {}
                yield row | found[case.name, "this"]
    finally:
        workers.close()


if __name__ == "__main__":
    from tricouple_lab.cli import main as command

    sys.exit(command(["bench", *sys.argv[1:]]))
