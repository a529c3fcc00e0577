"""What the commands share about their options: typed values and errors a user can act on."""

from __future__ import annotations

import _thread
import argparse
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class CommandError(Exception):
    """A failure the user can repair; shown as one line, without a traceback."""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of examples and shows the default of every option that has a value."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == []:
            return action.help
        return super()._get_help_string(action)


def positive_float(text: str) -> float:
    """Parse a finite number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a parser of integers that are `minimum` or more."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is too small: use {minimum} or more")
        return value

    return parse


def several(minimum: int) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of lists such as ``256,512``; the result is increasing."""
    parse = at_least(minimum)
    return lambda text: tuple(sorted({parse(part) for part in text.split(",")}))


@contextmanager
def explained(path: Path, verb: str) -> Iterator[None]:
    """Turn what is wrong with a file, or with what it holds, into an error that names it."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"cannot {verb} {path}: {reason}") from error


def require_writable(path: Path) -> None:
    """Create the folder of `path` and prove that the file can be written.

    Long runs call this first: a mistyped folder should fail in the first second, not after the
    last measurement.

    Raises:
        CommandError: If the folder or the file cannot be written.
    """
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
    if not existed:
        path.unlink()


def first_process() -> bool:
    """Whether this process decides, writes and speaks for all processes of a training.

    Launchers number their processes in the environment: torchrun by RANK, Slurm by SLURM_PROCID,
    Lightning by LOCAL_RANK on each machine and NODE_RANK among machines.
    """
    names = ("RANK", "SLURM_PROCID", "LOCAL_RANK", "NODE_RANK")
    return all(os.environ.get(name, "0") == "0" for name in names)


def launched_together() -> bool:
    """Whether a launcher such as torchrun has started this process among others."""
    known = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return known and os.environ["WORLD_SIZE"] != "1"


def speaks(error: BaseException) -> bool:
    """Whether it is for this process to say what went wrong: of several, the first that finds it.

    What the others then find is that a process is gone. If it is gone without a word, the first
    process of the training says so.
    """
    if isinstance(error, ConnectionError) and not first_process():
        return False
    dist = sys.modules.get("torch.distributed")
    if dist is None or not (dist.is_available() and dist.is_initialized()):
        return first_process() or not launched_together()  # who all find the same
    try:
        return int(dist.distributed_c10d._get_default_store().add("tricouple: errors", 1)) == 1
    except RuntimeError:  # who kept the count is gone
        return first_process()


_pressed = threading.Event()


@contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """Ctrl-C counts from the press: libraries swallow its exception, or make another one of it.

    What is raised in a destructor Python drops; it is raised once more, outside of it.
    """

    def press(number: int, frame: FrameType | None) -> None:
        _pressed.set()
        signal.default_int_handler(number, frame)

    def lost(ignored: sys.UnraisableHookArgs) -> None:
        if isinstance(ignored.exc_value, KeyboardInterrupt):
            again.append(threading.Timer(0.1, _thread.interrupt_main))
            again[-1].start()
        else:
            before(ignored)

    again: list[threading.Timer] = []
    _pressed.clear()
    # Jobs in the background of a shell do not hear it, and other threads may not ask for it.
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    hears = hears and threading.current_thread() is threading.main_thread()
    if hears:
        signal.signal(signal.SIGINT, press)
    before, sys.unraisablehook = sys.unraisablehook, lost
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in again:
            timer.cancel()
        if hears and signal.getsignal(signal.SIGINT) is press:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or what became of it on its way through a library."""
    while error is not None and not _pressed.is_set():
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return _pressed.is_set()
