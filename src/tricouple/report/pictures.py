"""Write the README's pictures: small PNG files on white, readable in a light and a dark theme."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from tricouple.report.page import write_whole
from tricouple.report.read import Study, StudyError
from tricouple.report.synthetic import drawings as synthetic

Drawings = dict[str, Callable[[Study], Figure | None]]

# File names and drawings of each kind of study; a drawing without data is None.
PICTURES: dict[str, Drawings] = {"synthetic": synthetic.DRAWINGS}
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
        content = png(study, name)
        if content is not None:
            write_whole(folder / name, content)
            written.append(folder / name)
    return written


def png(study: Study, name: str) -> bytes | None:
    """Return a picture as a small file that depends on nothing but the study."""
    drawn, small = io.BytesIO(), io.BytesIO()
    with mpl.rc_context(STYLE):
        picture = drawings(study)[name](study)
        if picture is None:
            return None
        picture.savefig(drawn, format="png", dpi=130, facecolor="white")
    # A few hundred colours are all it has: a palette takes a third of the room.
    Image.open(drawn).convert("RGB").quantize(256).save(small, format="png", optimize=True)
    return small.getvalue()
