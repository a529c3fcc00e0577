"""What was found, in a few sentences computed from the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tricouple.report.statistics import MeanStd
from tricouple.report.vision import paper
from tricouple.report.vision.budget import budget
from tricouple.report.vision.groups import Group, blocks_of
from tricouple.report.vision.names import loss_name
from tricouple.report.vision.results import percent
from tricouple.report.vision.sharpness import Line
from tricouple.report.words import axis_value, listing

BEST_BY = "penultimate/linear"  # what the paper's main table shows
CHOSEN_BY = "penultimate/knn"  # what the sharpness is chosen by


def headline(groups: tuple[Group, ...], lines: tuple[Line, ...]) -> list[str]:
    """Return the sentences; none if nothing has finished."""
    return [*_best(groups), *_sharpness(lines), *budget(groups), *_one_seed(groups)]


def _best(groups: tuple[Group, ...]) -> Iterator[str]:
    """The best loss of each block, who is level with it, and who is last."""
    for block in blocks_of(groups):
        own = [g for g in groups if g.block == block and math.isfinite(g.metric(BEST_BY).mean)]
        if len(own) < 2:
            continue
        own.sort(key=lambda g: -g.metric(BEST_BY).mean)
        best, worst = own[0], own[-1]
        level = [g.name for g in own[1:] if _level(best.metric(BEST_BY), g.metric(BEST_BY))]
        beside = f", level with {listing(level)}" if level else ""
        last = "" if worst.name in level else f"; last {worst.name} ({_shown(worst)} %)"
        yield f"{block}, linear probe: best {best.name} ({_shown(best)} %){beside}{last}."


def _sharpness(lines: tuple[Line, ...]) -> Iterator[str]:
    """What the paper's c costs every loss against the best of those that were tried."""
    parts = []
    for loss in dict.fromkeys(line.loss for line in lines):
        costs = [cost for line in lines if line.loss == loss for cost in _cost(line)]
        if costs:
            low, high = (f"{value:.1f}" for value in (min(costs), max(costs)))
            points = low if low == high else f"{low} to {high}"
            parts.append(f"{loss_name(loss)} {points} (c = {axis_value(paper.SHARPNESS[loss])})")
    if parts:
        yield (
            "At the paper's sharpness instead of the best tried, k-NN accuracy is lower by "
            f"percentage points: {'; '.join(parts)}."
        )


def _cost(line: Line) -> Iterator[float]:
    """Percentage points between the best c and the paper's, if that was tried."""
    marked = line.at_papers(CHOSEN_BY)
    if marked is not None:
        yield max(value.mean for _, value in line.points(CHOSEN_BY)) - marked[1].mean


def _one_seed(groups: tuple[Group, ...]) -> Iterator[str]:
    done = [own for own in groups if own.finished]
    if done and all(len(own.finished) == 1 for own in done):
        yield "One seed a setting: small differences may be chance."


def _level(a: MeanStd, b: MeanStd) -> bool:
    """Whether the ± std bands of two accuracies touch."""
    return abs(a.mean - b.mean) <= a.spread + b.spread


def _shown(own: Group) -> str:
    return percent(own.percent(BEST_BY))
