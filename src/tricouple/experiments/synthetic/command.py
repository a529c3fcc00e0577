"""``tricouple synthetic``: the comparison on the synthetic mixture, and maps of what changes it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tricouple.experiments.synthetic.config import RunConfig
from tricouple.experiments.synthetic.folder import StudyFolder, open_folder
from tricouple.experiments.synthetic.grid import AXES, Cell, main_cells, map_cells
from tricouple.experiments.synthetic.pool import WorkerError
from tricouple.experiments.synthetic.progress import LiveProgress
from tricouple.experiments.synthetic.study import run_cells, unfinished, write_page
from tricouple.experiments.synthetic.tables import claims_table, final_table, map_table
from tricouple.experiments.synthetic.verdict import MEANINGS
from tricouple.options import CommandError, at_least, positive_float
from tricouple.provenance import collect_provenance, require_clean

DESCRIPTION = """\
Train a three-layer MLP on a mixture of Gaussians with each of six methods (Neg-MMIOT, PushPull,
IOT, InfoNCE, BYOL, VICReg; the first two also with log-sigmoid ψ) and follow the geometry of
the training embeddings: neural collapse, spectrum of the class means, effective rank; and the k-NN
accuracy on held-out samples. "main" compares the methods at several K with several seeds, "maps"
varies one setting at a time at the first K and says where each method ends.

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


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    default = RunConfig()
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--study", choices=STUDIES, default="main", help="which part to run")
    add("--classes", type=class_counts, default="10,20,50", help="K, several with commas")
    add("--seeds", type=at_least(1), default=3, help="number of seeds of the main part")
    add("--per-class", type=at_least(2), default=default.per_class, help="samples of a class")
    add("--data-dim", type=at_least(1), default=default.data_dim, help="dimension of the data")
    add("--kappa", type=positive_float, default=default.kappa, help="variance outside the means")
    add("--batch-per-class", type=at_least(2), default=default.batch_per_class,
        help="samples of a class in a batch")  # fmt: skip
    add("--carry-over", type=float, default=default.carry_over,
        help="share of a batch kept for the next one")  # fmt: skip
    add("--dim", type=at_least(1), default=default.dim, help="dimension of the embeddings")
    add("--epsilon", type=positive_float, default=default.epsilon, help="entropic weight")
    add("--temperature", type=positive_float, default=default.temperature, help="tau")
    add("--n-iters", type=at_least(1), default=default.n_iters, help="Sinkhorn sweeps")
    add("--steps", type=at_least(1), default=default.steps, help="optimiser steps of a run")
    add("--snapshots", action="store_true", help="keep embeddings of the first seed (1 MB a run)")
    add("--workers", type=at_least(1), default=os.cpu_count() or 1, help="runs at a time")
    add("--out", type=Path, default=Path("runs/synthetic"), help="folder of the study")
    add("--allow-dirty", action="store_true", help="record runs of sources that no commit names")


def run(args: argparse.Namespace) -> int:
    """Run what is not done yet, print the tables and write the page."""
    classes: tuple[int, ...] = args.classes
    try:
        base = RunConfig(
            n_classes=classes[0],
            per_class=args.per_class,
            data_dim=args.data_dim,
            kappa=args.kappa,
            batch_per_class=args.batch_per_class,
            carry_over=args.carry_over,
            dim=args.dim,
            epsilon=args.epsilon,
            temperature=args.temperature,
            n_iters=args.n_iters,
            steps=args.steps,
        )
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


def conduct(
    path: Path,
    name: str,
    base: RunConfig,
    cells: Sequence[Cell],
    *,
    workers: int,
    snapshots: bool,
) -> None:
    """Run a study in a folder with live progress, then show its tables and where the page is.

    Args:
        path: The folder.
        name: Name of the study; a folder holds one.
        base: What the runs share; a folder holds runs of one base.
        cells: The runs.
        workers: Processes at a time.
        snapshots: Whether to keep embeddings of the main part's first seed.

    Raises:
        CommandError: If the folder cannot be used or a worker fails.
        KeyboardInterrupt: After Ctrl-C, with the results so far kept and reported.
    """
    console = Console()
    folder = open_folder(path, name, base.shared(), collect_provenance())
    done = len(cells) - len(unfinished(cells, folder.records()))
    if done:
        console.print(f"{done} of {len(cells)} runs are done already in {path}")
    try:
        with LiveProgress(console, total=len(cells), done=done) as display:
            run_cells(folder, cells, display, workers=workers, snapshots=snapshots)
    except WorkerError as error:
        raise CommandError(f"a run failed; what was done is kept in {path}\n{error}") from error
    except KeyboardInterrupt:
        show(console, folder)
        console.print("Interrupted: the same command goes on from here.")
        raise
    show(console, folder)


def show(console: Console, folder: StudyFolder) -> None:
    """Print the tables of what is there and write the page."""
    records = list(folder.records().values())
    main = [record for record in records if record["part"] == "main"]
    for n_classes in sorted({record["config"]["n_classes"] for record in main}):
        group = [record for record in main if record["config"]["n_classes"] == n_classes]
        console.print(final_table(group, n_classes))
        console.print(claims_table(group))
    for axis in AXES:
        swept = [record for record in records if record["part"] == f"maps/{axis.name}"]
        if swept:
            console.print(map_table(swept, axis.name))
    for verdict, meaning in MEANINGS.items():
        if any(record["verdict"] == verdict for record in records):
            console.print(f"[bold]{verdict}[/]: {meaning}", highlight=False)
    console.print("Writing the page …")
    console.print(f"Page: {write_page(folder.path)}", soft_wrap=True)


def class_counts(text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of K such as ``10,20``; the result is increasing."""
    parse = at_least(2)
    return tuple(sorted({parse(part) for part in text.split(",")}))
