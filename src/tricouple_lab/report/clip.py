"""Image-text runs: retrieval, zero-shot, queries with answers, similarities and plans."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from operator import neg

import numpy as np

from tricouple_lab.names import DATA, QUANTITIES
from tricouple_lab.report import curves, page
from tricouple_lab.report.chart import Array, Axis, Chart, Grid, Panel
from tricouple_lab.report.draw_matplotlib import png
from tricouple_lab.report.embeddings import gallery_html, listed, picture, pictured
from tricouple_lab.report.groups import Group, Needs, gaps, group, steps_of
from tricouple_lab.report.numbers import (
    LEVEL,
    MeanStd,
    best,
    listing,
    mean_std,
    number,
    percent,
    plain,
)
from tricouple_lab.report.read import Arrays, Study, read_arrays
from tricouple_lab.report.tables import Column, Table, measured_table

NEEDS: Needs = {"loss": str, "sharpness": (int, float), "seed": int}
LEAD = (
    "An image and a text encoder trained on captions with contrastive losses, then asked to find "
    "the caption of an image, the image of a caption, and the class of an image by its name."
)
PAPER = (
    "The paper (MS-COCO, ResNet-50, 35 epochs) does not say how many candidates its retrieval has; "
    "figures near 67 % suggest batches of 64, so they stand beside ours in batches. Ours are of "
    "another data set and a small fraction of the budget: compare the order of losses at most."
)
MODALITIES = (
    "Gap: distance between the mean image and the mean text. Alignment: mean squared distance of "
    "an image and its captions. Uniformity: log-mean of exp(−2 d²), lower is more spread."
)
IN_BATCH = "Recall in batches of the training size, one caption an image, %"
WHOLE = "Recall among all images and all captions of the split, %"
ZERO_SHOT = "Zero-shot classification, the mean of several sentences for each class, %"
DIRECTIONS = {"image_to_text": "image → text", "text_to_image": "text → image"}
GEOMETRY = (
    "gap", "alignment", "image_uniformity", "text_uniformity", "matched", "unmatched",
    "image_rank", "text_rank",
)  # fmt: skip
CURVES = (
    "loss", "image_to_text", "text_to_image", "gap", "alignment", "image_uniformity", "sharpness",
)  # fmt: skip
CHOSEN_BY = {"in_batch/at1": "Recall@1 in batches, mean of both directions"}
CLEARLY = 2.0  # times chance, the spread over seeds taken off
REASONS = {
    "dbot_published": (
        "its public code takes the plan, numbers between 0 and 1, for logits: a second softmax "
        "flattens the loss, which hardly moves the encoders"
    ),
    "fused_gromov_published": (
        "its public code has the sign of the kernel flipped, so that its plan is large where "
        "similarities are small, and takes the plan for logits"
    ),
}


def article(study: Study) -> page.Article:
    """Return everything the page says about a study, or about a single run."""
    groups = finals(study)
    paper = len(groups) > 1
    retrieval = retrieval_tables(groups, paper=paper)
    zero_shot = zero_shot_tables(groups, paper=paper)
    modalities = "How the modalities share the sphere"
    return page.Article(
        title=f"Image and text: {study.name}",
        lead=f"{LEAD} Trained on {where(study)}.",
        sections=[
            page.section(
                "retrieval", "Retrieval", page.paragraph(PAPER) if paper else "", *retrieval
            ),
            page.section("zero-shot", "Zero-shot classification", *zero_shot),
            *_pictures(study, groups),
            *page.chart_sections([sharpness_chart(study), curves_chart(groups)]),
            page.section("geometry", modalities, page.paragraph(MODALITIES), _geometry(groups)),
        ],
        found=headline(groups),
        missing=gaps(study, groups),
    )


def files(study: Study) -> page.Files:
    """What the documentation shows: the recall by which c is chosen over c, and the tables."""
    groups = finals(study)
    tables = [*retrieval_tables(groups), *zero_shot_tables(groups)] if groups else []
    budget = f"Mean ± std over seeds, the best mean in bold. Trained on {where(study)}."
    points = "".join(f"- {note}\n" for note in [*headline(groups), *gaps(study, groups)[:1]])
    return {
        "clip-sharpness.png": png(sharpness_chart(study), height=3.5),
        "clip-table.md": [*tables, budget, "", points],
    }


def terminal(study: Study) -> list[Table | str]:
    """The same for a terminal, as many columns as 80 characters hold."""
    groups = finals(study)
    tables = [*retrieval_tables(groups, ranks=(1, 5), write=percent), *zero_shot_tables(groups)]
    return [*tables, *headline(groups), *gaps(study, groups)[:1]] if groups else []


def finals(study: Study) -> list[Group]:
    """The final runs of every loss that has a finished one."""
    return [own for own in group(study.part("final"), NEEDS) if own.finished]


def where(study: Study) -> str:
    """What the runs were trained on, in words."""
    if not study.runs:
        return "nothing yet"
    config = study.runs[0].config
    data = str(config.get("data"))
    steps = steps_of(group(study.runs, NEEDS))
    return (
        f"{DATA.get(data, data)}, model {config.get('model')} at {config.get('image_size')} "
        f"pixels, {config.get('epochs')} epochs ({steps}), batches of {config.get('batch_size')}, "
        f"learning rate {plain(config.get('learning_rate'))}"
    )


def retrieval_tables(
    groups: Sequence[Group],
    *,
    paper: bool = False,
    ranks: Sequence[int] = (1, 5, 10),
    write: Callable[[MeanStd], str] = mean_std,
) -> list[Table]:
    """Recall in batches, beside the paper's if asked for, and on the whole split."""
    tables = []
    for place, caption in {"in_batch": IN_BATCH, "whole_split": WHOLE}.items():
        columns = []
        for direction, words in DIRECTIONS.items():
            for k in ranks:
                name = f"{place}/{direction}/at{k}"
                columns.append(_column(groups, name, f"{words} @{k}", write))
                if paper and place == "in_batch" and k < 10:
                    columns.append(_paper(groups, f"{direction}_at{k}"))
        tables.append(_table(groups, columns, caption))
    return tables


def zero_shot_tables(groups: Sequence[Group], *, paper: bool = False) -> list[Table]:
    """Top-1 and top-5 on each image set; none if none was looked at."""
    metrics = {name for own in groups for run in own.finished for name in run.metrics}
    columns = []
    for name in sorted({n.split("/")[1] for n in metrics if n.startswith("zero_shot/")}):
        for top in (1, 5):
            title = f"{DATA.get(name, name)} top-{top}"
            columns.append(_column(groups, f"zero_shot/{name}/top{top}", title))
            if paper:
                columns.append(_paper(groups, f"{name}_top{top}"))
    return [_table(groups, columns, ZERO_SHOT)] if columns else []


def _table(groups: Sequence[Group], columns: list[Column], caption: str) -> Table:
    names = [*_names(groups), ("guessing",)] if groups else []
    return measured_table(f"{caption}, after {steps_of(groups)}", ("loss",), names, columns)


def _names(groups: Sequence[Group]) -> list[tuple[str]]:
    return [(f"{own.name} (c = {own.c})",) for own in groups]


def _column(
    groups: Sequence[Group], name: str, title: str, write: Callable[[MeanStd], str] = mean_std
) -> Column:
    guess = [MeanStd(own.percent(f"chance/{name}").mean) for own in groups[:1]]
    values = [*(own.percent(name) for own in groups), *guess]
    return Column(title, values, neg if len(groups) > 1 else None, write)


def _paper(groups: Sequence[Group], name: str) -> Column:
    values = [_papers().get(own.loss, {}).get(name, "nan") for own in groups]
    return Column("paper", [*(MeanStd(float(value)) for value in values), MeanStd(math.nan)])


@cache
def _papers() -> dict[str, dict[str, str]]:
    return {row["loss"]: row for row in csv.DictReader(page.asset("paper_clip.csv").splitlines())}


def _geometry(groups: Sequence[Group]) -> Table:
    """Gap, alignment and uniformity; one row a loss."""
    columns = [
        Column(QUANTITIES[name], [own.metric(f"modalities/{name}") for own in groups])
        for name in GEOMETRY
    ]
    caption = f"Geometry of unit embeddings after {steps_of(groups)}"
    return measured_table(caption, ("loss",), _names(groups), columns)


def curves_chart(groups: Sequence[Group]) -> Chart:
    """Loss, recall and geometry on held-out pairs over the epochs."""
    caption, panels = curves.HELD_OUT.format("pairs"), curves.during_training(groups, CURVES)
    return Chart("curves", "During training", caption, panels)


def sharpness_chart(study: Study) -> Chart:
    """Validation recall over the grid of c, from which each loss has its setting."""
    groups = group(study.part("sharpness"), NEEDS)
    lines = curves.over_sharpness(groups, next(iter(CHOSEN_BY)))
    title = "Which sharpness suits each loss"
    caption = (
        f"On validation images, at the first seed, after {steps_of(groups)}; the best of each loss "
        "is then trained with all seeds and measured on the test images."
    )
    chart = curves.sharpness_chart(lines, CHOSEN_BY, title, caption)
    named = [replace(p, title=f"{p.title}, validation images") for p in chart.panels]
    return replace(chart, panels=named)


def headline(groups: Sequence[Group]) -> list[str]:
    """What was found, and which losses do not beat guessing, and why."""
    if not groups:
        return []
    first = groups[0]
    name = "in_batch/{}/at1".format
    size = first.metric("batch_size").mean
    chance = first.percent(f"chance/{name('image_to_text')}").mean
    lead = f"Recall@1 among {size:.0f} candidates, % (guessing gives {chance:.1f})"
    values = {w: {g.name: g.percent(name(d)) for g in groups} for d, w in DIRECTIONS.items()}
    if len(groups) == 1:
        own = listing([f"{w} {mean_std(named[first.name])}" for w, named in values.items()])
        return [f"{lead}: {first.name} has {own}.", *_weak(first)]
    found = [*best(lead, values, mean_std), LEVEL]
    weak = [text for own in groups for text in _weak(own)]
    if not weak:
        found.append(
            "Every loss is well above chance in both directions (recall@1 in batches more than "
            f"{CLEARLY:g} times chance, spread over seeds taken off)."
        )
    return [*found, *weak]


def _weak(own: Group) -> list[str]:
    poor = []
    for direction, words in DIRECTIONS.items():
        name = f"in_batch/{direction}/at1"
        value, chance = own.percent(name), own.percent(f"chance/{name}").mean
        if not value.mean - value.spread > CLEARLY * chance:
            poor.append(f"{words} ({mean_std(value)} %, guessing {chance:.1f} %)")
    if not poor:
        return []
    reason = REASONS.get(own.loss)
    if reason is None:
        ends = [value for value in own.curve("loss", "epoch").mean if math.isfinite(value)]
        moved = f"from {ends[0]:.3g} to {ends[-1]:.3g}" if len(ends) > 1 else "too little"
        reason = f"within this budget its training loss moved {moved}"
    return [f"{own.name} is not well above chance, {listing(poor)}: {reason}."]


# Queries with their answers, and the similarities and plans of a batch, as an evaluation left them.

MATRICES_TITLE = "Similarities and the three-marginal plan of a batch"
MATRICES_CAPTION = (
    "Rows are images, columns captions; the matching caption is on the diagonal. The plan couples "
    "an image with a positive and a negative caption, at the sharpness of the run; shown are its "
    "two pair marginals, as shares of the mass of an image. Mass on the diagonal of the positive "
    "and off the diagonal of the negative one is what Neg-MMIOT trains for."
)
MATRICES = {
    "similarity": "cosine",
    "plan_positive": "plan, positive",
    "plan_negative": "plan, negative",
}


def _pictures(study: Study, groups: Sequence[Group]) -> list[page.Section]:
    """Queries with answers, similarities and plans: of the run, or of each loss of a study."""
    own = read_arrays(study.folder / "gallery.npz", "gallery")
    parts: list[page.Part] = [page.paragraph(MATRICES_CAPTION)]
    for each in groups:
        for run in each.finished:
            kept = read_arrays(study.folder / "galleries" / f"{run.id}.npz", "gallery")
            if kept:
                parts += [f"<h3>{escape(each.name)}, c = {each.c}</h3>", matrices_chart(kept, "")]
    return [
        page.Section(
            "queries", "Queries and answers", answers_html(own) if "queries" in own else ""
        ),
        page.section("matrices-run", MATRICES_TITLE, matrices_chart(own, MATRICES_CAPTION)),
        page.section("matrices", MATRICES_TITLE, *parts),
    ]


def matrices_chart(gallery: Arrays, caption: str) -> Chart:
    """A row of panels before and one after training; equal colours are equal values in both."""
    shown = {
        (key, when): gallery[f"{key}_{when}"].astype(np.float64)
        # Of a plan, each row as shares that sum to one.
        * (1 if key == "similarity" else len(gallery[f"{key}_{when}"]))
        for when in ("before", "after")
        for key in MATRICES
        if f"{key}_{when}" in gallery
    }
    top: dict[str, float] = {}
    for (key, _), values in shown.items():
        top[key] = max(top.get(key, 0.0), float(np.abs(values).max()))
    panels = [_matrix(key, when, values, top[key]) for (key, when), values in shown.items()]
    return Chart("matrices", MATRICES_TITLE, caption, panels)


def _matrix(key: str, when: str, values: Array, limit: float) -> Panel:
    n, signed = len(values), key == "similarity"
    own = float(values.diagonal().mean())
    rest = float((values.sum() - values.trace()) / max(n * n - n, 1))
    colours = "signed" if signed else "share"
    limits = (-limit if signed else 0.0, limit)
    return Panel(
        f"{MATRICES[key]}, {when} training",
        f"{MATRICES[key]}, of {n} pairs {when} training: {number(own)} on average for matching "
        f"pairs, {number(rest)} for the others.",
        [Grid(values, limits, colours=colours, unit="image, caption: ")],
        x=Axis("caption"),
        y=Axis("image"),
    )


def answers_html(arrays: Arrays) -> str:
    """Image → five captions and caption → five images, the right ones marked."""
    pictures = {
        int(position): picture(pixels)
        for position, pixels in zip(arrays["thumbnail_of"], arrays["thumbnails"], strict=True)
    }
    to_text, to_image = [], []
    for row, query in enumerate(int(value) for value in arrays["queries"]):
        own = escape(str(arrays["own_captions"][row]))
        keys = ("answer_captions", "answer_captions_score", "answer_owners")
        captions = zip(*(arrays[key][row] for key in keys), strict=True)
        texts = [(str(text), score, owner == query) for text, score, owner in captions]
        image = f'<img src="{pictures[query]}" alt="image with the caption: {own}">'
        to_text.append(image + listed(texts))
        images = zip(arrays["answer_images"][row], arrays["answer_images_score"][row], strict=True)
        found = [
            (pictures[int(answer)], f"{score:.2f}", "right answer", True)
            if answer == query
            else (pictures[int(answer)], f"{score:.2f}", "wrong answer", False)
            for answer, score in images
        ]
        to_image.append(f"<div><strong>“{own}”</strong>{pictured(found)}</div>")
    told = "Queries were drawn at random, the same for every run; the numbers are cosines, ✓ marks"
    return (
        f"{page.paragraph(f'{told} a right answer.')}\n"
        f"<h3>Image → the five nearest captions</h3>\n{gallery_html(to_text)}\n"
        f"<h3>Caption → the five nearest images</h3>\n{gallery_html(to_image)}"
    )
