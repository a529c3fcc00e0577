"""Write what the README and the documentation show: small PNG files on white, Markdown tables."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from tricouple.report.clip import drawings as clip
from tricouple.report.kinds import write_whole
from tricouple.report.read import Study, StudyError
from tricouple.report.synthetic import drawings as synthetic
from tricouple.report.vision import drawings as vision

Drawings = Mapping[str, Callable[[Study], Figure | str | None]]

# File names and drawings (or texts) of each kind of study; one without data is None.
PICTURES: dict[str, Drawings] = {
    "clip": clip.DRAWINGS,
    "synthetic": synthetic.DRAWINGS,
    "vision": vision.DRAWINGS,
}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#d8dee4",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def drawings(study: Study) -> Drawings:
    """Return the pictures that a study of this kind has."""
    if study.kind not in PICTURES:
        raise StudyError(f'{study.folder}: a study of kind "{study.kind}" has no pictures')
    return PICTURES[study.kind]


def write_pictures(study: Study, folder: Path) -> list[Path]:
    """Write every picture that the study has data for, and return where."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in drawings(study):
        content = picture(study, name)
        if content is not None:
            write_whole(folder / name, content)
            written.append(folder / name)
    return written


def picture(study: Study, name: str) -> bytes | None:
    """Return a file that depends on nothing but the study; None if there is nothing to show."""
    with mpl.rc_context(STYLE):
        drawn = drawings(study)[name](study)
        if drawn is None or isinstance(drawn, str):
            return None if drawn is None else drawn.encode()
        return _png(drawn)


def _png(drawn: Figure) -> bytes:
    large, small = io.BytesIO(), io.BytesIO()
    drawn.savefig(large, format="png", dpi=130, facecolor="white")
    # A few hundred colours are all it has: a palette takes a third of the room.
    Image.open(large).convert("RGB").quantize(256).save(small, format="png", optimize=True)
    return small.getvalue()
