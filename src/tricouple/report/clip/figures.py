"""Curves over training, recall over the sharpness."""

from __future__ import annotations

from tricouple.report.clip.groups import Group
from tricouple.report.over_sharpness import Series
from tricouple.report.panel import Figure, Line, Panel, curves_panel, line_with_bars, plot
from tricouple.report.words import AXES, axis_value

CHOSEN_BY = "Recall@1 in batches, mean of both directions"
CURVES = {
    "loss": "training loss",
    "image_to_text": "recall@1 in batches, image → text",
    "text_to_image": "recall@1 in batches, text → image",
    "gap": "modality gap",
    "alignment": "alignment",
    "image_uniformity": "uniformity of the images",
    "sharpness": "sharpness c that learns",
}


def curves(groups: tuple[Group, ...]) -> Figure:
    """Loss, recall and geometry on held-out pairs over the epochs."""
    panels = []
    for name, title in CURVES.items():
        lines = [
            Line(own.name, own.method, own.curve(name), band=len(own.finished) > 1, when={})
            for own in groups
            if any(name in run.curves for run in own.finished)
        ]
        if lines:
            panels.append(curves_panel(title, lines, unit="epoch"))
    return Figure(
        id="curves",
        title="During training",
        caption=(
            "Over the epochs, means over seeds, band ± one standard deviation; all but the loss on "
            "held-out pairs. Losses are on scales of their own: compare shapes, not heights."
        ),
        panels=tuple(panels),
        methods=tuple(dict.fromkeys(own.method for own in groups)),
    )


def sharpness(groups: tuple[Group, ...]) -> Figure:
    """Validation recall over the grid of c, from which each loss has its setting."""
    series = over_sharpness(groups)
    ticks = sorted({c for own in series for c, _ in own.points})
    drawing, words = plot(AXES["sharpness"], "%", log_x=True, ticks=ticks), []
    for own in series:
        x, y = zip(*own.points, strict=True)
        drawing.add_trace(line_with_bars(x, y, own.method, own.name, {}))
        points = ", ".join(f"{value.mean:.1f} at {axis_value(c)}" for c, value in own.points)
        words.append(f"{own.name}: {points}")
    label = f"{CHOSEN_BY}, %: {'; '.join(words)}."
    return Figure(
        id="sharpness",
        title="Which sharpness suits each loss",
        caption="On validation images, at the first seed; the best of each loss is then trained "
        "with all seeds and measured on the test images.",
        panels=(Panel(CHOSEN_BY, label, drawing),) if words else (),
        methods=tuple(own.method for own in series),
    )


def over_sharpness(groups: tuple[Group, ...]) -> list[Series]:
    """The recall by which c is chosen, over c, for every loss with a finished run."""
    found: dict[str, list[Group]] = {}
    for own in groups:
        if own.finished:
            found.setdefault(own.loss, []).append(own)
    return [
        Series(
            line[0].name,
            line[0].method,
            [(own.sharpness, own.percent("in_batch/at1")) for own in line],
        )
        for line in found.values()
    ]
