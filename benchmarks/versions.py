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
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import measure, table
from benchmarks.__main__ import common
from benchmarks.cases import Case
from benchmarks.targets import SECTIONS
from benchmarks.worker import ROOT, Workers

CACHE = Path("~/.cache/tricouple/versions")
WORDS = {"other": "time / other", "memory": "memory, N²", "memory/other": "memory / other",
         "growth": "growth, N^…"}  # fmt: skip


def rows_of(section: str, cases: list[Case], found: dict[Any, measure.Row]) -> list[dict[str, Any]]:
    """What is stored of a group: one row per case and number."""

    def number(case: Case, key: str, version: str) -> float | None:
        """What ``limits`` names, of a version."""
        what = "extra_bytes" if key.startswith("memory") else "seconds"
        values = {at: row[what] for at, row in found.items() if what in row}
        above, below = values.get((case.name, version)), None
        if above is None:
            return None
        if key == "memory":
            return float(above / (4 * case.n**2))
        if key == "growth":
            own = [values[one.name, version] for one in cases]
            return table.power([one.n for one in cases], own)
        if not key.endswith("other"):  # a peer runs in the worker of this tree alone
            below = values.get((key, version), values.get((key, "this")))
        elif version == "this":
            below = values.get((case.name, "other"))
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
            name = WORDS.get(key, f"time over {key}")
            of_key = {"number": name, "value": value, "value of other": other}
            rows.append(row | of_key | {"target": limit, "met": met})
        if not case.limits:
            rows.append(row)
    return rows


# --- the command ----------------------------------------------------------------------------------


def checkout(commit: str) -> Path:
    """A work tree of a commit with its extension built, made on first use."""
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
    add("--against", metavar="COMMIT", default="23ab974", help="the other version (23ab974)")
    add("--other-tree", type=Path, help="a checkout of it that is already built")
    add("--threads", type=int, default=2, help="threads per worker (2)")
    add("--only", action="append", choices=SECTIONS, help="a section; may be repeated (all)")
    return parser.parse_args()


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases; the file is written after every group."""
    facts = measure.circumstances("python -m benchmarks.versions", sys.argv[1:])
    run: dict[str, Any] = {"provenance": facts, "against": args.against, "rows": []}
    run |= {"threads": args.threads, "clock": "CPU" if args.threads == 1 else "wall"}
    trees = {"this": ROOT, "other": args.other_tree or checkout(args.against)}
    with closing(Workers(trees, args.threads)) as workers:
        for version, tree in trees.items():
            found = workers.ask(version, "hello")
            if tree.resolve() not in Path(found["file"]).parents or not found["compiled"]:
                build = f"cd {tree} && {sys.executable} setup.py build_ext --inplace"
                raise SystemExit(f"{tree}: its compiled tricouple is not found ({found}): {build}")
        for section in args.only or SECTIONS:
            make, sizes = SECTIONS[section]
            for cases in make(args.sizes or sizes):
                print(f"{section}: N = {cases[0].n}, {len(cases)} cases", flush=True)
                rows = measure.measure(cases, workers, args.rounds, weigh)
                if notes := {row["note"] for row in rows.values()} - {""}:
                    raise SystemExit("; ".join(notes))
                run["rows"] += rows_of(section, cases, rows)
                measure.store(run, args.out)
    return run


def weigh(case: Case) -> bool:
    """Whether a number of the case is memory."""
    return any(key.startswith("memory") for key in case.limits)


if __name__ == "__main__":
    arguments = options()
    found = table.read(arguments.read) if arguments.read else measured(arguments)
    table.publish(found, arguments.markdown)
