"""Write the page of a study: dispatch on its kind, and never leave half a file behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tricouple.report.clip import article as clip
from tricouple.report.frame import Article, page
from tricouple.report.read import Study, StudyError, read_study
from tricouple.report.synthetic import article as synthetic
from tricouple.report.vision import article as vision
from tricouple.report.vision.folders import has_runs, read_runs_folder

# What each kind of study has to say; a new kind is a package and a row here.
KINDS: dict[str, Callable[[Study], Article]] = {
    "clip": clip.article,
    "synthetic": synthetic.article,
    "vision": vision.article,
}


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
    write_whole(out, page(KINDS[study.kind](study) for study in studies).encode())
    return out


def read_known(folder: Path) -> Study:
    """Read a study of a kind that can be reported, or a folder of runs."""
    if not (folder / "study.json").is_file() and has_runs(folder):
        return read_runs_folder(folder)
    study = read_study(folder)
    if study.kind not in KINDS:
        known = ", ".join(KINDS)
        raise StudyError(f'{folder / "study.json"}: kind "{study.kind}" is not one of: {known}')
    return study


def write_whole(path: Path, content: bytes) -> None:
    """Write a file all at once: whoever reads it sees the old content or the new, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
