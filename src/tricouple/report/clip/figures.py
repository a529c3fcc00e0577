"""Curves over training, recall over the sharpness, similarities and plans."""

from __future__ import annotations

import plotly.graph_objects as go

from tricouple.report.clip.gallery import Gallery
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
MATRICES = {
    "similarity": "cosine",
    "plan_positive": "plan, anchor and positive",
    "plan_negative": "plan, anchor and negative",
}
TIMES = {"before": "before training", "after": "after training"}


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


def matrices(gallery: Gallery, name: str) -> Figure:
    """Similarities and the plan of a batch, before and after training."""
    panels = []
    for key, title in MATRICES.items():
        for when, time in TIMES.items():
            values = gallery.matrix(f"{key}_{when}")
            if values is None:
                continue
            n = len(values)
            drawing = plot("caption", "image")
            drawing.add_trace(
                go.Heatmap(
                    z=values.round(5),
                    colorscale="Viridis" if key != "similarity" else "RdBu",
                    zmid=0 if key == "similarity" else None,
                    colorbar={"thickness": 10, "tickfont": {"color": "var(--ink)"}},
                    hovertemplate="image %{y}, caption %{x}: %{z:.3g}<extra></extra>",
                )
            )
            drawing.update_layout(
                yaxis={"autorange": "reversed", "scaleanchor": "x", "showgrid": False},
                xaxis={"showgrid": False},
            )
            own = float(values.diagonal().mean())
            rest = float((values.sum() - values.trace()) / (n * n - n))
            label = (
                f"{title} of {n} pairs {time}: {number(own)} on average for matching pairs, "
                f"{number(rest)} for the others."
            )
            panels.append(Panel(f"{title}, {time}", label, drawing))
    return Figure(
        id=f"matrices-{name}",
        title="Similarities and the three-marginal plan of a batch",
        caption=(
            "Rows are images, columns captions; the matching caption is on the diagonal. The plan "
            "couples anchor image, positive and negative caption; shown are its two pair marginals "
            "at the sharpness of the run: mass on the diagonal of the first and off the diagonal "
            "of the second is what Neg-MMIOT trains for."
        ),
        panels=tuple(panels),
    )
