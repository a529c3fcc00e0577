"""What tests of several experiments use."""

import csv
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from processes import exit_code
from tricouple_lab import cli
from tricouple_lab.conf.compose import configure
from tricouple_lab.training.module import Training


@pytest.fixture
def console() -> Console:
    """A console whose text a test can read."""
    return Console(file=io.StringIO(), width=1000)


@pytest.fixture
def words(tiny_run: tuple[type, tuple[str, ...]], tmp_path: Path) -> list[str]:
    """Settings of a tiny run in a folder of its own."""
    return [*tiny_run[1], f"runs={tmp_path / 'runs'}"]


@pytest.fixture
def tiny(tiny_run, words):
    """Make the configuration of a tiny run, with further words."""
    return lambda *more: configure([*words, *more], tiny_run[0])


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call a command, in a process of its own, that is killed within an epoch of its training."""
    step = Training.training_step

    def run(epoch: int, *words: str) -> None:
        def last(self: Training, batch: object, batch_idx: int) -> object:
            if (self.current_epoch, batch_idx) == (epoch, 1):
                os.kill(os.getpid(), signal.SIGKILL)
            return step(self, batch, batch_idx)

        with monkeypatch.context() as patched:
            patched.setattr(Training, "training_step", last)
            assert exit_code(lambda: cli.main([*words])) == -signal.SIGKILL

    return run


def rows(folder: Path) -> list[dict[str, str]]:
    """The curves of a run but for the clock."""
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
