"""``tricouple report``: the page of a study, or the README's pictures."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from tricouple_lab.files import WriteError, write_atomically, write_text
from tricouple_lab.options import CommandError, require_writable
from tricouple_lab.report import clip, synthetic, text, vision
from tricouple_lab.report.numbers import duration
from tricouple_lab.report.page import Article, Files, Section, items, page, provenance_section
from tricouple_lab.report.read import Study, StudyError, read_studies, read_study
from tricouple_lab.report.tables import Table, to_markdown

Made = TypeVar("Made")

# Each says of a study: `article`, its part of a page, to which what is missing and where numbers
# come from are added here; `files`, what the documentation shows, by name, empty where there is no
# data for it; `terminal`, what is printed beside the page. A new kind is a module and a word here.
KINDS = {"clip": clip, "synthetic": synthetic, "text": text, "vision": vision}


def run(args: argparse.Namespace) -> int:
    """Read, draw, write, and say where."""
    try:
        studies = [known(study) for folder in args.folders for study in read_studies(folder, KINDS)]
        if args.figures is not None and len(studies) > 1:
            raise CommandError(f"--figures draws one study, {len(studies)} were given")
        if args.figures is not None:
            for path in write_files(studies[0], args.figures):
                print(f"{path} ({path.stat().st_size / 1024:.0f} kB)")
            return 0
        several = len(args.folders) > 1
        out = args.out or (Path() if several else args.folders[0]) / "report.html"
        require_writable(out)
        write_page(studies, out)
    except (StudyError, WriteError) as error:
        raise CommandError(str(error)) from error
    console = Console()
    for study in studies:
        for sentence in study.skipped:
            console.print(f"Left out: {sentence}", highlight=False, markup=False, soft_wrap=True)
        for shown in KINDS[study.kind].terminal(study):
            console.print(shown, highlight=False, markup=False)
    print(f"{out} ({out.stat().st_size / 2**20:.1f} MB)")
    return 0


def read_known(folder: Path) -> Study:
    """Read a study of a kind that can be reported, or a folder of runs; refuse others."""
    return known(read_study(folder))


def known(study: Study) -> Study:
    """The study, if it is of a kind that can be reported."""
    if study.kind not in KINDS:
        words = ", ".join(KINDS)
        file = study.folder / "study.json"
        raise StudyError(f'{file}: kind "{study.kind}" is not one of: {words}')
    return study


def write_report(study_folder: Path, out: Path | None = None) -> Path:
    """Write the page of a study, or of a folder of runs, by default beside it; return where.

    Raises:
        StudyError: If the folder is no study that can be reported.
        WriteError: If the page cannot be written; a page from before is unharmed.

    Example:
        >>> write_report(Path("results/synthetic"))  # doctest: +SKIP
        PosixPath('results/synthetic/report.html')
    """
    return write_page([read_known(study_folder)], out or study_folder / "report.html")


def write_page(studies: Sequence[Study], out: Path) -> Path:
    """Write one page about several studies, in the given order; all of it or nothing."""
    write_text(out, page(_told(study, article) for study in studies))
    return out


def write_files(study: Study, folder: Path) -> Iterator[Path]:
    """Write what the documentation shows of a study, and say where."""
    found: Files = _told(study, KINDS[study.kind].files)
    for name, content in found.items():
        if not isinstance(content, bytes):
            tables = any(isinstance(part, Table) for part in content)
            text = "\n".join(p if isinstance(p, str) else to_markdown(p) for p in content)
            content = text.encode() if tables else b""
        if content:
            write_atomically(folder / name, methodcaller("write", content))
            yield folder / name


def _told(study: Study, make: Callable[[Study], Made]) -> Made:
    """Make something of a study; say which one it is that has values nobody can make sense of."""
    try:
        return make(study)
    except StudyError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StudyError(
            f"{study.folder}: study.json or a record has a value that makes no sense "
            f"({type(error).__name__}: {error})"
        ) from error


def article(study: Study) -> Article:
    """Return everything the page says about a study, and where its numbers come from."""
    own: Article = KINDS[study.kind].article(study)
    absent = [*own.missing, *own.left_out, *study.skipped]
    missing = Section("missing", "What is missing", items(absent) if absent else "")
    statuses = Counter(run.status for run in study.runs)
    seeds = {run.config.get("seed") for run in study.runs}
    commits = {str(run.provenance.get("commit") or "") for run in study.runs}
    counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
    counted = {
        "runs": f"{len(study.runs)} ({counts})",
        "seeds": ", ".join(map(str, sorted(seed for seed in seeds if isinstance(seed, int)))),
        "time of all runs": duration(sum(run.seconds for run in study.runs)),
        "commits of the runs": ", ".join(sorted(commits - {""})),
    }
    # Of the runs, which say what they used, rather than of the study, which says what there was.
    lines = [run.provenance.get("versions") for run in study.runs]
    used = {name: found for line in lines if isinstance(line, dict) for name, found in line.items()}
    origin = study.provenance | ({"versions": used} if used else {})
    provenance = provenance_section(origin, study.config, counted)
    return replace(
        own,
        found=own.found or ["No run has finished: nothing can be said yet."],
        sections=[*own.sections, missing, provenance],
    )
