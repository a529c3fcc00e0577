"""``tricouple demo``: the synthetic study in minutes, with live figures, a table and a page."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tricouple.experiments.synthetic.config import LINEAR, RunConfig, main_cells
from tricouple.options import CommandError, at_least

DESCRIPTION = """\
Six methods learn ten Gaussian classes with the same small network and the same budget; InfoNCE does
so twice, at the temperature of the others and at their sharpness. Theory says where the losses with
negatives must end: every class in one point, the ten points a simplex (equal angles, nine equal
eigenvalues). The table shows how close each of the seven runs came, the page how it got there.

c in the table is the sharpness of a loss, all that a linear one knows of its temperature τ and its
entropic weight ε: 1/(τε) for Neg-MMIOT and PushPull, 1/ε for IOT, 1/τ for InfoNCE. Losses are best
compared at the same c. BYOL and VICReg have none.

Ctrl-C keeps and reports what is there; the same command then goes on.
"""

EXAMPLES = """\
examples:
  tricouple demo                                   three minutes on two cores
  tricouple demo --classes 4 --out runs/four       a tetrahedron
  tricouple demo --steps 300 --out runs/short      a shorter training, half a minute

The whole study, with several K, seeds and settings, is tricouple synthetic.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    default = RunConfig()
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--classes", type=at_least(2), default=default.n_classes, help="number of classes K")
    add("--steps", type=at_least(1), default=2000, help="optimiser steps of a run")
    add("--seed", type=at_least(0), default=0, help="seed of data, networks and batches")
    add("--workers", type=at_least(1), default=os.cpu_count() or 1, help="runs at a time")
    add("--out", type=Path, default=Path("runs/demo"), help="folder of the study")


def run(args: argparse.Namespace) -> int:
    """Run what is not done yet, print the table and write the page."""
    from tricouple.experiments.synthetic.study import conduct

    try:
        base = RunConfig(steps=args.steps)
        cells = main_cells(base, [args.classes], [args.seed], LINEAR)
    except ValueError as error:
        raise CommandError(str(error)) from error
    conduct(args.out, "demo", base, cells, workers=args.workers, snapshots=True)
    return 0
