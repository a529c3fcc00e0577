"""Colours that people with any colour vision can tell apart, and a second sign beside each.

The hues are those of Okabe and Ito, darkened for white paper where theirs are too pale for thin
lines. A method also has its own dash and marker, an outcome its own word and sign: no statement
of the page rests on colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass

# name: (on a light page, on a dark page)
HUES = {
    "blue": ("#0072b2", "#56b4e9"),
    "vermillion": ("#c44601", "#ff8243"),
    "green": ("#007a58", "#2fd0a2"),
    "purple": ("#a3458b", "#e6a3cb"),
    "orange": ("#a86c00", "#f0b232"),
    "grey": ("#57606a", "#aab4be"),
    "black": ("#1b1f24", "#e6edf3"),
}
SURFACES = {"ink": ("#1b1f24", "#e6edf3"), "paper": ("#ffffff", "#0d1117"),
            "faint": ("#d8dee4", "#30363d"), "quiet": ("#57606a", "#9da7b3")}  # fmt: skip


@dataclass(frozen=True)
class Style:
    """How a method is drawn: a hue of the palette, and dash and marker in plotly's words."""

    hue: str
    dash: str
    symbol: str

    @property
    def colour(self) -> str:
        """The colour as a CSS variable, which the page resolves for its theme."""
        return f"var(--{self.hue})"

    @property
    def band(self) -> str:
        """The same colour, nearly transparent."""
        return f"var(--{self.hue}-band)"


STYLES = {
    "neg_mmiot": Style("blue", "solid", "circle"),
    "pushpull": Style("vermillion", "dash", "square"),
    "iot": Style("green", "dashdot", "diamond"),
    "infonce": Style("purple", "dot", "triangle-up"),
    "byol": Style("orange", "longdash", "x"),
    "vicreg": Style("grey", "longdashdot", "cross"),
    "invaspread": Style("black", "longdash", "star"),
    "iot_uniformity": Style("green", "dot", "cross"),
    "dbot": Style("orange", "dot", "square"),
    "fused_gromov": Style("grey", "dashdot", "diamond"),
    "dbot_published": Style("orange", "longdashdot", "x"),
    "fused_gromov_published": Style("grey", "dash", "triangle-up"),
}
OTHER = Style("black", "solid", "star")

# Class c gets hue c mod 7 and, after each round, the next symbol: 49 pairs before one returns.
CLASS_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")


def style(method: str) -> Style:
    """Return how a method is drawn."""
    return STYLES.get(method, OTHER)


def class_hue(label: int) -> str:
    """Return the colour of a class as a CSS variable."""
    return f"var(--{list(HUES)[label % len(HUES)]})"


def class_symbol(label: int) -> str:
    """Return the marker of a class."""
    return CLASS_SYMBOLS[label // len(HUES) % len(CLASS_SYMBOLS)]


def stylesheet() -> str:
    """Return the palette as CSS variables, light and dark."""
    light, dark = (_variables(theme) for theme in (0, 1))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _variables(theme: int) -> str:
    colours = {name: pair[theme] for name, pair in (HUES | SURFACES).items()}
    bands = {f"{name}-band": _faded(HUES[name][theme]) for name in HUES}
    return " ".join(f"--{name}: {value};" for name, value in (colours | bands).items())


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.18)"
