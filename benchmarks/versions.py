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
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import measure, table
from benchmarks.versions_cases import SECTIONS, Case
from benchmarks.versions_worker import ROOT, Worker

CACHE = Path("~/.cache/tricouple/versions")
SECONDS = 3.0  # that the rounds of a case may take
HELP = """
Sections, each with the targets of the project:
  easy       InfoNCE, IOT, PushPull, NegMMIOT on random batches, within one set and across two:
             time and memory over the other version
  clip       both directions, d = 512, over open_clip's ClipLoss
  streamed   memory="streamed", and half of E kept; the other version keeps nothing
  large      memory of streamed batches: N = 32768, and N = 16384 across two sets with d = 512
  hard       outliers, collapsed and duplicated batches, sharp ones: over the easy batch
  shaped     log-sigmoid and hinge over linear; with an outlier over their own easy batch
  processes  2 processes with 1 thread each, group="world"; memory per rank of 4 processes

With one thread, times are CPU seconds of the worker, which other processes disturb less; with more
threads or processes they are wall seconds. Memory is the growth of the resident set in a fresh
process after a small call of the same kind, in N×N float32 matrices. "over X": time / time of X.
"""


def measured(cases: list[Case], start: Callable[..., Worker], rounds: int | None) -> dict[str, Any]:
    """Best seconds and memory by case and version."""
    seconds, memory = ({case.name: {} for case in cases} for _ in range(2))
    turns = [(case, v) for case in cases if not case.once for v in case.versions]
    least, done = rounds or (5 if cases[0].n <= 2048 else 2), 0
    end = time.monotonic() + (0 if rounds else SECONDS * len(cases))
    while turns and (done <= least or time.monotonic() < end):
        for case, version in turns:
            took = start(version, case.world).ask("time", as_asked(case, version))["seconds"]
            best = seconds[case.name]
            best[version] = min(took, best.get(version, took)) if done > 1 else took  # 0 warms up
        done += 1
    for case in cases:
        for version in case.versions if {"memory", "memory/other"} & set(case.limits) else ():
            worker = start(version, case.world, fresh=True)
            found = worker.ask("memory", case)
            worker.close()
            memory[case.name][version] = found["memory"]
            seconds[case.name].setdefault(version, found["seconds"])
    return {"seconds": seconds, "memory": memory}


def as_asked(case: Case, version: str) -> Case:
    """Of a budget that keeps some of E the other version, which keeps all or nothing, streams."""
    streams = version == "other" and case.budget is not None
    return replace(case, budget=None, options={"memory": "streamed"}) if streams else case


def ratio(case: Case, key: str, version: str, found: dict[str, Any]) -> float | None:
    """What ``limits`` names, of a version."""
    seconds, memory = found["seconds"], found["memory"][case.name]
    if key == "memory":
        return memory.get(version)
    numbers = memory if key == "memory/other" else seconds[case.name]
    if not key.endswith("other"):  # a peer runs in the worker of this tree alone
        over = seconds.get(key, {})
        below = over.get(version, over.get("this"))
    else:
        below = numbers.get("other") if version == "this" else None
    above = numbers.get(version)
    return above / below if above is not None and below else None


def rows_of(section: str, cases: list[Case], found: dict[str, Any]) -> list[dict[str, Any]]:
    """What is stored of a group: one row per case and number."""
    rows = []
    for case in cases:
        times = found["seconds"][case.name]
        row = {"section": section, "case": case.name, "N": case.n, "settings": asdict(case)}
        row |= {f"{v}, ms": 1000 * times[v] if v in times else None for v in Case.versions}
        for key, limit in case.limits.items():
            value, other = (ratio(case, key, version, found) for version in Case.versions)
            met = None if value is None or limit is None else value <= limit
            name = WORDS.get(key, f"time over {key}")
            of_key = {"number": name, "value": value, "value of other": other}
            rows.append(row | of_key | {"target": limit, "met": met})
        if not case.limits:
            rows.append(row)
    return rows


WORDS = {"other": "time / other", "memory": "memory, N²", "memory/other": "memory / other"}


def shown(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A table of rows of one section."""
    numbers = ["this, ms", "other, ms", "value", "value of other", "target"]
    columns = ["case", "N", *numbers[:2], "number", *numbers[2:], "met"]
    frame = pd.DataFrame(rows).reindex(columns=columns)
    for name in numbers:
        frame[name] = [table.number(float("nan" if x is None else x)) for x in frame[name]]
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
    parser = argparse.ArgumentParser(description=__doc__, epilog=HELP, formatter_class=shape)
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
    workers: dict[tuple[str, int], Worker] = {}

    def start(version: str, world: int, *, fresh: bool = False) -> Worker:
        if not fresh and (version, world) in workers:
            return workers[version, world]
        new = Worker(trees[version].resolve(), args.threads, world)
        return new if fresh else workers.setdefault((version, world), new)

    for version, tree in trees.items():
        found = start(version, 1).ask("hello")
        if tree.resolve() not in Path(found.get("file", "/")).parents or not found.get("compiled"):
            build = f"cd {tree} && {sys.executable} setup.py build_ext --inplace"
            raise SystemExit(f"{tree}: its compiled tricouple is not found ({found}): {build}")
    facts = measure.circumstances(sys.argv[1:])
    facts["command"] = facts["command"].replace("tricouple bench", "python -m benchmarks.versions")
    report: dict[str, Any] = {"provenance": facts, "against": args.against, "rows": []}
    report |= {"threads": args.threads, "clock": "CPU" if args.threads == 1 else "wall"}
    for section in args.only or SECTIONS:
        make, sizes = SECTIONS[section]
        sizes = tuple(map(int, args.sizes.split(","))) if args.sizes else sizes
        groups = [g for group in make(sizes) if (g := chosen(group, args.match))]
        for at, cases in enumerate(groups, 1):
            print(f"{section} {at}/{len(groups)}: N = {cases[0].n}, {len(cases)} cases", flush=True)
            rows = rows_of(section, cases, measured(cases, start, args.rounds))
            report["rows"] += rows
            print(shown(rows).to_string(index=False), flush=True)
            if args.out:
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps(report, indent=1) + "\n")
    for worker in workers.values():
        worker.close()
    return report


def chosen(cases: list[Case], text: str) -> list[Case]:
    """Cases whose name contains a text, and those that they are compared with."""
    named = [case for case in cases if text in case.name and (case.limits or not text)]
    wanted = {key for case in named for key in case.limits} | {case.name for case in named}
    return [case for case in cases if case.name in wanted]


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
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    main()
