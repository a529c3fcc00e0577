"""The kinds of studies that can be reported: what their page, files and terminal show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table as RichTable

from tricouple.files import write_atomically
from tricouple.report import clip, page, synthetic, vision
from tricouple.report.numbers import duration
from tricouple.report.page import Article, Section, items, provenance_section
from tricouple.report.read import Study, StudyError, read_study


@dataclass(frozen=True)
class Kind:
    """What can be shown of a kind of study.

    Attributes:
        article: Its part of a page; what is missing and where numbers come from are added to it.
        files: What the documentation shows, by file name; None where there is no data for it.
        terminal: What is printed beside the page.
    """

    article: Callable[[Study], Article]
    files: Callable[[Study], Mapping[str, bytes | None]]
    terminal: Callable[[Study], Sequence[RichTable | str]]


# A new kind is a module and a row here.
KINDS = {
    "clip": Kind(clip.article, clip.files, clip.terminal),
    "synthetic": Kind(synthetic.article, synthetic.files, synthetic.terminal),
    "vision": Kind(vision.article, vision.files, vision.terminal),
}


def read_known(folder: Path) -> Study:
    """Read a study of a kind that can be reported, or a folder of runs.

    Raises:
        StudyError: If it is none.
    """
    study = read_study(folder)
    if study.kind not in KINDS:
        known = ", ".join(KINDS)
        raise StudyError(f'{folder / "study.json"}: kind "{study.kind}" is not one of: {known}')
    return study


def write_report(study_folder: Path, out: Path | None = None) -> Path:
    """Write the page of one study and return where.

    Args:
        study_folder: The folder with ``study.json`` and ``runs.jsonl``, or of runs.
        out: The file to write, ``report.html`` in the study folder if None.

    Raises:
        StudyError: If the folder is no study that can be reported.
        OSError: If the page cannot be written.

    Example:
        >>> write_report(Path("results/synthetic"))  # doctest: +SKIP
        PosixPath('results/synthetic/report.html')
    """
    return write_page([read_known(study_folder)], out or study_folder / "report.html")


def write_page(studies: Sequence[Study], out: Path) -> Path:
    """Write one page about several studies, in the given order."""
    return page.write_page(map(article, studies), out)


def article(study: Study) -> Article:
    """Return everything the page says about a study, and where its numbers come from."""
    own = KINDS[study.kind].article(study)
    sections = list(own.sections)
    if absent := [*own.missing, *own.left_out]:
        sections.append(Section("missing", "What is missing", items(absent)))
    return replace(
        own,
        found=own.found or ["No run has finished: nothing can be said yet."],
        sections=[*sections, _provenance(study)],
    )


def write_files(study: Study, folder: Path) -> list[Path]:
    """Write what the documentation shows of a study, and return where."""
    written = []
    for name, content in KINDS[study.kind].files(study).items():
        if content is not None:
            _write(folder / name, content)
            written.append(folder / name)
    return written


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))


def _provenance(study: Study) -> Section:
    statuses = [run.status for run in study.runs]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    seeds = {run.config.get("seed") for run in study.runs}
    commits = {str(run.provenance.get("commit") or "") for run in study.runs}
    counted = {
        "runs": f"{len(study.runs)} ({counts})",
        "seeds": ", ".join(map(str, sorted(seed for seed in seeds if isinstance(seed, int)))),
        "time of all runs": duration(sum(run.seconds for run in study.runs)),
        "commits of the runs": ", ".join(sorted(commits - {""})),
    }
    return provenance_section(study.provenance, study.config, counted)
