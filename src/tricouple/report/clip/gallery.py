"""Queries and their answers: images as small pictures in the page, the right answers marked."""

from __future__ import annotations

import base64
import io
import zipfile
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tricouple.report.frame import asset
from tricouple.report.read import StudyError

FILE = "gallery.npz"


@dataclass(frozen=True)
class Gallery:
    """The arrays that an evaluation left for the report."""

    arrays: dict[str, npt.NDArray[Any]]

    def matrix(self, name: str) -> npt.NDArray[np.float64] | None:
        """A square matrix, None if there is none."""
        found = self.arrays.get(name)
        return None if found is None else found.astype(np.float64)

    @property
    def has_queries(self) -> bool:
        """Whether there are pictures to show."""
        return "queries" in self.arrays


def read_gallery(path: Path) -> Gallery | None:
    """Read what a run left; None if it left nothing.

    Raises:
        StudyError: If the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            return Gallery({name: file[name] for name in file.files})
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise StudyError(f"{path}: not a gallery: {error}") from error


def queries_html(gallery: Gallery) -> str:
    """Image → five captions and caption → five images, the right ones marked."""
    arrays = gallery.arrays
    pictures = {
        int(position): _picture(pixels)
        for position, pixels in zip(arrays["thumbnail_of"], arrays["thumbnails"], strict=True)
    }
    to_text, to_image = [], []
    for row, query in enumerate(int(value) for value in arrays["queries"]):
        answers = "".join(
            _caption(str(text), int(owner) == query, float(score))
            for text, owner, score in zip(
                arrays["answer_captions"][row],
                arrays["answer_owners"][row],
                arrays["answer_captions_score"][row],
                strict=True,
            )
        )
        own = str(arrays["own_captions"][row])
        to_text.append(
            f'<div class="query"><img src="{pictures[query]}" alt="image with the caption: '
            f'{escape(own)}"><ol>{answers}</ol></div>'
        )
        found = "".join(
            _answer(pictures[int(image)], int(image) == query, float(score))
            for image, score in zip(
                arrays["answer_images"][row], arrays["answer_images_score"][row], strict=True
            )
        )
        to_image.append(
            f'<div class="query"><div><strong>“{escape(own)}”</strong>'
            f'<div class="answers">{found}</div></div></div>'
        )
    return (
        f"<style>{asset('gallery.css')}</style>\n"
        "<p>Queries were drawn at random, the same for every run; the numbers are cosines, ✓ marks "
        "a right answer.</p>\n"
        f'<h3>Image → the five nearest captions</h3>\n<div class="gallery">{"".join(to_text)}</div>'
        f'\n<h3>Caption → the five nearest images</h3>\n<div class="gallery">{"".join(to_image)}'
        "</div>"
    )


def _caption(text: str, right: bool, score: float) -> str:
    mark, kind = (" ✓", ' class="right"') if right else ("", "")
    return f'<li{kind}>{escape(text)} <span class="score">{score:.2f}{mark}</span></li>'


def _answer(picture: str, right: bool, score: float) -> str:
    mark, kind = ("✓ ", ' class="right"') if right else ("", "")
    alt = "right answer" if right else "wrong answer"
    return (
        f'<figure{kind}><img src="{picture}" alt="{alt}"><figcaption>{mark}{score:.2f}'
        "</figcaption></figure>"
    )


def _picture(pixels: npt.NDArray[np.uint8]) -> str:
    content = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(content, format="png")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
