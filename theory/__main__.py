"""``tricouple verify``, which is ``python -m theory``: test the statements of the paper's theory.

The exit code is 1 if a statement fails.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from theory.statements import Outcome, select, verify
from tricouple_lab.files import provenance, write_text
from tricouple_lab.names import UserError
from tricouple_lab.report.figures import Series, lines_figure, save_png

LINE = "{:21}{:>10} {:>7}  {:9}{}"
# File, title, axes and which of them are logarithmic.
FIGURES = {
    "decoupling": ("theory-decoupling", "Neg-MMIOT and PushPull, two views, N = 128, τ = ε",
                   "sharpness c", "relative difference of gradients", "xy"),
    "shaping-forces": ("shaping-forces", "τ = 0.1, ε = 0.3, hinge of 0.2 in cosine",
                       "cosine of anchor and negative", "force, in units of mean repulsion", ""),
    "shaping-three-way": ("shaping-three-way", "Neg-MMIOT and PushPull, two views, N = 64",
                          "ε", "cosine of gradients", "x"),
    "quadrature-kernel": ("quadrature-error", "log-sigmoid kernel, τ = 0.1",
                          "terms Q", "largest relative error", "y"),
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Test or read, print, and write."""
    parser = argparse.ArgumentParser(prog="tricouple verify", description=__doc__)
    add = parser.add_argument
    add("--list", action="store_true", help="list the statements and stop")
    add("--only", metavar="NAME", help="test these statements alone, separated by commas")
    add("--seed", type=int, default=0, help="seed of all random numbers")
    add("--out", type=Path, metavar="FOLDER", help="write theory.json, README.md and the figures")
    add("--read", type=Path, metavar="FILE", help="read an earlier theory.json instead of testing")
    options = parser.parse_args(arguments)
    statements = select((options.only or "").replace(",", " ").split())
    if options.list:
        for one in statements:
            print(f"{one.name:21}{one.claim} ({one.paper})")
        return 0
    head = LINE.format("statement", "measured", "bound", "verdict", "")
    if options.read is not None:
        report = read(options.read)
        print(head, *map(line, report["statements"]), sep="\n")
    else:
        print(head)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other
        try:
            outcomes = []
            for outcome in verify(seed=options.seed, only=[one.name for one in statements]):
                print(line(outcome), flush=True)
                outcomes.append(outcome)
        finally:
            torch.set_num_threads(threads)
        facts = provenance() | {"command": shlex.join(["tricouple", "verify", *arguments])}
        report = {"seed": options.seed, "statements": outcomes, "provenance": facts}
    print(count(report))
    if options.out is not None:
        write(report, options.out)
        print(f"Numbers, tables and figures: {options.out}")
    return int(any(one["verdict"] == "fails" for one in report["statements"]))


def read(path: Path) -> dict[str, Any]:
    """Return the report of an earlier run."""
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for outcome in report["statements"]:
            line(outcome)  # has what it needs
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not the theory.json of a verification") from error
    return report


def line(outcome: Outcome) -> str:
    """Return a line of the table on the terminal."""
    bound = "–" if outcome["bound"] is None else f"{outcome['bound']:g}"
    claim = f"{outcome['paper']}: {outcome['claim']}"
    return LINE.format(outcome["name"], cell(outcome["value"]), bound, outcome["verdict"], claim)


def count(report: dict[str, Any]) -> str:
    """Say how many statements hold."""
    verdicts = [outcome["verdict"] for outcome in report["statements"]]
    observed = verdicts.count("observed")
    of = len(verdicts) - observed
    return f"{verdicts.count('holds')} of {of} statements hold; {observed} observations."


def cell(value: object) -> str:
    """Return a number with three significant digits; adding zero turns −0 into 0."""
    return f"{value + 0.0:.3g}" if isinstance(value, float) else str(value)


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
    keys = ["name", "claim", "paper", "measured", "value", "bound", "verdict"]
    verdicts = pd.DataFrame(report["statements"])[keys]
    verdicts["bound"] = [cell(x) if x == x else "–" for x in verdicts["bound"].astype(float)]
    verdicts = verdicts.rename(columns={"name": "statement", "measured": "what is measured"})
    about = verdicts["statement"].str.startswith("quadrature")
    blocks = {"theory": verdicts[~about], "quadrature": verdicts[about]}
    blocks |= {one["name"]: pd.DataFrame(one["rows"]) for one in report["statements"]}
    texts = {one["name"]: f"{one['claim']} ({one['paper']})" for one in report["statements"]}
    facts = report["provenance"]
    parts = [f"# The theory, checked by running it\n\n{count(report)}\n"]
    for name, table in blocks.items():
        if len(table):
            said = f"{texts[name]}\n\n" if name in texts else ""
            parts.append(f"## {name}\n\n{said}<!-- {name} -->\n{markdown(table)}<!-- /{name} -->\n")
    version = facts["versions"]["torch"]
    parts.append(f"Seed {report['seed']}, float64, torch {version}, {facts['date'][:10]}.\n")
    return "\n".join(parts)


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown, numbers to the right."""
    sides = ["--:" if pd.api.types.is_numeric_dtype(kind) else "---" for kind in table.dtypes]
    rows = [list(table.columns), sides, *table.values.tolist()]
    texts = ([cell(one).replace("|", "\\|") for one in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in texts)


if __name__ == "__main__":
    from tricouple_lab.cli import main as command

    sys.exit(command(["verify", *sys.argv[1:]]))
