"""The ``tricouple`` command: one table of commands, each imported only when it is used.

Exit codes: 0 success; 1 a check failed or the machine did (a full disk); 2 an error that the user
can correct, as one sentence; 130 Ctrl-C.
"""

import argparse
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tricouple import __version__
from tricouple_lab.names import EXTRAS, UserError, nearest

DESCRIPTION = "Contrastive learning with optimal transport: train, evaluate and compare losses."
EXAMPLES = """\
examples:
  tricouple demo                        seven methods on a synthetic mixture (minutes)
  tricouple train data=digits           train an image encoder
  tricouple train data=folder data.root=photos
  tricouple clip scale=smoke            train image and text encoders on coloured shapes
  tricouple text scale=smoke            train a sentence encoder
  tricouple train -m loss=infonce,neg_mmiot 'seed=range(0,5)' --choose loss.sharpness=3,10,30
  tricouple train --help                settings of one command
"""


@dataclass(frozen=True)
class Command:
    """A row of the table of commands."""

    summary: str
    extra: str  # the optional dependencies that it needs
    module: str = ""  # has ``configure(parser)`` and ``run(options, words) -> int``
    folder: str = ""  # or: a folder of the clone whose ``__main__.py`` has ``main(arguments)``
    wraps: str = ""  # what one module does for several commands


COMMANDS = {
    "demo": Command("seven methods on a synthetic mixture: a table and a page (minutes)", "train",
                    "tricouple_lab.commands.synthetic", wraps="demo"),
    "train": Command("train and evaluate an image encoder, once or many times", "train",
                     "tricouple_lab.cli", wraps="images"),
    "clip": Command("train image and text encoders on captions", "clip",
                    "tricouple_lab.cli", wraps="clip"),
    "text": Command("train a sentence encoder on labelled or paired texts", "text",
                    "tricouple_lab.cli", wraps="text"),
    "evaluate": Command("measure trained encoders again", "train",
                        "tricouple_lab.commands.evaluate"),
    "embed": Command("embeddings of your own files by a trained encoder", "train",
                     "tricouple_lab.commands.embed"),
    "report": Command("one page of a run, of several runs or of a study", "train",
                      "tricouple_lab.commands.report"),
    "synthetic": Command("the paper's synthetic study: several K, settings and seeds (an hour)",
                         "train", "tricouple_lab.commands.synthetic", wraps="synthetic"),
    "verify": Command("test the statements of the paper's theory (a minute)", "train",
                      folder="theory"),
    "bench": Command("time and memory of the losses and of other libraries", "bench",
                     folder="benchmarks"),
    "study": Command("comparisons of losses: hypothesis, runs, verdict", "all", folder="studies"),
    "reproduce": Command("rerun the paper's tables and figures and compare", "all",
                         folder="reproduce"),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    pressed: list[int] = []  # how often Ctrl-C was pressed: libraries may change the exception

    def press(number: int, _: Any) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, press) if in_main_thread else None
    try:
        return dispatch(words)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) or pressed:
            if arguments is None:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            # Python remembers an interrupt in code that was text, as dataclasses make it, and
            # ends by the signal then; other such code makes it forget.
            eval("0")
            how = str(error) if isinstance(error, KeyboardInterrupt) else ""
            print(f"interrupted: {how or 'the same command continues'}", file=sys.stderr)
            return 130
        if isinstance(error, OSError):
            print(f"error: {error}", file=sys.stderr)
            return 1
        raise
    finally:
        if in_main_thread and signal.getsignal(signal.SIGINT) is press:
            signal.signal(signal.SIGINT, before)


def dispatch(words: list[str]) -> int:
    """Find the command, import it, and run it."""
    parser = argparse.ArgumentParser(
        prog="tricouple",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tricouple {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary, add_help=False)
    name = next((word for word in words if not word.startswith("-")), "")
    if not name or words[0].startswith("-"):
        parser.parse_args(words)
        parser.print_help()
        return 2
    if name not in COMMANDS:
        raise UserError(f"{name}: no such command ({nearest(name, COMMANDS)})")
    command, rest = COMMANDS[name], words[1:]
    try:
        if command.folder:
            return run_folder(name, command.folder, rest)
        module = import_module(command.module)
        return run_module(module, name, command, rest)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("tricouple", "tricouple_lab", command.folder):
            raise
        extra = EXTRAS.get(missing, command.extra)
        raise UserError(f"{missing} is missing: pip install '.[{extra}]' in a clone") from None


def run_module(module: Any, name: str, command: Command, rest: list[str]) -> int:
    """Parse options and settings, and run a command of the package."""
    parser = argparse.ArgumentParser(
        prog=f"tricouple {name}",
        description=command.summary[0].upper() + command.summary[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(wraps=command.wraps, command=name)
    module.configure(parser, command.wraps)
    options, settings = parser.parse_known_args(rest)
    unknown = [word for word in settings if word.startswith("-")]
    if unknown:
        name, known = unknown[0].lstrip("-").replace("-", "_"), parser.epilog or ""
        if found := re.search(rf"^  (\S*\.{re.escape(name)}) \(", known, re.MULTILINE):
            raise UserError(f"{unknown[0]}: settings have no dashes; write {found[1]}=VALUE")
        flags = [flag for action in parser._actions for flag in action.option_strings]
        raise UserError(f"{unknown[0]}: no such option ({nearest(unknown[0], flags)})")
    return int(module.run(options, [*getattr(options, "words", []), *settings]) or 0)


def run_folder(name: str, folder: str, rest: list[str]) -> int:
    """Run a folder of the clone that this package is installed from."""
    root = Path(__file__).resolve().parents[2]
    if not (root / folder / "__main__.py").exists():
        how = "pip install -e '.[all]' in a clone and run the command again"
        raise UserError(f"tricouple {name} is the folder {folder}/ of a clone of tricouple: {how}")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return int(import_module(f"{folder}.__main__").main(rest) or 0)


def configure(parser: argparse.ArgumentParser, task: str) -> None:
    """Add options; the help of the settings comes from the tables and the schema."""
    from tricouple_lab.config.compose import settings_help

    parser.epilog = settings_help(task)
    parser.add_argument("words", nargs="*", metavar="key=value", help="settings, see below")
    one = parser.add_argument_group("one run").add_argument
    one("--resume", type=Path, metavar="FOLDER", help="continue the run in a folder, as configured")
    one("--restart", action="store_true", help="delete the run and begin again")
    many = parser.add_argument_group("many runs").add_argument
    many("-m", "--multirun", action="store_true", help="comma lists: each combination is a run")
    choose = "with -m: choose this setting for each row on validation data, with other seeds"
    many("--choose", metavar="KEY=A,B,C", help=choose)
    many("--study", type=Path, metavar="FILE", help="a plan of runs in a YAML file")
    many("--workers", type=int, default=1, help="processes (default: 1)")
    many("--out", type=Path, default=Path("sweep"), help="folder of the results (default: sweep)")
    cluster = "run on a Slurm cluster, or in processes here if there is none"
    many("--launcher", metavar="submitit[,slurm_KEY=VALUE…]", help=cluster)
    many("--dry-run", action="store_true", help="print one command per run and train nothing")


def run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """One run, or with -m one per combination."""
    from tricouple_lab.config.compose import compose

    task = options.wraps
    if options.study is not None or options.multirun:
        return run_many(options, words)
    config = None if options.resume else compose(task, words)  # an error here is a fast one
    from tricouple_lab.runs.execute import execute, resume
    from tricouple_lab.tasks.base import task_of

    if options.resume:
        record = resume(options.resume, words, restart=options.restart)
    else:
        record = execute(task_of(task), config, restart=options.restart)
    from tricouple_lab.report.run_page import run_table

    print(f"{record.config['evaluation']['split']} split (%)")
    print(run_table(record).to_string(float_format="{:.1f}".format))
    return 0


def run_many(options: argparse.Namespace, words: Sequence[str]) -> int:
    """A row is a combination without its seed; all rows have the same seeds."""
    from tricouple_lab.config.compose import compose, expand

    task = options.wraps
    combinations = [] if options.study else expand(words)
    configs = [compose(task, combination) for combination in combinations]  # errors come first
    setting, grid = chosen(options.choose)
    cluster = cluster_parameters(options.launcher)
    from tricouple_lab.runs.sweep import Plan, read_plan, sweep
    from tricouple_lab.tasks.base import task_of

    if options.study:
        plan = read_plan(options.study, task_of(task))
    else:
        rows = [tuple(word for word in row if not word.startswith("seed=")) for row in combinations]
        rows, seeds = [*dict.fromkeys(rows)], dict.fromkeys(config.seed for config in configs)
        plan = Plan(task_of(task), tuple(rows), seeds=tuple(seeds), setting=setting, grid=grid)
    if options.dry_run:
        for job in plan.jobs({}):
            print(shlex.join(["tricouple", options.command, *job]))
        return 0
    table = sweep(plan, options.out, workers=options.workers, cluster=cluster)
    table = table.drop(columns=["best", "bold", "text"], errors="ignore")
    print(table.to_string(float_format="{:.2f}".format, na_rep=""))
    print(f"written: {options.out / 'report.html'}")
    return 0


def chosen(text: str | None) -> tuple[str, tuple[float, ...]]:
    """The setting and the grid of ``--choose``."""
    key, _, values = (text or "loss.sharpness=").partition("=")
    try:
        return key, tuple(float(value) for value in values.split(",") if values)
    except ValueError:
        raise UserError(f"--choose {text}: expected KEY=A,B,C with numbers A, B, C") from None


def cluster_parameters(text: str | None) -> dict[str, object] | None:
    """Parameters of submitit from ``submitit,slurm_partition=gpu,timeout_min=60``."""
    if text is None:
        return None
    from tricouple_lab.config.compose import parse_scalar

    name, *given = text.split(",")
    if name != "submitit":
        raise UserError(f"--launcher {text}: choices are submitit")
    pairs = (word.partition("=") for word in given)
    return {key: parse_scalar(value) for key, _, value in pairs}
