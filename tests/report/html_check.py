"""Read a page the way a browser would: elements with their attributes and texts; pictures."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

from tricouple_lab.report.command import write_report

VOID = {"meta", "input", "br", "link", "img", "circle", "rect", "path"}


@dataclass
class Element:
    """An element, its texts and the elements inside."""

    tag: str
    attributes: dict[str, str]
    texts: list[str] = field(default_factory=list)
    inside: list[Element] = field(default_factory=list)

    def all(self, tag: str, kind: str | None = None) -> list[Element]:
        """Every element of a tag (and a class) below this one."""
        found = []
        for element in self.inside:
            classes = element.attributes.get("class", "").split()
            if element.tag == tag and (kind is None or kind in classes):
                found.append(element)
            found += element.all(tag, kind)
        return found

    @property
    def text(self) -> str:
        """All the text below, scripts left out."""
        own = " ".join(self.texts) if self.tag not in ("script", "style") else ""
        return " ".join(" ".join([own, *(e.text for e in self.inside)]).split())


class Tree(HTMLParser):
    """Builds the elements; complains if they are not properly nested."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element."""
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element."""
        closed = self.open.pop()
        assert closed.tag == tag, f"<{closed.tag}> is closed by </{tag}>"

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.open[-1].texts.append(data)


def parse(page: str) -> Element:
    """Return the root of a page."""
    tree = Tree()
    tree.feed(page)
    tree.close()
    assert len(tree.open) == 1, f"<{tree.open[-1].tag}> is never closed"
    return tree.open[0]


def page_of(folder: Path) -> Element:
    """Write the page of a study and return its root."""
    return parse(write_report(folder).read_text(encoding="utf-8"))


def check_picture(content: bytes, colours: int = 5) -> Image.Image:
    """Return a picture that is small, on white, and not empty."""
    assert len(content) < 150 * 1024
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    assert picture.getpixel((0, 0)) == (255, 255, 255)
    assert len(picture.getcolors(1 << 24)) > colours
    return picture


def table_of(root: Element, caption: str) -> Element:
    """The one table whose caption begins like this."""
    (found,) = (t for t in root.all("table") if t.all("caption")[0].text.startswith(caption))
    return found


def rows(table: Element) -> list[list[str]]:
    """The texts of all cells."""
    return [
        [cell.text for cell in row.inside if cell.tag in ("th", "td")] for row in table.all("tr")
    ]


def section(root: Element, name: str) -> Element:
    """The section of a name, of the first article."""
    (found,) = (s for s in root.all("section") if s.attributes["id"] == f"s1-{name}")
    return found


def names(root: Element) -> list[str]:
    """The names of all sections of the first article."""
    return [s.attributes["id"].removeprefix("s1-") for s in root.all("section")]
