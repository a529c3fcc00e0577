"""``tricouple synthetic``: a comparison on the synthetic mixture, and maps; ``tricouple demo``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tricouple_lab.experiments.synthetic.config import (
    LINEAR,
    Cell,
    RunConfig,
    main_cells,
    map_cells,
)
from tricouple_lab.options import CommandError, at_least, positive_float, several
from tricouple_lab.provenance import require_clean

DESCRIPTION = """\
Train a three-layer MLP on a mixture of Gaussians with each of six methods (Neg-MMIOT, PushPull,
IOT, InfoNCE, BYOL, VICReg; the first two also with log-sigmoid ψ) and follow the geometry of
the training embeddings: neural collapse, spectrum of the class means, effective rank; and the k-NN
accuracy on held-out samples. "main" compares the methods at several K with several seeds, "maps"
varies one setting at a time at the first K and says where each method ends. InfoNCE runs at the
temperature of the others and at their sharpness c = 1/(τε).

The folder gets study.json, runs.jsonl (a line a run) and report.html. Ctrl-C keeps what is there
and reports it; the same command then goes on.
"""

EXAMPLES = """\
examples:
  tricouple synthetic                              the main comparison, about an hour of one core
  tricouple synthetic --study all                  and the maps, about two hours
  tricouple synthetic --classes 10 --seeds 1       a first look, minutes
  tricouple synthetic --epsilon 0.1 --out sharp    another sharpness, in another folder
"""

STUDIES = ("main", "maps", "all")

# Settings that all runs of a study share: their type and what they are.
SETTINGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "per_class": (at_least(2), "samples of a class"),
    "data_dim": (at_least(1), "dimension of the data"),
    "kappa": (positive_float, "variance outside the means"),
    "batch_per_class": (at_least(2), "samples of a class in a batch"),
    "carry_over": (float, "share of a batch kept for the next one"),
    "dim": (at_least(1), "dimension of the embeddings"),
    "epsilon": (positive_float, "entropic weight"),
    "temperature": (positive_float, "tau"),
    "n_iters": (at_least(1), "Sinkhorn sweeps"),
    "steps": (at_least(1), "optimiser steps of a run"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    default = RunConfig()
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--study", choices=STUDIES, default="main", help="which part to run")
    add("--classes", type=several(2), default="10,20,50", help="K, several with commas")
    add("--seeds", type=at_least(1), default=3, help="number of seeds of the main part")
    for name, (kind, text) in SETTINGS.items():
        option = f"--{name.replace('_', '-')}"
        add(option, type=kind, default=getattr(default, name), help=text)
    add("--snapshots", action="store_true", help="keep embeddings of the first seed (1 MB a run)")
    add("--workers", type=at_least(1), default=os.cpu_count() or 1, help="runs at a time")
    add("--out", type=Path, default=Path("runs/synthetic"), help="folder of the study")
    add("--allow-dirty", action="store_true", help="record runs of sources that no commit names")


def run(args: argparse.Namespace) -> int:
    """Run what is not done yet, print the tables and write the page."""
    from tricouple_lab.experiments.synthetic.study import conduct

    classes: tuple[int, ...] = args.classes
    settings = {name: getattr(args, name) for name in SETTINGS}
    try:
        base = RunConfig(n_classes=classes[0], **settings)
        cells: list[Cell] = []
        if args.study != "maps":
            cells += main_cells(base, classes, range(args.seeds))
        if args.study != "main":
            cells += map_cells(base)
    except (ValueError, TypeError) as error:
        raise CommandError(str(error)) from error
    require_clean(allow_dirty=args.allow_dirty)
    conduct(args.out, "synthetic", base, cells, workers=args.workers, snapshots=args.snapshots)
    return 0


# --- tricouple demo: the same in minutes ----------------------------------------------------------

DEMO_DESCRIPTION = """\
Six methods learn ten Gaussian classes with the same small network and the same budget; InfoNCE does
so twice, at the temperature of the others and at their sharpness. Theory says where the losses with
negatives must end: every class in one point, the ten points a simplex (equal angles, nine equal
eigenvalues). The table shows how close each of the seven runs came, the page how it got there.

c in the table is the sharpness of a loss, all that a linear one knows of its temperature τ and its
entropic weight ε: 1/(τε) for Neg-MMIOT and PushPull, 1/ε for IOT, 1/τ for InfoNCE. Losses are best
compared at the same c. BYOL and VICReg have none.

Ctrl-C keeps and reports what is there; the same command then goes on.
"""

DEMO_EXAMPLES = """\
examples:
  tricouple demo                                   three minutes on two cores
  tricouple demo --classes 4 --out runs/four       a tetrahedron
  tricouple demo --steps 300 --out runs/short      a shorter training, half a minute

The whole study, with several K, seeds and settings, is tricouple synthetic.
"""


class Demo:
    """Six methods at one K, with live figures, a table and a page."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this command to its parser."""
        default = RunConfig()
        parser.description = DEMO_DESCRIPTION
        parser.epilog = DEMO_EXAMPLES
        add = parser.add_argument
        add("--classes", type=at_least(2), default=default.n_classes, help="number of classes K")
        add("--steps", type=at_least(1), default=2000, help="optimiser steps of a run")
        add("--seed", type=at_least(0), default=0, help="seed of data, networks and batches")
        add("--workers", type=at_least(1), default=os.cpu_count() or 1, help="runs at a time")
        add("--out", type=Path, default=Path("runs/demo"), help="folder of the study")

    def run(self, args: argparse.Namespace) -> int:
        """Run what is not done yet, print the table and write the page."""
        from tricouple_lab.experiments.synthetic.study import conduct

        try:
            base = RunConfig(steps=args.steps)
            cells = main_cells(base, [args.classes], [args.seed], LINEAR)
        except ValueError as error:
            raise CommandError(str(error)) from error
        conduct(args.out, "demo", base, cells, workers=args.workers, snapshots=True)
        return 0


DEMO = Demo()
