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


# name: pixels on, off, on, off … of a line; matplotlib and CSS read the same numbers.
DASHES: dict[str, tuple[int, ...]] = {
    "solid": (),
    "dash": (6, 4),
    "dashdot": (6, 3, 2, 3),
    "dot": (2, 3),
    "longdash": (9, 4),
    "longdashdot": (9, 3, 2, 3),
}
# name (plotly's): the same in matplotlib and as a letter.
SYMBOLS = {
    "circle": ("o", "●"),
    "square": ("s", "■"),
    "diamond": ("D", "◆"),
    "triangle-up": ("^", "▲"),
    "x": ("X", "✖"),
    "cross": ("P", "✚"),
    "star": ("*", "★"),
}


@dataclass(frozen=True)
class Style:
    """How a line is drawn: a hue, a dash and a symbol of this table."""

    hue: str
    dash: str
    symbol: str

    @property
    def colour(self) -> str:
        """The colour as a CSS variable, which the page resolves for its theme."""
        return f"var(--{self.hue})"


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


def style(method: str, variant: int = 0) -> Style:
    """Return how a method is drawn; its second setting in one picture has another dash and symbol.

    Example:
        >>> style("infonce"), style("infonce", 1).symbol
        (Style(hue='purple', dash='dot', symbol='triangle-up'), 'x')
    """
    known = STYLES.get(method, Style("black", "solid", "star"))
    dash, symbol = (
        list(table)[(list(table).index(name) + variant) % len(table)]
        for table, name in ((DASHES, known.dash), (SYMBOLS, known.symbol))
    )
    return Style(known.hue, dash, symbol)


def numbered(position: int) -> Style:
    """Return the style of a line that is known by its place alone: all of them differ."""
    hue, dash, symbol = (list(table)[position % len(table)] for table in (HUES, DASHES, SYMBOLS))
    return Style(hue, dash, symbol)


def class_style(label: int) -> Style:
    """Return how samples of a class are marked: 49 pairs of hue and symbol before one returns."""
    symbol = list(SYMBOLS)[label // len(HUES) % len(SYMBOLS)]
    return Style(list(HUES)[label % len(HUES)], "solid", symbol)


def stylesheet() -> str:
    """Return the palette as CSS variables, light and dark."""
    light, dark = (_variables(theme) for theme in (0, 1))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _variables(theme: int) -> str:
    values = {name: pair[theme] for name, pair in (HUES | SURFACES).items()}
    for name in HUES:
        red, green, blue = bytes.fromhex(values[name].removeprefix("#"))
        values[f"{name}-band"] = f"rgba({red}, {green}, {blue}, 0.18)"
    return " ".join(f"--{name}: {value};" for name, value in values.items())
