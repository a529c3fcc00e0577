"""Image encoders: the paper's tables beside ours, accuracy over the sharpness, curves, geometry."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from operator import neg
from typing import Any

from tricouple_lab.names import (
    BACKBONES,
    DATA,
    FEATURES,
    LOSSES,
    MEASURES,
    SETTINGS,
    loss_name,
    rank,
)
from tricouple_lab.report import curves, embeddings
from tricouple_lab.report.chart import Chart
from tricouple_lab.report.curves import OverSharpness
from tricouple_lab.report.draw_matplotlib import png
from tricouple_lab.report.groups import Group, by_place, gaps, group, one_seed, steps_of
from tricouple_lab.report.numbers import LEVEL, NOTHING, MeanStd, best, listing, percent, plain
from tricouple_lab.report.page import (
    Article,
    Files,
    Part,
    asset,
    chart_sections,
    paragraph,
    section,
)
from tricouple_lab.report.read import Arrays, Study
from tricouple_lab.report.tables import Column, Table, best_rows, measured_table

NEEDS = {"setting": str, "data": str, "backbone": str, "loss": str, "seed": int}
LEAD = (
    "Image encoders trained with contrastive losses, with labels (SCL: positives share a class) "
    "and without (UCL: positives are two views of an image), then frozen and judged by a linear "
    "probe and by k nearest neighbours."
)
NOTE = (
    "Mean ± std over seeds, the best mean of a column in bold; c is the sharpness 1/(τε), 1/ε for "
    "IOT, 1/τ for InfoNCE and InvaSpread. Beside it the paper's number for the same data set, "
    "setting, backbone and loss, over four seeds. The paper does not say whether it measures "
    "features before or embeddings after the projection: it stands beside both."
)
OVER_C = (
    "Accuracy against the sharpness c = 1/(τε) (1/ε for IOT, 1/τ for InfoNCE and InvaSpread), at "
    "the same budget for every loss. A ring marks the paper's setting: τ = ε = 0.1, that is "
    "c = 100 for its own two losses and c = 10 for the others."
)
DURING = (
    "Over the epochs, means over seeds with a band of ± one standard deviation. All but the loss "
    "are of the embeddings of held-out images. Losses are on scales of their own: compare the "
    "shapes, not the heights. NC2 is zero at the simplex ETF; the effective rank counts directions."
)
CURVES = ("loss", "nc1", "nc2_deviation", "effective_rank", "alpha", "beta")
GEOMETRY = ("nc1", "nc2_std", "nc2_deviation", "effective_rank", "alpha", "beta")
CHOSEN_BY = "penultimate/knn"  # what the sharpness is chosen by
# What the reader can choose to see: key of the metrics → words.
ACCURACIES = {
    f"{features}/{measure}": f"{MEASURES[measure]}, {FEATURES[features]}"
    for features in FEATURES
    for measure in ("knn", "linear")
}
SEEDS = 4  # of the paper
# Epochs and images of the paper.
BUDGET = {
    "mnist": (100, 60000), "svhn": (100, 73257), "cifar10": (400, 50000),
    "cifar100": (400, 50000), "tiny_imagenet": (400, 100000),
}  # fmt: skip


def article(study: Study) -> Article:
    """Return everything the page says about one study."""
    groups, lines = final_groups(study), sharpness_lines(study)
    tables: list[Part] = [*accuracy_tables(groups), paragraph(NOTE, "quiet"), chosen_table(groups)]
    over_c, during = sharpness_chart(lines), curves_chart(groups)
    return Article(
        title=f"Vision study: {study.name}",
        lead=LEAD,
        sections=[
            section("results", "Accuracy, beside the paper's", *tables),
            *chart_sections([over_c, during]),
            section("geometry", "Geometry of the embeddings", *geometry_tables(groups)),
            *embeddings.gallery_sections(embeddings.galleries(study, groups), _drawn),
        ],
        found=headline(groups, lines),
        missing=missing_from(study, groups),
        choices={
            "measure": ("Accuracy", ACCURACIES if over_c.panels else {}),
            "block": ("Curves of", {g.place: g.place for g in groups if during.panels}),
        },
    )


def _drawn(gallery: Arrays) -> dict[str, Part]:
    confused, mapped = embeddings.evaluation_charts(gallery)
    neighbours = embeddings.evaluation_neighbours(gallery)
    return {confused.title: confused, mapped.title: mapped, "Nearest neighbours": neighbours}


def files(study: Study) -> Files:
    """What the documentation shows: k-NN accuracy over c, tables; confusion and map of a run."""
    chart = sharpness_chart(sharpness_lines(study)).chosen({"measure": CHOSEN_BY})
    groups = final_groups(study)
    notes = [NOTE.replace("Beside it the", "In brackets the"), *notes_on(study, groups)]
    found: Files = {
        "vision-sharpness.png": png(chart, columns=2, height=2.8),
        "vision-table.md": [*accuracy_tables(groups, brackets=True), " ".join(notes), ""],
    }
    for gallery in list(embeddings.galleries(study, groups).values())[:1]:
        for own in embeddings.evaluation_charts(gallery):
            found[f"vision-{own.id}.png"] = png(own, columns=2, height=5)
    return found


def terminal(study: Study) -> list[Table | str]:
    """The tables for a terminal: one for each setting, data set and kind of features."""
    groups = final_groups(study)
    found: dict[tuple[str, str], list[Group]] = {}
    for own in groups:
        found.setdefault((own.config["setting"], own.config["data"]), []).append(own)
    tables = [table for own in found.values() for table in accuracy_tables(own)]
    return [*tables, *notes_on(study, groups)]


def notes_on(study: Study, groups: Sequence[Group]) -> list[str]:
    """What tables of numbers should not be read without."""
    return [*budget(groups), *missing_from(study, groups)[:1]]


def final_groups(study: Study) -> tuple[Group, ...]:
    """The runs that the tables are about."""
    return group(study.part("final", "main"), NEEDS, _block, _order)


def sharpness_lines(study: Study) -> tuple[OverSharpness, ...]:
    """Every loss over c."""
    runs = study.part("sharpness") or study.part("main") or study.part("final")
    return curves.over_sharpness(group(runs, NEEDS, _block, _order), CHOSEN_BY, ring=True)


def missing_from(study: Study, groups: Sequence[Group]) -> list[str]:
    """What is not there, and why."""
    names = [run.id for run in study.runs if run.status == "done" and not run.metrics]
    lacking = [f"No accuracy, for lack of labelled images: {listing(names)}."] if names else []
    return [*gaps(study, groups), *lacking]


def _block(config: dict[str, Any]) -> str:
    """What losses are compared on: a column of the paper's tables."""
    return f"{_column(config)}, {SETTINGS.get(config['setting'], config['setting'])}"


def _column(config: dict[str, Any]) -> str:
    data, backbone = config["data"], config["backbone"]
    return f"{DATA.get(data, data)}, {BACKBONES.get(backbone, backbone)}"


def _order(config: dict[str, Any]) -> tuple[object, ...]:
    """As in the paper: SCL before UCL, MNIST first, small backbones first."""
    tables = {"setting": SETTINGS, "data": DATA, "backbone": BACKBONES}
    return tuple(rank(config[key], table) for key, table in tables.items())


def _done(groups: Sequence[Group]) -> list[Group]:
    return [own for own in groups if own.finished]


def images(own: Group) -> int | None:
    """How many images a group was trained on; None for all of its data set."""
    counted = own.metric("images").mean
    if math.isfinite(counted):
        return int(counted)
    size = own.config.get("train_size")
    return None if size is None else int(size) - int(own.config.get("validation_size") or 0)


def papers_accuracy(config: dict[str, Any], measure: str) -> MeanStd | None:
    """The paper's accuracy in per cent; None where it has no such number.

    Example:
        >>> config = dict(setting="scl", data="mnist", backbone="resnet18", loss="neg_mmiot")
        >>> papers_accuracy(config, "linear")
        MeanStd(mean=99.21, std=0.09, count=4)
    """
    row = _paper().get(tuple(config[key] for key in ("setting", "data", "backbone", "loss")))
    if row is None:
        return None
    return MeanStd(float(row[measure]), float(row[f"{measure}_std"]), SEEDS)


@cache
def _paper() -> dict[tuple[str, ...], dict[str, str]]:
    rows = csv.DictReader(asset("paper_vision.csv").splitlines())
    return {(row["setting"], row["data"], row["backbone"], row["loss"]): row for row in rows}


def accuracy_tables(groups: Sequence[Group], *, brackets: bool = False) -> list[Table]:
    """The paper's tables for both features, one for each setting, of what has finished.

    The paper's means stand beside ours in columns of their own, or in brackets.
    """
    done = _done(groups)
    settings = dict.fromkeys(own.config["setting"] for own in done)
    return [
        _accuracies([g for g in done if g.config["setting"] == s], s, features, brackets=brackets)
        for features in FEATURES
        for s in settings
    ]


def _accuracies(groups: list[Group], setting: str, features: str, *, brackets: bool) -> Table:
    """A row for each loss; for each data set and backbone its c, both accuracies, the paper's."""
    rows = dict.fromkeys(own.name for own in sorted(groups, key=lambda g: rank(g.loss, LOSSES)))
    columns: list[tuple[str, str, list[str], list[int]]] = []  # above, title, cells, bold rows
    for here in by_place(groups).values():
        mine = {own.name: own for own in here}
        own = [mine.get(name) for name in rows]
        above = f"{_column(here[0].config)}, {steps_of(here)}"
        columns.append((above, "c", ["–" if g is None else g.c for g in own], []))
        for measure, title in MEASURES.items():
            key = f"{features}/{measure}"
            ours = Column(title, [g.percent(key) if g else NOTHING for g in own], neg, percent)
            papers = [papers_accuracy(g.config, measure) if g else None for g in own]
            cells = [percent(value) for value in ours.values]
            best_here = best_rows(ours)
            if brackets:
                bold = [f"**{c}**" if row in best_here else c for row, c in enumerate(cells)]
                beside = [f" ({p.mean:.2f})" if p else "" for p in papers]
                cells = [cell + paper for cell, paper in zip(bold, beside, strict=True)]
                best_here = []
            columns.append((above, title, cells, best_here))
            if any(papers) and not brackets:
                beside = [percent(paper) if paper else "–" for paper in papers]
                columns.append((above, "paper", beside, []))
    spans = [(above, len(list(same))) for above, same in groupby(columns, key=lambda c: c[0])]
    words = SETTINGS.get(setting, setting)
    return Table(
        f"{words}: accuracy on the {FEATURES[features]}, %, mean ± std over seeds",
        ("loss", *(title for _, title, _, _ in columns)),
        [(name, *(cells[row] for _, _, cells, _ in columns)) for row, name in enumerate(rows)],
        bold={(row, place) for place, (*_, bold) in enumerate(columns, 1) for row in bold},
        spans=(("", 1), *spans),
    )


def chosen_table(groups: Sequence[Group]) -> Table:
    """The sharpness, the learning rate and the budget of every row of the tables."""
    head = ("loss", "compared on", "c", "learning rate", "epochs", "steps", "images", "seeds")
    rows = [
        (
            loss_name(own.loss),
            own.place,
            own.c,
            *(plain(own.config.get(key)) for key in ("learning_rate", "epochs")),
            steps_of([own]).removesuffix(" steps"),
            plain(images(own) or "all"),
            ", ".join(map(str, own.seeds)),
        )
        for own in _done(groups)
    ]
    return Table("Settings of the runs in the tables", head, rows, words=2)


def geometry_tables(groups: Sequence[Group]) -> Iterator[Table]:
    """NC1, NC2, effective rank, α and β of the embeddings at the end; a table a place."""
    for place, own in by_place(_done(groups)).items():
        columns = [
            Column(curves.SHORT[key], [g.metric(f"embedding/{key}") for g in own])
            for key in GEOMETRY
        ]
        names = [(g.name, g.c) for g in own]
        yield measured_table(f"{place}, {steps_of(own)}", ("loss", "c"), names, columns)


def sharpness_chart(lines: Sequence[OverSharpness]) -> Chart:
    """Accuracy against c, one panel a block; which accuracy is chosen in the page."""
    groups = [own for line in lines for own in line.groups]
    told = [OVER_C]
    if groups:
        told.append(f"After {steps_of(groups)}.")
    parts = {str(own.config.get("evaluated_on")) for own in groups}
    if len(parts) == 1:
        told.append(f"Measured on {parts.pop()} images.")
    seeds = {own.seeds for own in groups}
    if len(seeds) == 1:
        only = seeds.pop()
        told.append(f"Seed{'s'[: len(only) > 1]} {listing(only)}.")
    return curves.sharpness_chart(lines, ACCURACIES, "Accuracy against sharpness", " ".join(told))


def curves_chart(groups: Sequence[Group]) -> Chart:
    """The loss, and the geometry of held-out embeddings; the block is chosen in the page."""
    panels = curves.during_training(groups, CURVES, lambda own: {"block": own.place})
    numbers = curves.last_table(groups, CURVES)
    return Chart("curves", "During training", DURING, panels, [numbers])


def headline(groups: Sequence[Group], lines: Sequence[OverSharpness]) -> list[str]:
    """What was found; nothing if nothing has finished."""
    compared: list[str] = []
    for features, words in FEATURES.items():
        key = f"{features}/linear"  # what the paper's main table shows
        values = {p: {g.name: g.percent(key) for g in own} for p, own in by_place(groups).items()}
        compared += best(f"Linear probe on the {words}, %", values, percent)
    rule = [LEVEL] if compared else []
    return [*compared, *rule, *_cost(lines), *budget(groups), *one_seed(groups)]


def _cost(lines: Sequence[OverSharpness]) -> Iterator[str]:
    """What the paper's c costs every loss against the best of those that were tried."""
    costs: dict[str, list[float]] = {}
    for line in lines:
        points = line.points(CHOSEN_BY)
        if line.papers in points:
            top = max(value.mean for value in points.values())
            costs.setdefault(line.loss, []).append(top - points[line.papers].mean)
    parts = []
    for loss, lost in costs.items():
        ends = dict.fromkeys(f"{value:.1f}" for value in (min(lost), max(lost)))
        c = plain(LOSSES[loss].paper_sharpness)
        parts.append(f"{loss_name(loss)} {' to '.join(ends)} (c = {c})")
    if parts:
        yield (
            "At the paper's sharpness instead of the best tried, k-NN accuracy is lower by "
            f"percentage points: {'; '.join(parts)}."
        )


def budget(groups: Sequence[Group]) -> Iterator[str]:
    """Say for each data set how the runs differ from the paper's; nothing where they do not."""
    clauses: dict[str, list[str]] = {}
    for data in dict.fromkeys(own.config["data"] for own in _done(groups)):
        own = [g for g in _done(groups) if g.config["data"] == data]
        epochs, size = BUDGET.get(data, (None, None))
        if epochs is None or all(
            g.config.get("epochs") == epochs and images(g) in (None, size) for g in own
        ):
            continue
        ours = {f"{g.config.get('epochs')} epochs on {images(g) or 'all'} images" for g in own}
        words = f"{listing(sorted(ours))} ({steps_of(own)}) here"
        theirs = f"{epochs} epochs on {size} images in the paper"
        clauses.setdefault(f"{words}, {theirs}", []).append(DATA[data])
    if clauses:
        parts = "; ".join(f"{listing(names)}: {text}" for text, names in clauses.items())
        yield (
            f"The budget is not the paper's ({parts}): its numbers show what is within reach, "
            "not what these runs should have reached."
        )
