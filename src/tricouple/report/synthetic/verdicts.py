"""The study's word for the outcome of a run, with a sign and a hue to show it by."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tricouple.report.read import Study


@dataclass(frozen=True)
class Verdict:
    """How an outcome is shown: its word, a sign that needs no colour, and a hue."""

    word: str
    sign: str
    hue: str


VERDICTS = {
    "etf": Verdict("ETF", "★", "blue"),
    "rich": Verdict("rich", "●", "green"),
    "reduced": Verdict("reduced", "◐", "purple"),
    "collapsed": Verdict("collapsed", "▼", "orange"),
    "diverged": Verdict("diverged", "✕", "vermillion"),
}


def verdict(name: str) -> Verdict:
    """Return how a verdict is shown; one that is not known here keeps its own word."""
    return VERDICTS.get(name.lower(), Verdict(name, "■", "grey"))


def majority(verdicts: Counter[str]) -> str:
    """Write the verdict of most seeds, and of how many if they disagree.

    Example:
        >>> majority(Counter({"etf": 2, "rich": 1})), majority(Counter())
        ('★ ETF 2/3', '–')
    """
    if not verdicts:
        return "–"
    name, count = verdicts.most_common(1)[0]
    shown, total = verdict(name), verdicts.total()
    return f"{shown.sign} {shown.word}" + ("" if count == total else f" {count}/{total}")


def meanings(study: Study) -> list[str]:
    """What the study means by each verdict, beside the sign that stands for it."""
    return [
        f"{verdict(name).sign} {verdict(name).word}: {text}."
        for name, text in study.verdicts.items()
    ]
