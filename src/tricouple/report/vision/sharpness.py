"""Accuracy against the sharpness c, for every loss: the setting that matters most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tricouple.report.read import Study
from tricouple.report.statistics import MeanStd
from tricouple.report.vision import paper
from tricouple.report.vision.groups import (
    FINAL,
    MAIN,
    SHARPNESS,
    Block,
    Group,
    blocks_of,
    group,
    losses_of,
)


@dataclass(frozen=True)
class Line:
    """A loss in a block: its groups of seeds by increasing c, one for each c."""

    block: Block
    loss: str
    groups: tuple[Group, ...]

    @property
    def method(self) -> str:
        """The loss by the name that styles know."""
        return self.groups[0].method

    def points(self, measure: str) -> list[tuple[float, MeanStd]]:
        """Sharpness and accuracy in per cent, where it was measured."""
        found = [(sharpness_of(own), own.percent(measure)) for own in self.groups]
        return [(c, value) for c, value in found if math.isfinite(value.mean)]

    def at_papers(self, measure: str) -> tuple[float, MeanStd] | None:
        """The point at the paper's c, None where there is none."""
        wanted = paper.SHARPNESS.get(self.loss)
        return next((point for point in self.points(measure) if point[0] == wanted), None)


def read_lines(study: Study, measure: str = "penultimate/knn") -> tuple[Line, ...]:
    """Every loss that ran at two values of c or more, block after block.

    A study has runs for this, all else equal. In a folder of runs other settings may have been
    varied as well: then each c is shown at the best of them by `measure`.
    """
    own = study.part(SHARPNESS) or study.part(MAIN) or study.part(FINAL)
    groups = [g for g in group(own) if g.finished and sharpness_of(g) > 0]
    lines = []
    for block in blocks_of(groups):
        for loss in losses_of(groups):
            best = _best([g for g in groups if (g.block, g.loss) == (block, loss)], measure)
            if len(best) > 1:
                lines.append(Line(block, loss, best))
    return tuple(lines)


def sharpness_of(own: Group) -> float:
    """The sharpness of a group, 0 for a loss without."""
    value = own.config.get("sharpness")
    return float(value) if isinstance(value, int | float) else 0.0


def _best(groups: Sequence[Group], measure: str) -> tuple[Group, ...]:
    by_c: dict[float, Group] = {}
    for own in sorted(groups, key=lambda g: (sharpness_of(g), g.metric(measure).mean)):
        by_c[sharpness_of(own)] = own
    return tuple(by_c.values())
