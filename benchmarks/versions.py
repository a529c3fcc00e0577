"""Compare this work tree with another commit: time and memory of the losses, in one run.

Two worker processes, one per version, run the same cases, forward and backward, and take turns:
this, other, this, other, ... so that both see the same machine. The best time of several rounds
counts. Only ratios within one run mean something.

    python benchmarks/versions.py --against 23ab974 --threads 2 --out results/bench/versions.json
    python benchmarks/versions.py --only easy --sizes 256 --match NegMMIOT
    python benchmarks/versions.py --read results/bench/versions.json --markdown docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from versions_cases import SECTIONS, Case
from versions_worker import Worker

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path("~/.cache/tricouple/versions")
SECONDS = 3.0  # that the rounds of a case may take
SLOW = 20.0  # a call that takes longer is not repeated
MARKERS = "<!-- versions -->", "<!-- /versions -->"
HELP = """
Sections, each with the targets of the project:
  easy             InfoNCE, IOT, PushPull, NegMMIOT on random batches, within one set and across
                   two: time and memory over the other version, growth from N = 1024 to 8192
  clip             both directions, d = 512, over open_clip's ClipLoss
  streamed         memory="streamed", and as much of E kept as a memory_budget just below N×N allows
  across-streamed  memory of a streamed batch across two sets, N = 16384, d = 512
  hard             outliers, collapsed and duplicated batches, sharp ones: over the easy batch
  shaped           log-sigmoid and hinge over linear; with an outlier over their own easy batch
  processes        2 processes with 1 thread each, group="world"; memory per rank of 4 processes
  peers            NegMMIOT over SupConLoss (pytorch-metric-learning) and InfoNCE in plain PyTorch

With one thread, times are CPU seconds of the worker, which other processes disturb less; with more
threads or processes they are wall seconds. Memory is the growth of the resident set in a fresh
process after a small call of the same kind, in N×N float32 matrices. "Over X": time / time of X.
"""


def measure(cases: list[Case], start: Callable[..., Worker], rounds: int | None) -> dict[str, Any]:
    """Best seconds and memory by case and version, and errors."""
    seconds, memory, errors = ({case.name: {} for case in cases} for _ in range(3))
    turns = [(case, v) for case in cases if not case.once for v in case.versions]
    least, limit = (5 if cases[0].n <= 2048 else 2), SECONDS * len(cases)
    least, limit = (least, limit) if rounds is None else (rounds, 0)
    done, began = -1, time.monotonic()  # the first round warms up
    while turns and (done < least or time.monotonic() - began < limit):
        for case, version in list(turns):
            found = start(version, case.world).ask("time", case)
            took = found.get("seconds", math.inf)
            if "error" in found:
                errors[case.name][version] = found["error"]
            elif done >= 0 or took > SLOW:
                seconds[case.name][version] = min(took, seconds[case.name].get(version, math.inf))
            if took > SLOW:
                turns.remove((case, version))
        done, began = done + 1, time.monotonic() if done < 0 else began
        progress(f"round {done} of at least {least}")
    for case in cases:
        for version in case.versions if {"memory", "memory/other"} & set(case.limits) else ():
            progress(f"memory of {case.name}, {version}")
            worker = start(version, case.world, fresh=True)
            found = worker.ask("memory", case)
            worker.close()
            if "error" in found:
                errors[case.name][version] = found["error"]
                continue
            memory[case.name][version] = found["memory"]
            seconds[case.name].setdefault(version, found["seconds"])
    return {"seconds": seconds, "memory": memory, "errors": errors, "rounds": max(done, 0)}


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
    """What is stored of a group: one row per case."""
    rows = []
    for case in cases:
        ratios = [
            judged(key, ratio(case, key, "this", found), target)
            | {"other": ratio(case, key, "other", found)}
            for key, target in case.limits.items()
        ]
        row = asdict(case) | {"section": section, "rounds": found["rounds"], "ratios": ratios}
        for what in ("seconds", "memory", "errors"):
            row[what] = found[what][case.name]
        rows.append(row)
    return rows


def judged(key: str, value: float | None, target: float | None) -> dict[str, Any]:
    """A ratio and whether its target is met; None if there is none, or no number."""
    met = None if value is None or target is None else value <= target
    return {"of": key, "value": value, "target": target, "met": met}


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Exponents of time from N = 1024 to 8192, within one set."""
    rows = [row for row in rows if row["section"] == "easy"]
    ends = {(row["name"], row["n"]): row["seconds"].get("this") for row in rows}
    found = []
    for name in dict.fromkeys(row["name"] for row in rows):
        small, large = ends.get((name, 1024)), ends.get((name, 8192))
        if small and large:
            exponent = judged("growth", math.log(large / small) / math.log(8), 2.1)
            more = {"section": "easy", "n": 8192, "seconds": {}, "memory": {}, "errors": {}}
            found.append({"name": name, "ratios": [exponent], **more})
    return found


# --- tables ---------------------------------------------------------------------------------------

WORDS = {"other": "time / other", "memory": "memory, N²", "memory/other": "memory / other"}
WORDS |= {"growth": "exponent of N", "": ""}
MET = {True: "yes", False: "**no**", None: ""}


def lines_of(row: dict[str, Any]) -> list[list[str]]:
    """Cells of a table: one line per ratio; times in the first."""
    times = [number(1000 * row["seconds"].get(v, math.nan)) for v in ("this", "other")]
    lines = []
    for ratio in row["ratios"] or [{"of": ""}]:
        what = WORDS.get(ratio["of"], f"over {ratio['of']}")
        target, met = ratio.get("target"), ratio.get("met")
        cells = [number(ratio.get("value")), number(ratio.get("other"))]
        cells += ["" if target is None else f"≤ {number(target)}", MET[met]]
        first = [row["name"], str(row["n"]), *times] if not lines else ["", "", "", ""]
        lines.append([*first, what, *cells])
    lines += [[f"{v} failed: {text}", *[""] * 8] for v, text in row["errors"].items()]
    return lines


def number(value: float | None) -> str:
    """Three digits, or nothing."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def header(report: dict[str, Any]) -> list[str]:
    """Names of the columns."""
    other = report["commits"]["other"]["commit"][:7]
    return ["case", "N", "this, ms", f"{other}, ms", "ratio", "this", other, "target", "met"]


def plain(cells: list[str]) -> str:
    """A line of the printed table."""
    shapes = "<32", ">6", ">9", ">11", "<19", ">8", ">8", ">8", ">4"
    cells = [cell.replace("**no**", "NO") for cell in cells]
    return " ".join(map(format, cells, shapes)).rstrip()


def summary(report: dict[str, Any]) -> str:
    """How many targets are met, and where the numbers come from."""
    met = [x["met"] for row in report["rows"] for x in row["ratios"] if x["met"] is not None]
    this, other = (report["commits"][v] for v in ("this", "other"))
    names = [x["commit"][:7] + (" with changes" if x["dirty"] else "") for x in (this, other)]
    machine = report["machine"]
    return (
        f"{sum(met)} of {len(met)} targets met. {names[0]} (this) and {names[1]}, "
        f"{report['threads']} thread(s), {report['clock']} time, {machine['cpu']}, "
        f"{machine['cores']} cores, load {machine['load']:.1f} at the start, "
        f"torch {report['torch']}, {report['date'][:10]}."
    )


def write_markdown(report: dict[str, Any], path: Path) -> None:
    """Replace what is between the markers of a page."""
    start, end = MARKERS
    text = path.read_text()
    if start not in text or end not in text:
        raise SystemExit(f"{path} has no lines {start} and {end}: add them where the tables belong")
    parts = [summary(report), f"Command: `{report['command']}`"]
    for section in dict.fromkeys(row["section"] for row in report["rows"]):
        rows = [row for row in report["rows"] if row["section"] == section]
        table = [header(report), [":--", *["--:"] * 3, ":--", *["--:"] * 4]]
        table += [line for row in rows for line in lines_of(row)]
        parts.append(f"{section}:\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in table))
    before, after = text.split(start)[0], text.split(end)[1]
    path.write_text(before + start + "\n" + "\n\n".join(parts) + "\n" + end + after)


def progress(text: str) -> None:
    """Say what is going on, on one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# --- the command ----------------------------------------------------------------------------------


def git(*words: str, tree: Path = ROOT) -> str:
    """What git says, or nothing."""
    found = subprocess.run(["git", "-C", tree, *words], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def origin(tree: Path) -> dict[str, Any]:
    """The commit of a tree, and whether files under git differ from it."""
    changes = git("status", "--porcelain", "--untracked-files=no", tree=tree)
    commit = git("rev-parse", "HEAD", tree=tree) or "unknown"
    return {"commit": commit, "dirty": bool(changes), "tree": str(tree)}


def checkout(commit: str, folder: Path) -> Path:
    """A work tree of a commit with its extension built, made on first use."""
    found = git("rev-parse", "--verify", f"{commit}^{{commit}}")
    if not found:
        raise SystemExit(f"--against {commit}: git knows no such commit")
    tree = folder.expanduser() / found[:12]
    if not tree.exists():
        tree.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", tree, found], check=True)
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
    add("--cache", type=Path, default=CACHE, help=f"where checkouts are made and kept ({CACHE})")
    add("--threads", type=int, default=2, help="threads per worker (2)")
    add("--only", action="append", choices=SECTIONS, help="a section; may be repeated (all)")
    add("--sizes", help="N, separated by commas, in place of those of the sections")
    add("--match", default="", help="only cases whose name contains this, and what divides them")
    add("--rounds", type=int, help="rounds (as many as take about 3 s per case, 5 or 2 at least)")
    add("--full", action="store_true", help="the other version also where a call takes minutes")
    add("--out", type=Path, help="JSON file, written after every group of cases")
    add("--markdown", type=Path, help=f"page with the lines {' and '.join(MARKERS)} for the tables")
    add("--read", type=Path, metavar="FILE", help="print a stored run; measure nothing")
    return parser.parse_args()


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases, printing rows as they are complete."""
    trees = {"this": ROOT, "other": args.other_tree or checkout(args.against, args.cache)}
    trees = {version: tree.resolve() for version, tree in trees.items()}
    workers: dict[tuple[str, int], Worker] = {}

    def start(version: str, world: int, *, fresh: bool = False) -> Worker:
        if not fresh and (version, world) in workers:
            return workers[version, world]
        new = Worker(trees[version], args.threads, world)
        return new if fresh else workers.setdefault((version, world), new)

    hello = {version: start(version, 1).ask("hello") for version in trees}
    for version, found in hello.items():
        tree = trees[version]
        if tree not in Path(found.get("file", "/")).parents or not found.get("compiled"):
            build = f"cd {tree} && {sys.executable} setup.py build_ext --inplace"
            raise SystemExit(f"{tree}: its compiled tricouple is not found ({found}): {build}")
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    machine = {"cpu": cpu[1] if cpu else platform.processor(), "cores": os.cpu_count()}
    machine |= {"load": os.getloadavg()[0], "system": platform.platform()}
    report: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/versions.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commits": {version: origin(tree) for version, tree in trees.items()},
        "threads": args.threads,
        "clock": "CPU" if args.threads == 1 else "wall",
        "torch": hello["this"]["torch"],
        "python": platform.python_version(),
        "machine": machine,
        "rows": [],
    }
    print(plain(header(report)))
    for section in args.only or SECTIONS:
        make, sizes = SECTIONS[section]
        sizes = [int(n) for n in args.sizes.split(",")] if args.sizes else sizes
        groups = [g for group in make(sizes, args.full) if (g := chosen(group, args.match))]
        for at, cases in enumerate(groups, 1):
            began = time.monotonic()
            print(f"{section} {at}/{len(groups)}: N = {cases[0].n}, {len(cases)} cases", flush=True)
            rows = rows_of(section, cases, measure(cases, start, args.rounds))
            if section == "easy" and at == len(groups):
                rows += growth([*report["rows"], *rows])
            report["rows"] += rows
            progress("")
            print("\n".join(plain(line) for row in rows for line in lines_of(row)), flush=True)
            report["seconds"] = report.get("seconds", 0) + time.monotonic() - began
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
    if args.read:
        report = json.loads(args.read.read_text())
        print(plain(header(report)))
        section = ""
        for row in report["rows"]:
            if row["section"] != section:
                print(section := row["section"])
            print("\n".join(plain(line) for line in lines_of(row)))
    else:
        report = run(args)
    print(summary(report))
    if args.markdown:
        write_markdown(report, args.markdown)


if __name__ == "__main__":
    main()
