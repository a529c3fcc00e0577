"""What is needed to judge or repeat a measurement: versions, machine, commit, command."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import tricouple
from tricouple_lab.options import CommandError

SOURCES = Path(tricouple.__file__).parents[1]
# What decides a number, below SOURCES; other projects' packages may lie beside them.
OURS = ("tricouple", "tricouple_lab")

# Packages that numbers may come from, and what each is imported as.
PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "pytorch-metric-learning": "pytorch_metric_learning",
    "jax": "jax",
    "ott-jax": "ott",
    "POT": "ot",
    "lightning": "lightning",
    "timm": "timm",
    "open_clip_torch": "open_clip",
    "torchvision": "torchvision",
}


def collect_provenance() -> dict[str, Any]:
    """Return what is needed to judge or repeat a measurement on this machine.

    Called before the run: ``load`` then tells how busy others kept the machine.
    """
    changes = git_changes()
    return {
        "date": _now(),
        "command": shlex.join(["tricouple", *sys.argv[1:]]),
        "commit": git_commit(),
        **({"diff": sha256(changes.encode()).hexdigest()[:16]} if changes else {}),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "compiled": tricouple.ot.compiled(),
        "load": os.getloadavg()[0],
        "versions": {"tricouple": tricouple.__version__}
        | {name: installed(name) for name in PACKAGES},
    }


def line_provenance(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run's record keeps: the sources and machine of its study, and its own moment.

    The sources are those that were loaded when the study began, whatever has been committed since;
    the versions are of packages that were used.

    Args:
        origin: What ``collect_provenance`` said then.
    """
    versions = {
        name: found
        for name, found in origin["versions"].items()
        if found and PACKAGES.get(name, "tricouple") in sys.modules
    }
    now = {"date": _now(), "load": round(os.getloadavg()[0], 2)}
    return {**origin, **now, "versions": versions}


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
    try:
        # An installed copy may lie inside the checkout of another project: not ours to name.
        git("ls-files", "--error-unmatch", *(f"{package}/__init__.py" for package in OURS))
        return git("rev-parse", "HEAD") + ("-dirty" if git_changes() else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def git_changes() -> str:
    """Return how the packages differ from their commit: changed lines and files new to git.

    Results, tests and documents may change while a study runs; the packages may not.
    """
    try:
        unknown = git("ls-files", "--others", "--exclude-standard", *OURS).splitlines()
        texts = [(SOURCES / name).read_text(errors="replace") for name in unknown]
        return "\n".join([git("diff", "HEAD", "--", *OURS), *unknown, *texts]).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def require_clean(*, allow_dirty: bool) -> None:
    """Refuse to record results of sources that no commit names.

    Raises:
        CommandError: If the packages were changed since their commit, unless that is allowed; the
            records then carry a hash of the changes.
    """
    if not allow_dirty and git_changes():
        raise CommandError(
            f"the sources in {SOURCES} were changed since their commit: nobody could repeat this "
            "study: commit them first, or give --allow-dirty to record a hash of the changes"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def git(*words: str) -> str:
    """Return what a git command says in the folder of the sources."""
    command = ["git", *words]
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=True)
    return done.stdout.strip()
