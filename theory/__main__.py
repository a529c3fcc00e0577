"""``tricouple verify``, which is ``python -m theory``: test the statements of the paper's theory.

The exit code is 1 if a statement fails.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from benchmarks.table import as_markdown, cell, read

from theory.setting import Row, Setting
from theory.statements import select, verify
from tricouple_lab.files import provenance, write_text
from tricouple_lab.report.figures import Series, lines_figure, save_png

LINE = "{:21}{:>10} {:>7}  {:9}{}"
# File, title, axes and which of them are logarithmic.
FIGURES = {
    "decoupling": ("theory-decoupling", "Neg-MMIOT and PushPull, two views, N = 128, τ = ε",
                   "sharpness c", "relative difference of gradients", "xy"),
    "quadrature-kernel": ("quadrature-error", "log-sigmoid kernel, τ = 0.1",
                          "terms Q", "largest relative error", "y"),
}  # fmt: skip
COLUMNS = {"name": "statement", "claim": "claim", "paper": "paper", "measured": "what is measured",
           "value": "value", "bound": "bound", "verdict": "verdict"}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Test or read, print, and write."""
    parser = argparse.ArgumentParser(prog="tricouple verify", description=__doc__)
    add = parser.add_argument
    add("--list", action="store_true", help="list the statements and stop")
    add("--only", metavar="NAME", default="", help="only these, separated by commas")
    add("--seed", type=int, default=0, help="seed of all random numbers")
    add("--out", type=Path, metavar="FOLDER", help="write theory.json, README.md and the figures")
    add("--read", type=Path, metavar="FILE", help="read an earlier theory.json instead of testing")
    options = parser.parse_args(arguments)
    chosen = select(options.only.replace(",", " ").split())
    if options.list:
        for one in chosen.values():
            print("{name:21}{claim} ({paper})".format(**one.about))
        return 0
    torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other
    facts = provenance() | {"command": shlex.join(["tricouple", "verify", *arguments])}
    outcomes = verify(Setting(options.seed), chosen)
    report = {"seed": options.seed, "statements": outcomes, "provenance": facts}
    if options.read:
        report = read(options.read, tables, "the theory.json of a verification")
    print(LINE.format("statement", "measured", "bound", "verdict", ""))
    done = []
    for one in report["statements"]:  # as soon as it is known
        done.append(one)
        numbers, claim = (cell(one["value"]), cell(one["bound"])), f"{one['paper']}: {one['claim']}"
        print(LINE.format(one["name"], *numbers, one["verdict"], claim), flush=True)
    report["statements"] = done
    print(count(done))
    if options.out:
        write(report, options.out)
        print(f"Numbers, tables and figures: {options.out}")
    return int(any(one["verdict"] == "fails" for one in done))


def count(outcomes: list[Row]) -> str:
    """Say how many statements hold."""
    verdicts = [one["verdict"] for one in outcomes]
    observed = verdicts.count("observed")
    of = len(verdicts) - observed
    return f"{verdicts.count('holds')} of {of} statements hold; {observed} observations."


def write(report: dict[str, Any], folder: Path) -> None:
    """Write the numbers, the tables that the documentation includes, and its figures."""
    text = json.dumps(report, indent=1, ensure_ascii=False)
    write_text(folder / "theory.json", f"{text}\n")
    write_text(folder / "README.md", tables(report))
    for outcome in report["statements"]:
        if outcome["name"] in FIGURES:
            name, title, x, y, log = FIGURES[outcome["name"]]
            curves = [Series(**curve) for curve in outcome["curves"]]
            figure = lines_figure({title: curves}, x, y, log_x="x" in log, log_y="y" in log)
            save_png(figure, folder / f"{name}.png")


def tables(report: dict[str, Any]) -> str:
    """Return all tables as Markdown; comments mark what the pages of docs/ include."""
    outcomes, facts = report["statements"], report["provenance"]
    found = pd.DataFrame(outcomes, columns=[*COLUMNS]).rename(columns=COLUMNS)
    ours = found["statement"].str.startswith("quadrature")
    blocks = {"theory": found[~ours], "quadrature": found[ours]}
    blocks |= {one["name"]: pd.DataFrame(one["rows"]) for one in outcomes}
    texts = {one["name"]: f"{one['claim']} ({one['paper']})\n\n" for one in outcomes}
    text = f"# The theory, checked by running it\n\n{count(outcomes)}\n\n"
    for name, rows in blocks.items():
        if len(rows):
            text += f"## {name}\n\n{texts.get(name, '')}"
            text += f"<!-- {name} -->\n{as_markdown(rows)}<!-- /{name} -->\n\n"
    version = facts["versions"]["torch"]
    return f"{text}Seed {report['seed']}, float64, torch {version}, {facts['date'][:10]}.\n"


if __name__ == "__main__":
    from tricouple_lab.cli import main as command

    sys.exit(command(["verify", *sys.argv[1:]]))
