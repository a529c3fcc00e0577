"""``tricouple bench``: measure or read, print, and keep the numbers."""

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.cases import ANCHORS, CLASSES, LOSS, N_ITERS, PAIR_PLAN, TRIPLET_PLAN, Case
from benchmarks.worker import ROOT, Workers
from tricouple_lab.names import UserError

SHOWN = 1024  # matrices of smaller batches are lost in the pages of an allocator
STORED = 8192  # above, N×N matrices take gigabytes
DESCRIPTION = """\
Time and memory of the losses beside the dense N^3 algorithm, InfoNCE in plain PyTorch, SupConLoss
(pytorch-metric-learning), MMSinkhorn (OTT-JAX) and Sinkhorn (POT). A call is value and gradient;
compilation is not counted; all have the same sharpness. Contenders of one size take turns in rounds
and the best call counts: compare ratios within one run. Memory is measured in a fresh process per
contender and size, in N×N float32 matrices. A library that is not installed is a row without
numbers.
"""
EXAMPLES = """\
examples:
  tricouple bench --quick                         seconds: does it run, what is installed
  tricouple bench                                 everything, many minutes; keep the machine quiet
  tricouple bench --read results/bench/core.json --markdown docs/assets/bench-core.md
"""


def of(name: str, loss: str = "", task: str = LOSS, *, sets: str = "one", cubic: bool = False,
       matrices: float = 20.0, **options: Any) -> Case:  # fmt: skip
    """A case without its size and sharpness, which are those of the run."""
    about = {"task": task, "sets": sets, "cubic": cubic, "matrices": matrices, "options": options}
    return Case(name, loss or name, batch="classes", versions=("this",), **about)


STREAMED: dict[str, Any] = {"memory": "streamed", "matrices": 0.5}
CUBIC = 256  # the largest size of contenders with N×N×N tensors
CONTENDERS = (  # and the sizes from and up to which they run
    (of("NegMMIOT"), 0, STORED),
    (of("NegMMIOT implicit", "NegMMIOT", gradient="implicit"), 0, STORED),
    (of("NegMMIOT envelope", "NegMMIOT", gradient="envelope"), 0, STORED),
    (of("NegMMIOT streamed", "NegMMIOT", **STREAMED), STORED, math.inf),
    (of("NegMMIOT log-sigmoid", "NegMMIOT", shaping="log_sigmoid"), 0, 2048),
    (of("NegMMIOT hinge", "NegMMIOT", shaping="hinge"), 0, 2048),
    (of(f"NegMMIOT log-sigmoid, {ANCHORS}", "NegMMIOT", shaping=ANCHORS), 0, 512),
    (of("PushPull"), 0, STORED),
    (of("PushPull streamed", "PushPull", **STREAMED), STORED, math.inf),
    (of("IOT"), 0, STORED),
    (of("IOT streamed", "IOT", **STREAMED), STORED, math.inf),
    (of("InfoNCE", matrices=0.5), 0, math.inf),
    (of("InfoNCE (plain PyTorch)", "plain_info_nce"), 0, STORED),
    (of("SupConLoss (PML)", "sup_con"), 0, STORED),
    (of("dense Neg-MMIOT (PyTorch)", "dense_neg_mmiot", cubic=True), 0, CUBIC),
    (of("MMSinkhorn unrolled (OTT-JAX)", "ott", cubic=True, how="unrolled"), 0, CUBIC),
    (of("MMSinkhorn Danskin (OTT-JAX)", "ott", cubic=True, how="danskin"), 0, CUBIC),
    (of("MultiModalIOT", sets="three"), 0, 2048),
    (of("MultiModalIOT, dense (PyTorch)", "dense_multi_modal", sets="three", cubic=True), 0, CUBIC),
    (of("triplet_sinkhorn", "triplet_plan", TRIPLET_PLAN), 0, STORED),
    (of("MMSinkhorn plan only (OTT-JAX)", "ott", TRIPLET_PLAN, cubic=True, how="plan"), 0, CUBIC),
    (of("sinkhorn", "pair_plan", PAIR_PLAN), 0, STORED),
    (of("sinkhorn (POT)", "pair_plan", PAIR_PLAN, method="sinkhorn"), 0, STORED),
    (of("sinkhorn_log (POT)", "pair_plan", PAIR_PLAN, method="sinkhorn_log"), 0, STORED),
)
SHARED = (  # all compare N×N pairs: N samples with themselves, or N pairs of two sets
    of("NegMMIOT"),
    of("NegMMIOT, both directions", "NegMMIOT", sets="both"),
    of("PushPull"),
    of("InfoNCE"),
    of("ClipLoss (open_clip)", "clip_loss", sets="both"),
    of("NTXentLoss (lightly)", "nt_xent"),
    of("SupConLoss (PML)", "sup_con", matrices=56),
    of("MultipleNegativesRankingLoss (ST)", "ranking", sets="both"),
)


def common(name: str, description: str, epilog: str, out: str) -> argparse.ArgumentParser:
    """The options of ``tricouple bench`` and ``benchmarks.versions``."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(name, None, description, epilog, formatter_class=shape)
    add = parser.add_argument
    add("--sizes", type=numbers, metavar="N,…", help="batch sizes")
    add("--rounds", type=int, default=0, help="rounds in which contenders take turns (as many as "
        "take 3 s per contender; of steps 40)")  # fmt: skip
    add("--out", type=Path, default=Path(out), help=f"file of the run ({out})")
    add("--read", type=Path, metavar="FILE", help="print an earlier run; measure nothing")
    add("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    return parser


def parse(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = common("tricouple bench", DESCRIPTION, EXAMPLES, "bench.json")
    add = parser.add_argument
    add("--quick", action="store_true", help="sizes 32 and 64, two rounds, no memory")
    add("--sharpness", type=float, default=10.0, metavar="C",
        help="c = 1/(τε) of every contender (10; the paper has 100)")  # fmt: skip
    add("--dim", type=int, default=128, help="dimension of the embeddings (128)")
    add("--only", action="append", metavar="PATTERN",
        help="only contenders of such names, as 'NegMMIOT*'; may be repeated")  # fmt: skip
    add("--step", nargs="?", const="resnet18", metavar="BACKBONE,…", help="instead: whole training "
        "steps with each loss; backbones of tricouple train, or clip_small")  # fmt: skip
    add("--processes", type=numbers, metavar="R,…",
        help="instead: one batch over so many processes of one thread each")  # fmt: skip
    return parser.parse_args(words)


def numbers(text: str) -> tuple[int, ...]:
    """Read numbers such as ``256,1024``."""
    return tuple(sorted({int(part) for part in text.split(",")}))


def main(words: list[str]) -> int:
    """Run the command."""
    args = parse(words)
    rows = steps(args) if args.step else rows_of(chosen(args), args)
    problem: dict[str, Any] = {"sharpness": args.sharpness}
    if args.step:
        problem |= {"backbones": args.step}
    else:
        problem |= {"dim": args.dim, "classes": CLASSES, "n_iters": N_ITERS}
    command = ["tricouple", "bench", *words]
    measure.publish(args, {"problem": problem}, "measurements", rows, command)
    return 0


def steps(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of training steps."""
    tiny = {"batch_size": 16, "image_size": 16} if args.quick else {}
    rounds = args.rounds or (2 if args.quick else 40)
    for backbone in args.step.split(","):
        found = measure.step_ratios([backbone], rounds=rounds, sharpness=args.sharpness, **tiny)
        found = found.rename(columns={"loss": "contender", "batch_size": "size"})
        yield from found.to_dict("records")


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
    largest = max(sizes) if args.processes else 0  # memory of shared batches is measured there

    def sized(case: Case, n: int, world: int) -> Case:
        measured = not args.quick and n >= largest and (n >= SHOWN or case.cubic)
        limits = {"memory, N²": None} if measured else {}
        return replace(case, n=n, d=args.dim, c=args.sharpness, world=world, limits=limits)

    return [
        [sized(case, n, world) for case, least, most in wanted if least <= n <= most]
        for world in args.processes or (1,)
        for n in sizes
    ]


def rows_of(groups: list[list[Case]], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of groups as they are measured."""
    with closing(Workers({"this": ROOT})) as workers:
        for cases in filter(None, groups):
            found = measure.measure(cases, workers, args.rounds or 2 * args.quick)
            for case in cases:
                row = {"contender": case.name, "task": case.task, "size": case.n}
                row |= {"processes": case.world, "dim": case.d} if args.processes else {}
                yield row | found[case.name, "this"]


if __name__ == "__main__":
    from tricouple_lab.cli import main as command

    sys.exit(command(["bench", *sys.argv[1:]]))
