"""Curves over training, recall over the sharpness."""

from __future__ import annotations

from tricouple.report.clip.groups import Group
from tricouple.report.panel import Figure, Panel, line_with_band, line_with_bars, plot
from tricouple.report.words import AXES, axis_value, number

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
        drawing, words = plot("epoch", ""), []
        for own in groups:
            if any(name in run.curves for run in own.finished):
                curve = own.curve(name)
                band = len(own.finished) > 1
                drawing.add_traces(line_with_band(curve, own.method, {}, unit="epoch", band=band))
                words.append(f"{own.name} {number(float(curve.mean[-1]))}")
        if words:
            panels.append(Panel(title, f"{title} ends at: {'; '.join(words)}.", drawing))
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
    name = "in_batch/at1"
    drawing, words = plot(AXES["sharpness"], "%", log_x=True), []
    values = sorted({own.sharpness for own in groups if own.finished})
    drawing.update_layout(
        xaxis={"tickvals": values, "ticktext": list(map(axis_value, values)), "nticks": None}
    )
    for loss in dict.fromkeys(own.loss for own in groups):
        line = [own for own in groups if own.loss == loss and own.finished]
        if line:
            x, y = [own.sharpness for own in line], [own.percent(name) for own in line]
            drawing.add_trace(line_with_bars(x, y, line[0].method, line[0].name, {}))
            points = ", ".join(
                f"{v.mean:.1f} at {axis_value(c)}" for c, v in zip(x, y, strict=True)
            )
            words.append(f"{line[0].name}: {points}")
    title = "Recall@1 in batches, mean of both directions"
    return Figure(
        id="sharpness",
        title="Which sharpness suits each loss",
        caption="On validation images, at the first seed; the best of each loss is then trained "
        "with all seeds and measured on the test images.",
        panels=(Panel(title, f"{title}, %: {'; '.join(words)}.", drawing),) if words else (),
        methods=tuple(dict.fromkeys(own.method for own in groups)),
    )
