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

import torch

from theory.setting import Row, Setting
from theory.statements import select, verify
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
        report = read(options.read)
    print(LINE.format("statement", "measured", "bound", "verdict", ""))
    report["statements"] = [shown(outcome) for outcome in report["statements"]]
    print(count(report))
    if options.out:
        write(report, options.out)
        print(f"Numbers, tables and figures: {options.out}")
    return int(any(one["verdict"] == "fails" for one in report["statements"]))


def read(path: Path) -> dict[str, Any]:
    """Return the report of an earlier run."""
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        tables(report)  # has what it needs
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not the theory.json of a verification") from error
    return report


def shown(outcome: Row) -> Row:
    """Print a line of the table on the terminal, as soon as it is known."""
    claim = f"{outcome['paper']}: {outcome['claim']}"
    numbers = cell(outcome["value"]), cell(outcome["bound"])
    print(LINE.format(outcome["name"], *numbers, outcome["verdict"], claim), flush=True)
    return outcome


def count(report: dict[str, Any]) -> str:
    """Say how many statements hold."""
    verdicts = [outcome["verdict"] for outcome in report["statements"]]
    observed = verdicts.count("observed")
    of = len(verdicts) - observed
    return f"{verdicts.count('holds')} of {of} statements hold; {observed} observations."


def cell(value: object) -> str:
    """Return a number with three significant digits; adding zero turns −0 into 0."""
    text = "–" if value is None else str(value)
    return f"{value + 0.0:.3g}" if isinstance(value, float) else text.replace("|", "\\|")


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
    blocks: dict[str, list[Row]] = {"theory": [], "quadrature": []}
    texts = {}
    for one in report["statements"]:
        row = {"statement": one["name"], "claim": one["claim"], "paper": one["paper"]}
        row |= {"what is measured": one["measured"], "value": one["value"]}
        row |= {"bound": cell(one["bound"]), "verdict": one["verdict"]}
        blocks["quadrature" if one["name"].startswith("quadrature") else "theory"].append(row)
        blocks[one["name"]] = one["rows"]
        texts[one["name"]] = f"{one['claim']} ({one['paper']})\n\n"
    parts = [f"# The theory, checked by running it\n\n{count(report)}\n"]
    for name, rows in blocks.items():
        said = texts.get(name, "")
        if rows:
            parts.append(f"## {name}\n\n{said}<!-- {name} -->\n{markdown(rows)}<!-- /{name} -->\n")
    facts = report["provenance"]
    version = facts["versions"]["torch"]
    parts.append(f"Seed {report['seed']}, float64, torch {version}, {facts['date'][:10]}.\n")
    return "\n".join(parts)


def markdown(rows: list[Row]) -> str:
    """Return a table as Markdown, numbers to the right."""
    numbers = {key: all(isinstance(row[key], int | float) for row in rows) for key in rows[0]}
    sides = ["--:" if number else "---" for number in numbers.values()]
    lines = [rows[0], sides, *(map(cell, row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    from tricouple_lab.cli import main as command

    sys.exit(command(["verify", *sys.argv[1:]]))
