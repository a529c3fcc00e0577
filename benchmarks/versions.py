"""Compare this work tree with another commit: time and memory of the losses, in one run.

Two worker processes, one per version, run the same cases, forward and backward, and take turns, so
that both see the same machine. The best time of several rounds counts: wall time, with one thread
CPU time, which other processes disturb less. Memory is that which a call adds to a fresh process,
in N×N float32 matrices. "over X": time / time of X. Compare ratios within one run.

    python -m benchmarks.versions --against 23ab974 --threads 2 --out results/bench/versions.json
    python -m benchmarks.versions --only easy --sizes 256
    python -m benchmarks.versions --read results/bench/versions.json \
        --markdown docs/assets/bench-versions.md
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.__main__ import common
from benchmarks.cases import Case
from benchmarks.targets import SECTIONS
from benchmarks.worker import ROOT, Workers

CACHE = Path("~/.cache/tricouple/versions")


def rows_of(section: str, cases: list[Case], found: dict[Any, measure.Row]) -> list[measure.Row]:
    """What is stored of a group: one row per case and number."""

    def number(case: Case, key: str, version: str) -> float | None:
        """What ``limits`` names, of a version."""
        what = "extra_bytes" if key.startswith("memory") else "seconds"
        values = {at: row[what] for at, row in found.items() if what in row}
        above = values.get((case.name, version))
        if above is None:
            return None
        if key.startswith("growth"):  # the exponent of a power law, by least squares of logarithms
            sizes, own = [one.n for one in cases], [values[one.name, version] for one in cases]
            return float(np.polyfit(np.log(sizes), np.log(own), 1)[0])
        if key == "memory, N²":
            return above / (4 * case.n**2)
        peer = key.removeprefix("time over ")
        below = values.get((peer, version), values.get((peer, "this")))  # others run in this alone
        if key.endswith("/ other"):
            below = values.get((case.name, "other")) if version == "this" else None
        return above / below if below else None

    rows = []
    for case in cases:
        row = {"section": section, "case": case.name, "N": case.n, "settings": asdict(case)}
        for version in Case.versions:
            took = found.get((case.name, version), {}).get("seconds")
            row[f"{version}, ms"] = None if took is None else 1000 * took
        for key, limit in case.limits.items():
            value, other = (number(case, key, version) for version in Case.versions)
            met = None if value is None or limit is None else value <= limit
            of_key = {"number": key, "value": value, "value of other": other}
            rows.append(row | of_key | {"target": limit, "met": met})
        if not case.limits:
            rows.append(row)
    return rows


# --- the command ----------------------------------------------------------------------------------


def checkout(commit: str) -> Path:
    """A work tree of a commit with its extension built, made on first use; or the given one."""
    if Path(commit).is_dir():
        return Path(commit)
    git = ["git", "-C", str(ROOT)]
    asked = [*git, "rev-parse", "--verify", f"{commit}^{{commit}}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not found:
        raise SystemExit(f"--against {commit}: git knows no such commit")
    tree = CACHE.expanduser() / found[:12]
    if not tree.exists():
        tree.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*git, "worktree", "add", "--detach", tree, found], check=True)
    if not any((tree / "src").rglob("_native*.so")):
        build = [sys.executable, "setup.py", "build_ext", "--inplace"]
        subprocess.run(build, cwd=tree, check=True, stdout=sys.stderr)
    return tree


def options() -> argparse.Namespace:
    """Read the command line."""
    sections = [f"  {name:10} {make.__doc__}" for name, (make, _) in SECTIONS.items()]
    epilog = "\n".join(["sections, each with the targets of the project:", *sections])
    parser = common("python -m benchmarks.versions", str(__doc__), epilog, "versions.json")
    add = parser.add_argument
    add("--against", metavar="COMMIT", default="23ab974",
        help="the other version (23ab974), or a folder in which it is built")  # fmt: skip
    add("--threads", type=int, default=2, help="threads per worker (2)")
    add("--only", action="append", choices=SECTIONS, help="a section; may be repeated (all)")
    return parser.parse_args()


def measured(args: argparse.Namespace) -> Iterator[measure.Row]:
    """Rows of all cases as they are measured."""
    trees = {"this": ROOT, "other": checkout(args.against)}
    with closing(Workers(trees, args.threads)) as workers:
        for version, tree in trees.items():
            found = workers.ask(version, "version", Case("", ""))
            if tree.resolve() not in Path(found["file"]).parents or not found["compiled"]:
                raise SystemExit(f"{tree}: run setup.py build_ext --inplace there (found {found})")
        for section in args.only or SECTIONS:
            make, sizes = SECTIONS[section]
            for cases in make(args.sizes or sizes):
                rows = measure.measure(cases, workers, args.rounds)
                if notes := {row["note"] for row in rows.values()} - {""}:
                    raise SystemExit("; ".join(notes))
                yield from rows_of(section, cases, rows)


if __name__ == "__main__":
    args = options()
    clock = "CPU" if args.threads == 1 else "wall"
    about = {"against": Path(args.against).name, "threads": args.threads, "clock": clock}
    command = ["python", "-m", "benchmarks.versions", *sys.argv[1:]]
    measure.publish(args, about, "rows", measured(args), command)
