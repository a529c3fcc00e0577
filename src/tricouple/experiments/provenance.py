"""What is needed to judge or repeat a measurement: versions, machine, commit, command."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import tricouple

PACKAGES = (
    "torch",
    "numpy",
    "pytorch-metric-learning",
    "jax",
    "ott-jax",
    "POT",
    "lightning",
    "timm",
    "open_clip_torch",
    "torchvision",
)


def collect_provenance() -> dict[str, Any]:
    """Return what is needed to judge or repeat a measurement on this machine.

    Called before the run: ``load`` then tells how busy others kept the machine.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["tricouple", *sys.argv[1:]]),
        "commit": git_commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "versions": {"tricouple": tricouple.__version__}
        | {name: installed(name) for name in PACKAGES},
    }


def installed(package: str) -> str | None:
    """Return the version of an installed package, None if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Return the processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def git_commit() -> str | None:
    """Return the commit of the sources, marked if they were changed since, None outside git."""
    package = Path(tricouple.__file__)
    try:
        # An installed copy may lie inside the checkout of another project: not ours to name.
        git(package.parent, "ls-files", "--error-unmatch", package.name)
        return git(package.parent, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def git(folder: Path, *words: str) -> str:
    """Return what a git command says in a folder."""
    command = ["git", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
