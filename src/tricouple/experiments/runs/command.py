"""What the commands that train have in common: words, ``-m``, ``--show``, ``--study``."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from tricouple.options import CommandError


def add_options(parser: argparse.ArgumentParser, results: str) -> None:
    """Add the options; ``results`` is the folder of a study unless another is asked for."""
    add = parser.add_argument
    add("words", nargs="*", metavar="name=value", help="settings, as Hydra understands them")
    add("-m", "--multirun", action="store_true", help="run every combination of listed values")
    add("--show", action="store_true", help="print the settings and the folder, and stop")
    add("--study", metavar="NAME", help="run a study: its name, or a YAML file")
    add("--out", type=Path, default=Path(results), help="results of a study")


def run_words(args: argparse.Namespace, *, command: str, package: str) -> int:
    """Do one run, a sweep, or a study.

    Args:
        args: What the user said.
        command: The command that this is.
        package: Its modules ``run_folder``, ``train``, ``show`` and ``study_runs`` do the work.
            Importing them takes seconds, and comes late: a mistyped word is answered at once.

    Returns:
        The exit code.
    """
    # With several devices Lightning starts this command again for each; one of them speaks.
    console = Console(quiet=os.environ.get("LOCAL_RANK", "0") != "0")
    with user_errors():
        if args.study is not None:
            return _study(args, console, package)
        if args.multirun:
            return _multirun(args, console, command)
        return _single(args, console, command, package)


def _single(args: argparse.Namespace, console: Console, command: str, package: str) -> int:
    """One run."""
    from tricouple.conf.compose import KINDS, configure, to_yaml

    config: object = configure(args.words, KINDS[command])
    if args.show:
        folder = _part(package, "run_folder").folder_of(config)
        console.print(f"# {folder.path}\n{to_yaml(config)}", markup=False)
        return 0
    finished = _part(package, "train").train(config, console)
    if finished.evaluation:
        _part(package, "show").show(finished, console)
    return 0


def _multirun(args: argparse.Namespace, console: Console, command: str) -> int:
    """Every combination of the listed values; 1 if some run failed."""
    from tricouple.experiments.runs.sweep import sweep

    return int(any(job.failed for job in sweep(args.words, console, command)))


def _study(args: argparse.Namespace, console: Console, package: str) -> int:
    """Run a study, or go on with it."""
    if args.words:
        raise CommandError("a study has its own settings: leave out " + " ".join(args.words))
    studies = _part(package, "study_runs")
    found = studies.read_study(args.study)
    studies.StudyRuns(found, args.out, Path("runs") / found.name, console).go()
    return 0


def _part(package: str, name: str) -> Any:
    return importlib.import_module(f"{package}.{name}")


@contextmanager
def user_errors() -> Iterator[None]:
    """Errors that a user can act on become one line: wrong values, files, divergence."""
    try:
        yield
    except (ValueError, FloatingPointError, OSError) as error:
        raise CommandError(" ".join(str(error).split())) from error
