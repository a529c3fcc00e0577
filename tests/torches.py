"""``make torches``: the wheel in dist/ beside the oldest and the newest torch that it supports.

Each in an environment of its own below build/torches, with the tests of the core; ``torches.py
2.4.0`` tries that one. Environments are kept: a second time, only the wheel is installed. Settings
of pip hold, such as ``PIP_EXTRA_INDEX_URL`` for builds without CUDA.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("2.4.0", "newest")  # the first is that of pyproject.toml
BESIDE = ("pytest", "pytest-xdist", "hypothesis", "numpy", "abi3audit")
# Of the losses, those whose answer another torch could change.
LOSSES = ("baselines", "call", "common", "compile", "precision", "shaping")
TESTS = ("tests/ot", *(f"tests/losses/test_{name}.py" for name in LOSSES))


def hold(version: str) -> bool:
    """Whether the tests pass beside this torch."""
    folder = ROOT / "build" / "torches" / version
    if not folder.exists():
        venv.create(folder, with_pip=True)
    python = [str(folder / "bin" / "python"), "-m"]
    torch = "torch" if version == "newest" else f"torch=={version}"
    (wheel,) = (ROOT / "dist").glob("*.whl")
    install = [*python, "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, torch, *BESIDE], check=True)
    subprocess.run([*install, "--force-reinstall", "--no-deps", str(wheel)], check=True)
    tests = [*python, "pytest", "-q", "-n", "2", "-m", "not slow", *TESTS]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    failed = [version for version in sys.argv[1:] or VERSIONS if not hold(version)]
    sys.exit(f"torch {', '.join(failed)}: tests failed" if failed else 0)
