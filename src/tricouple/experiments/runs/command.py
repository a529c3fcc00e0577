"""What the commands that train have in common: words, ``-m``, ``--show``, ``--study``."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tricouple.experiments.options import CommandError

Action = Callable[[argparse.Namespace, Console], int]


def add_options(parser: argparse.ArgumentParser, results: str) -> None:
    """Add the options; ``results`` is the folder of a study unless another is asked for."""
    add = parser.add_argument
    add("words", nargs="*", metavar="name=value", help="settings, as Hydra understands them")
    add("-m", "--multirun", action="store_true", help="run every combination of listed values")
    add("--show", action="store_true", help="print the settings and the folder, and stop")
    add("--study", metavar="NAME", help="run a study: its name, or a YAML file")
    add("--out", type=Path, default=Path(results), help="results of a study")


def run_words(args: argparse.Namespace, *, single: Action, multirun: Action, studies: str) -> int:
    """Do one run, a sweep, or a study.

    Args:
        args: What the user said.
        single: Does one run.
        multirun: Does every combination of the listed values.
        studies: The module that has ``StudyRuns`` and ``read_study``; imported if it is needed.

    Returns:
        The exit code.
    """
    # With several devices Lightning starts this command again for each; one of them speaks.
    console = Console(quiet=os.environ.get("LOCAL_RANK", "0") != "0")
    with user_errors():
        if args.study is not None:
            return _study(args, console, studies)
        return multirun(args, console) if args.multirun else single(args, console)


def _study(args: argparse.Namespace, console: Console, studies: str) -> int:
    """Run a study, or go on with it."""
    if args.words:
        raise CommandError("a study has its own settings: leave out " + " ".join(args.words))
    module = importlib.import_module(studies)
    found = module.read_study(args.study)
    module.StudyRuns(found, args.out, Path("runs") / found.name, console).go()
    return 0


@contextmanager
def user_errors() -> Iterator[None]:
    """Errors that a user can act on become one line: wrong values, files, divergence."""
    try:
        yield
    except (ValueError, FloatingPointError, OSError) as error:
        raise CommandError(" ".join(str(error).split())) from error
