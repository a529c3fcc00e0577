"""``python -m studies NAME``, which ``tricouple study NAME`` runs."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

import torch

from studies.study import RESULTS, read_lines, read_plan, run
from studies.verdict import markdown
from tricouple_lab.names import UserError, nearest

PROGRAMS = {"wrong-labels": "tail"}  # others: the first word of the name


def studies() -> list[str]:
    """The names of all plans."""
    return sorted(file.parent.name for file in RESULTS.glob("*/plan.json"))


def main(arguments: list[str]) -> int:
    """Do the runs that are missing, and judge."""
    parser = argparse.ArgumentParser(
        prog="tricouple study",
        description="Decide a question by runs. results/NAME/plan.json has the hypotheses, what "
        "would refute them, rows, grid and seeds; runs go to results/NAME/runs.jsonl. A study runs "
        "from a clean commit that has its plan; the same command continues one that was killed.",
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help=f"one of: {', '.join(studies())}")
    add("--list", action="store_true", help="print each hypothesis and what would refute it")
    add("--scale", choices=("smoke", "cpu"), default="cpu", help="smoke: seconds, no verdict")
    add("--verdict", action="store_true", help="tables and verdict of the runs there; run nothing")
    add("--write", action="store_true", help="with --verdict: write results/NAME/verdict.md")
    add("--out", type=Path, metavar="FOLDER", help="of smoke runs (default: runs/study-NAME-smoke)")
    options = parser.parse_args(arguments)
    if options.list or options.name is None:
        print("\n\n".join(listed(name) for name in studies()))
        return 0
    name = options.name
    if name not in studies():
        raise UserError(f"study {name}: no such study ({nearest(name, studies())})")
    plan = read_plan(name)
    if not options.verdict:
        if plan.get("converted"):
            raise UserError(f"study {name}: has stored runs and no program; use --verdict")
        torch.set_num_threads(1)
        smoke = options.scale == "smoke"
        out = (options.out or Path("runs") / f"study-{name}-smoke") if smoke else RESULTS / name
        program = PROGRAMS.get(name, name.partition("-")[0])
        run(import_module(f"studies.{program}"), plan, out, smoke)
        if smoke:
            print(f"scale=smoke: no verdict; runs: {out}")
            return 0
    text = markdown(plan, read_lines(RESULTS / name / "runs.jsonl"))
    print(text, end="")
    if options.write:
        (RESULTS / name / "verdict.md").write_text(text, encoding="utf-8")
    return 0


def listed(name: str) -> str:
    """Question, hypotheses and what would refute them."""
    plan = read_plan(name)
    lines = [f"{name}: {plan['title']} ({plan['budget']})"]
    for rule in plan["hypotheses"]:
        lines += [f"  {rule['name']}: {rule['says']}", f"  refuted if: {rule['refuted_if']}"]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"error: {error}")
