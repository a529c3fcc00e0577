"""Compare this work tree with another commit: time and memory of the losses, in one run.

Two worker processes, one per version, run the same cases, forward and backward, and take turns:
this, other, this, other, ... so that both see the same machine. The best time of several rounds
counts. Only ratios within one run mean something.

    python -m benchmarks.versions --against 23ab974 --threads 2 --out results/bench/versions.json
    python -m benchmarks.versions --only easy --sizes 256 --match NegMMIOT
    python -m benchmarks.versions --read results/bench/versions.json \
        --markdown docs/assets/bench-versions.md
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import measure, table
from benchmarks.cases import Case
from benchmarks.targets import SECTIONS
from benchmarks.worker import ROOT, Workers
from tricouple_lab.files import write_text

CACHE = Path("~/.cache/tricouple/versions")
HELP = """
Sections, each with the targets of the project:
{}

With one thread, times are CPU seconds of the worker, which other processes disturb less; with more
threads or processes they are wall seconds. Memory is the growth of the resident set in a fresh
process after a small call of the same kind, in N×N float32 matrices. "over X": time / time of X.
"""
WORDS = {"other": "time / other", "memory": "memory, N²", "memory/other": "memory / other",
         "growth": "growth, N^…"}  # fmt: skip


def rows_of(section: str, cases: list[Case], found: dict[Any, measure.Row]) -> list[dict[str, Any]]:
    """What is stored of a group: one row per case and number."""
    n = {case.name: case.n for case in cases}
    seconds = {key: row["seconds"] for key, row in found.items()}
    bytes_ = {key: row["extra_bytes"] for key, row in found.items() if "extra_bytes" in row}
    memory = {key: value / (4 * n[key[0]] ** 2) for key, value in bytes_.items()}

    def number(case: Case, key: str, version: str) -> float | None:
        """What ``limits`` names, of a version."""
        own, below = memory if key.startswith("memory") else seconds, None
        above = own.get((case.name, version))
        if key == "memory" or above is None:
            return above
        if key == "growth":
            return table.power([*n.values()], [seconds[name, version] for name in n])
        if not key.endswith("other"):  # a peer runs in the worker of this tree alone
            below = own.get((key, version), own.get((key, "this")))
        elif version == "this":
            below = own.get((case.name, "other"))
        return above / below if below else None

    rows = []
    for case in cases:
        row = {"section": section, "case": case.name, "N": case.n, "settings": asdict(case)}
        for version in Case.versions:
            took = seconds.get((case.name, version))
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


def shown(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A table of rows of one section."""
    numbers = ["this, ms", "other, ms", "value", "value of other", "target"]
    columns = ["case", "N", *numbers[:2], "number", *numbers[2:], "met"]
    frame = pd.DataFrame(rows).reindex(columns=columns)
    frame[numbers] = frame[numbers].astype(float).map(table.number)
    frame["met"] = [{True: "yes", False: "no"}.get(x, "") for x in frame["met"]]
    return frame.fillna({"number": ""})


def summary(run: dict[str, Any]) -> str:
    """How many targets are met, and where the numbers come from."""
    met = [row["met"] for row in run["rows"] if row.get("met") is not None]
    facts = run["provenance"]
    return (
        f"{sum(met)} of {len(met)} targets met. This is commit {str(facts['commit'])[:7]}, other "
        f"is {run['against'][:7]}; {run['threads']} thread(s), {run['clock']} time, "
        f"{facts['cores']} cores of {facts['cpu']}, load {facts['load']:.1f} at the start, torch "
        f"{facts['versions']['torch']}, {facts['date'][:10]}. Command: `{facts['command']}`"
    )


def markdown(run: dict[str, Any]) -> str:
    """The run as Markdown, one table per section."""
    parts = [summary(run)]
    for section, rows in groupby(run["rows"], itemgetter("section")):
        parts.append(f"{section}:\n\n{table.as_markdown(shown(list(rows)))}")
    return "\n\n".join(parts) + "\n"


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
    shape = argparse.RawDescriptionHelpFormatter
    sections = [f"  {name:10} {make.__doc__}" for name, (make, _) in SECTIONS.items()]
    epilog = HELP.format("\n".join(sections))
    parser = argparse.ArgumentParser(description=__doc__, epilog=epilog, formatter_class=shape)
    add = parser.add_argument
    add("--against", metavar="COMMIT", default="23ab974", help="the other version (23ab974)")
    add("--other-tree", type=Path, help="a checkout of it that is already built")
    add("--threads", type=int, default=2, help="threads per worker (2)")
    add("--only", action="append", choices=SECTIONS, help="a section; may be repeated (all)")
    add("--sizes", help="N, separated by commas, in place of those of the sections")
    add("--match", default="", help="only cases whose name contains this, and what divides them")
    add("--rounds", type=int, help="rounds (as many as take about 3 s per case, 5 or 2 at least)")
    add("--out", type=Path, help="JSON file, written after every group of cases")
    add("--markdown", type=Path, help="write the tables as Markdown")
    add("--read", type=Path, metavar="FILE", help="print a stored run; measure nothing")
    return parser.parse_args()


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases, printing rows as they are complete."""
    trees = {"this": ROOT, "other": args.other_tree or checkout(args.against)}
    workers = Workers(trees, args.threads)
    for version, tree in trees.items():
        found = workers.ask(version, "hello")
        if tree.resolve() not in Path(found["file"]).parents or not found["compiled"]:
            build = f"cd {tree} && {sys.executable} setup.py build_ext --inplace"
            raise SystemExit(f"{tree}: its compiled tricouple is not found ({found}): {build}")
    facts = measure.circumstances("python -m benchmarks.versions", sys.argv[1:])
    report: dict[str, Any] = {"provenance": facts, "against": args.against, "rows": []}
    report |= {"threads": args.threads, "clock": "CPU" if args.threads == 1 else "wall"}
    for section in args.only or SECTIONS:
        make, sizes = SECTIONS[section]
        sizes = tuple(map(int, args.sizes.split(","))) if args.sizes else sizes
        groups = [g for group in make(sizes) if (g := chosen(group, args.match))]
        for at, cases in enumerate(groups, 1):
            print(f"{section} {at}/{len(groups)}: N = {cases[0].n}, {len(cases)} cases", flush=True)
            found = measure.measure(cases, workers, args.rounds, weigh)
            if notes := {row["note"] for row in found.values()} - {""}:
                raise SystemExit("; ".join(notes))
            rows = rows_of(section, cases, found)
            report["rows"] += rows
            print(shown(rows).to_string(index=False), flush=True)
            if args.out:
                write_text(args.out, json.dumps(report, indent=1) + "\n")
    workers.close()
    return report


def weigh(case: Case) -> bool:
    """Whether a number of the case is memory."""
    return any(key.startswith("memory") for key in case.limits)


def chosen(cases: list[Case], text: str) -> list[Case]:
    """Cases whose name contains a text, and those that they are compared with."""
    named = [case for case in cases if text in case.name and (case.limits or not text)]
    wanted = {key for case in named for key in case.limits} | {case.name for case in named}
    return [case for case in cases if case.name in wanted or "growth" in wanted]


def main() -> None:
    """Measure or read, print, write."""
    args = options()
    report = json.loads(args.read.read_text()) if args.read else run(args)
    if args.read:
        print(shown(report["rows"]).to_string(index=False))
    print(summary(report))
    if args.markdown:
        args.markdown.write_text(markdown(report))


if __name__ == "__main__":
    main()
