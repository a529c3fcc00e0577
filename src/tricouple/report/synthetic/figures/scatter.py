"""What the pictures of embeddings share: one run for each method, K and ψ, classes as markers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from tricouple.report.palette_before import class_hue, class_symbol
from tricouple.report.panel import Choice
from tricouple.report.projections import Labels, thin, unit
from tricouple.report.read import Array, Run, Study
from tricouple.report.synthetic.groups import Group
from tricouple.report.words import method_name

# Enough to see classes, few enough for t-SNE in a second and for smooth motion on a phone.
MOST_POINTS = 300


@dataclass(frozen=True)
class Picture:
    """The unit embeddings of one run at several steps: (S,), (S, n, d) and (n,)."""

    group: Group
    run: Run
    steps: tuple[int, ...]
    embeddings: Array
    labels: Labels

    @property
    def name(self) -> str:
        """Method, ψ, K and seed in words."""
        seed = self.run.config["seed"]
        group = self.group
        return f"{method_name(group.method, group.shaping)}, K = {group.n_classes}, seed {seed}"

    @property
    def when(self) -> Choice:
        """The choices under which it is shown."""
        return self.group.choice()


def read_pictures(study: Study, groups: tuple[Group, ...]) -> tuple[Picture, ...]:
    """Read the snapshots of the first seed that has some, for every group."""
    return tuple(picture for group in groups for picture in _first(study, group))


def by_method(pictures: tuple[Picture, ...]) -> dict[str, list[Picture]]:
    """The pictures of each method: the panels of a figure."""
    found: dict[str, list[Picture]] = {}
    for picture in pictures:
        found.setdefault(picture.group.method, []).append(picture)
    return found


def markers(labels: Labels, size: float) -> dict[str, object]:
    """How samples of these classes are marked: a colour and a shape for each class."""
    return {
        "color": [class_hue(int(label)) for label in labels],
        "symbol": [class_symbol(int(label)) for label in labels],
        "size": size,
        "opacity": 0.75,
        "line": {"width": 0},
    }


def points(picture: Picture, at: Array, size: float = 6) -> go.Scatter:
    """Return the samples of a picture at (n, 2) positions."""
    return go.Scatter(
        x=at[:, 0].astype(np.float32),
        y=at[:, 1].astype(np.float32),
        mode="markers",
        marker=markers(picture.labels, size),
        customdata=picture.labels.astype(np.int32),
        hovertemplate="class %{customdata}<extra></extra>",
        meta={"when": picture.when},
    )


def _first(study: Study, group: Group) -> Iterator[Picture]:
    for run in group.shown:
        snapshot = study.snapshot(run)
        if snapshot is None:
            continue
        # A run that diverged has steps without numbers: nothing to draw there.
        finite = np.isfinite(snapshot.embeddings).all(axis=(1, 2))
        if not finite.any():
            continue
        chosen = thin(len(snapshot.labels), MOST_POINTS)
        embeddings = unit(snapshot.embeddings[finite][:, chosen])
        steps = tuple(int(step) for step in snapshot.steps[finite])
        yield Picture(group, run, steps, embeddings, snapshot.labels[chosen])
        return
