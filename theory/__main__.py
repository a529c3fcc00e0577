"""``tricouple verify``, which is ``python -m theory``: test the statements of the paper's theory.

The exit code is 1 if a statement fails.
"""

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
COLUMNS = {"statement": "name", "claim": "claim", "paper": "paper", "what is measured": "measured",
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
        report = read(options.read)
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


def count(outcomes: list[Row]) -> str:
    """Say how many statements hold."""
    verdicts = [one["verdict"] for one in outcomes]
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
    outcomes, facts = report["statements"], report["provenance"]
    blocks: dict[str, list[Row]] = {"theory": [], "quadrature": []}
    for one in outcomes:
        row = {title: one[key] for title, key in COLUMNS.items()} | {"bound": cell(one["bound"])}
        blocks["quadrature" if one["name"].startswith("quadrature") else "theory"].append(row)
    texts = {one["name"]: f"{one['claim']} ({one['paper']})\n\n" for one in outcomes}
    text = f"# The theory, checked by running it\n\n{count(outcomes)}\n\n"
    for name, rows in (*blocks.items(), *((one["name"], one["rows"]) for one in outcomes)):
        if rows:
            text += f"## {name}\n\n{texts.get(name, '')}"
            text += f"<!-- {name} -->\n{markdown(rows)}<!-- /{name} -->\n\n"
    version = facts["versions"]["torch"]
    return f"{text}Seed {report['seed']}, float64, torch {version}, {facts['date'][:10]}.\n"


def markdown(rows: list[Row]) -> str:
    """Return a table as Markdown, numbers to the right."""
    numbers = [all(isinstance(row[key], int | float) for row in rows) for key in rows[0]]
    sides = ["--:" if number else "---" for number in numbers]
    lines = [rows[0], sides, *(map(cell, row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    from tricouple_lab.cli import main as command

    sys.exit(command(["verify", *sys.argv[1:]]))
