"""``python -m studies NAME``, which ``tricouple study NAME`` runs."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

import tricouple_lab.runs  # noqa: F401 (lets torchvision be imported beside another torch)
from studies.study import read, run
from tricouple_lab.files import write_text
from tricouple_lab.names import UserError, nearest

STUDIES = {  # name: module, time
    "three-way": ("three_way", "minutes"),
    "length": ("length", "3 h"),
    "noise": ("noise", "1 h"),
    "tail": ("tail", "40 min"),
}


def main(arguments: list[str]) -> int:
    """Do the runs that are missing, and judge."""
    parser = argparse.ArgumentParser(
        prog="tricouple study",
        description="Decide a question by runs. What would refute the hypothesis is in the plan; "
        "each loss has the same steps, seeds and grid of c; its c is chosen on validation data.",
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help=f"one of: {', '.join(STUDIES)}")
    add("--list", action="store_true", help="print each hypothesis and what would refute it")
    add("--scale", choices=("smoke", "cpu"), default="cpu", help="smoke: seconds, no verdict")
    add("--verdict", action="store_true", help="judge the runs that are there, run nothing")
    add("--workers", type=int, default=1, help="processes, each with one thread (default: 1)")
    add("--out", type=Path, metavar="FOLDER", help="default: runs/study-NAME")
    options = parser.parse_args(arguments)
    if options.list or options.name is None:
        for name, (module, duration) in STUDIES.items():
            study = import_module(f"studies.{module}")
            print(f"{name}: {study.TITLE} ({duration} of one core)")
            print(f"  hypothesis: {study.HYPOTHESIS}\n  refuted if: {study.REFUTED}\n")
        return 0
    if options.name not in STUDIES:
        raise UserError(f"study {options.name}: no such study ({nearest(options.name, STUDIES)})")
    study = import_module(f"studies.{STUDIES[options.name][0]}")
    smoke = options.scale == "smoke"
    out = options.out or Path("runs") / f"study-{options.name}{'-smoke' * smoke}"
    if not options.verdict:
        run(study, options.scale, out, options.workers)
    if smoke:
        print(f"scale=smoke: no verdict; runs: {out}")
        return 0
    text = study.judge(read(study, options.scale, out)).to_markdown()
    print(text, end="")
    if not options.verdict:
        write_text(out / "verdict.md", f"# {study.TITLE}\n\n{text}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"error: {error}")
