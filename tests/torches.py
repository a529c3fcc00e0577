"""``make torches``: the wheel in dist/ beside the oldest and the newest torch that it supports.

Each in a fresh environment below build/torches, with the tests of the core. ``torches.py 2.4.0``
tries that one. Settings of pip hold, such as ``PIP_EXTRA_INDEX_URL`` for builds without CUDA.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("2.4.0", "newest")  # the first is that of pyproject.toml
BESIDE = ("pytest", "hypothesis", "numpy", "abi3audit")
TESTS = ("tests/ot", "tests/losses", "tests/test_numeric.py", "tests/test_relations.py")
# Which need other packages, or documents of the whole repository.
LEFT_OUT = ("tests/losses/test_peers.py", "tests/losses/test_sharpness.py")


def hold(version: str) -> bool:
    """Whether the tests pass beside this torch."""
    folder = ROOT / "build" / "torches" / version
    venv.create(folder, with_pip=True, clear=True)
    python = [str(folder / "bin" / "python"), "-m"]
    torch = "torch" if version == "newest" else f"torch=={version}"
    (wheel,) = (ROOT / "dist").glob("*.whl")
    subprocess.run([*python, "pip", "install", "--quiet", torch, *BESIDE, str(wheel)], check=True)
    ignored = [f"--ignore={name}" for name in LEFT_OUT]
    tests = [*python, "pytest", "-q", *ignored, *TESTS]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    failed = [version for version in sys.argv[1:] or VERSIONS if not hold(version)]
    sys.exit(f"torch {', '.join(failed)}: tests failed" if failed else 0)
