"""Sweeps: every combination of listed values, each in a process of its own.

Hydra expands the combinations and hands them to its launcher: one after the other on this machine,
or on a cluster with ``hydra/launcher=submitit_slurm`` (package hydra-submitit-launcher). A job is
the command of a single run, so that finished runs are skipped, interrupted ones continued, and a
run that fails, whatever the reason, does not stop the others.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape

from tricouple.conf.compose import hydra_ready
from tricouple.conf.schema import Train
from tricouple.conf.words import STARTS, spelt

KILLED = 128


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    words: tuple[str, ...]  # its settings
    code: int  # exit code of its process
    error: str = ""  # the last line that it wrote to its error stream, if it failed

    @property
    def failed(self) -> bool:
        """Whether the run is not finished."""
        return self.code != 0

    def __str__(self) -> str:
        return f"{' '.join(self.words)}: {self.error or f'exit code {self.code}'}"


def sweep(words: Sequence[str], console: Console, kind: type = Train) -> list[Job]:
    """Run every combination of words, some with several values; checked before the first.

    Raises:
        ConfigurationError: If a word makes no configuration.
    """
    start, words = STARTS[kind], spelt(words, kind, several=True)
    with hydra_ready(start, words) as ready:
        assert ready.hydra is not None
        batches = ready.hydra.multirun(
            config_name=start.name,
            task_function=partial(run_job, command=start.name),
            overrides=words,
            with_log_configuration=False,
        )
    jobs: list[Job] = [result.return_value for batch in batches for result in batch]
    failed = [job for job in jobs if job.failed]
    console.print(f"{len(jobs) - len(failed)} of {len(jobs)} runs are finished.")
    for job in failed:
        console.print(f"[red]failed:[/] {escape(str(job))}", highlight=False)
    return jobs


def run_job(config: DictConfig, *, command: str) -> Job:
    """Run a command with the settings of one job."""
    words = tuple(HydraConfig.get().overrides.task)
    whole = [sys.executable, "-m", "tricouple.cli", command, *words]
    print(f"tricouple {command} {' '.join(words)}", flush=True)
    done = subprocess.run(whole, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    lines = done.stderr.strip().splitlines()
    if done.returncode < 0:
        return Job(words, KILLED - done.returncode, f"killed by signal {-done.returncode}")
    return Job(words, done.returncode, lines[-1] if done.returncode and lines else "")
