"""The ``tricouple`` command: one table of subcommands, each imported only when it is used.

Exit codes: 0 success, 1 the command ran but missed its aim, 2 wrong usage or an error the user can
repair, 130 interrupted.
"""

from __future__ import annotations

import argparse
import pkgutil
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tricouple import __version__
from tricouple_lab.options import CommandError, HelpFormatter, hearing_ctrl_c, interrupted

DESCRIPTION = """\
Contrastive learning with optimal transport: anchor, positive and negative in one coupling.
"""

EXAMPLES = """\
examples:
  tricouple demo                   what six methods learn on a synthetic mixture
  tricouple verify                 the paper's theory as a table of verdicts
  tricouple train scale=smoke      train and evaluate an image encoder (half a minute)
  tricouple clip scale=smoke       train image and text encoders on coloured shapes (a minute)
  tricouple text scale=smoke       train a sentence encoder on phrases (seconds)
  tricouple bench --quick          a first look at speed and memory
  tricouple bench --help           the options of one command
"""


class Runnable(Protocol):
    """What a module, or an object in one, has to offer to be a subcommand."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add options, description and examples."""

    def run(self, args: argparse.Namespace) -> int:
        """Do the work and return the exit code."""


@dataclass(frozen=True)
class Command:
    """A row of the table of subcommands."""

    place: str  # module, or module:object
    summary: str
    extra: str  # the optional dependencies that it needs: pip install '.[extra]'


COMMANDS = {
    "demo": Command(
        "tricouple_lab.experiments.synthetic:DEMO",
        "six methods on a synthetic mixture, with a table and a page (minutes)",
        "train",
    ),
    "synthetic": Command(
        "tricouple_lab.experiments.synthetic",
        "the whole synthetic study: several K and seeds, maps of the settings (an hour)",
        "train",
    ),
    "verify": Command(
        "tricouple_lab.experiments.verify",
        "test the statements of the paper's theory numerically (a minute)",
        "bench",
    ),
    "train": Command(
        "tricouple_lab.experiments.runs.command:TRAIN",
        "train and evaluate an image encoder, once, in a sweep or in a study",
        "train",
    ),
    "evaluate": Command(
        "tricouple_lab.experiments.runs.command:EVALUATE",
        "linear probe, k-NN and geometry of trained encoders",
        "train",
    ),
    "embed": Command(
        "tricouple_lab.experiments.embed",
        "embeddings of your own images by a trained encoder, and which are alike",
        "train",
    ),
    "clip": Command(
        "tricouple_lab.experiments.runs.command:CLIP",
        "train image and text encoders on captions: retrieval, zero-shot classification",
        "train,clip",
    ),
    "text": Command(
        "tricouple_lab.experiments.runs.command:TEXT",
        "train sentence encoders on labelled or paired texts: few-shot, out of scope, retrieval",
        "train,text",
    ),
    "reproduce": Command(
        "tricouple_lab.experiments.reproduce",
        "any table or figure of the paper, ours beside theirs",
        "train,clip,bench",
    ),
    "study": Command(
        "tricouple_lab.experiments.studies",
        "decide when which loss is worth it: hypothesis, runs, verdict (minutes to hours)",
        "train,studies",
    ),
    "bench": Command(
        "tricouple_lab.experiments.bench",
        "time and memory against the dense algorithm and other libraries",
        "bench",
    ),
    "report": Command(
        "tricouple_lab.report", "one self-contained HTML page of a study's results", "train"
    ),
}


def build_parser(selected: str | None = None) -> argparse.ArgumentParser:
    """Build the parser; only the `selected` command is imported and gets its options.

    Importing a command imports torch, and ``tricouple --help`` should answer at once.
    """
    parser = argparse.ArgumentParser(
        prog="tricouple", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=HelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"tricouple {__version__}")
    parser.add_argument(
        "--completion", choices=("bash", "zsh"), help="print a script for completion by the Tab key"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.summary, formatter_class=HelpFormatter)
        # argparse takes -1e3 for an option otherwise, and says that an argument is missing.
        subparser._negative_number_matcher = re.compile(r"-\.?\d")
        if name == selected:
            chosen: Runnable = pkgutil.resolve_name(command.place)
            chosen.configure(subparser)
            subparser.set_defaults(run=chosen.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with hearing_ctrl_c():
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        except (Exception, KeyboardInterrupt) as error:
            if not interrupted(error):
                raise
            if argv is None:  # all is said: a second press must not add a traceback
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            # Python remembers an interrupt in code that was text, as dataclasses make it, and ends
            # by the signal then, not with our code; other such code makes it forget.
            eval("0")
            how = str(error) if isinstance(error, KeyboardInterrupt) else ""
            print(f"interrupted: {how or 'the same command starts again'}", file=sys.stderr)
            return 130


def _main(arguments: list[str]) -> int:
    # No option before a command takes a value, so the first word is the command.
    selected = next((word for word in arguments if not word.startswith("-")), None)
    if not arguments:
        build_parser().print_help()
        return 2
    try:
        parser = build_parser(selected)
        args = parser.parse_args(arguments)
        if args.completion:
            print(completion(args.completion), end="")
            return 0
        if args.command is None:
            parser.error(f"name a command: {', '.join(COMMANDS)}")
        return int(args.run(args))
    except CommandError as error:
        if interrupted(error):
            raise
        print(f"tricouple {selected}: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("tricouple", "tricouple_lab") or interrupted(error):
            raise
        extra = COMMANDS[selected].extra if selected in COMMANDS else "train"
        install = f"pip install '.[{extra}]' in a clone of tricouple"
        print(f"tricouple {selected}: error: {missing} is missing: {install}", file=sys.stderr)
        return 2


def completion(shell: str) -> str:
    """The script by which a shell completes commands, options, settings and choices."""
    from tricouple_lab.conf.compose import script

    options = {}
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser()
        pkgutil.resolve_name(command.place).configure(parser)
        options[name] = re.findall(r"--[a-z-]+", parser.format_usage())
    return script(shell, options)


if __name__ == "__main__":
    sys.exit(main())
