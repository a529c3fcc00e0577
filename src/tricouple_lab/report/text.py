"""Sentence encoders: accuracy at equal and at the best c, nearest texts, confusions, a map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from operator import neg, pos
from typing import Any

import numpy as np

from tricouple_lab.names import DATA, ENCODERS, loss_name, rank
from tricouple_lab.report import curves, embeddings
from tricouple_lab.report.chart import Chart, Cloud, Panel
from tricouple_lab.report.draw_matplotlib import png
from tricouple_lab.report.groups import Group, Needs, by_place, gaps, group, one_seed, steps_of
from tricouple_lab.report.numbers import LEVEL, NOTHING, best, percent, plain
from tricouple_lab.report.page import Article, Files, Part, chart_sections, paragraph, section
from tricouple_lab.report.read import Arrays, Study
from tricouple_lab.report.tables import Badness, Column, Table, measured_table

NEEDS: Needs = {"loss": str, "data": str, "model": str, "seed": int}
LEAD = (
    "Sentence encoders trained with contrastive losses on texts with classes or on pairs of texts. "
    "The class of a text is asked for, by the nearest class mean, by neighbours and by a linear "
    "probe, and whether it belongs to any; or which text belongs to it."
)
RIGHT = "right"
MEASURES: dict[str, tuple[str, Badness]] = {
    "ncm": ("nearest class mean", neg),
    "knn": ("k-NN", neg),
    "linear": ("linear probe", neg),
    "auroc": ("out of scope: AUROC", neg),
    "fpr95": ("FPR at 95 % TPR", pos),
    "there/at1": ("text → pair @1", neg),
    "there/at5": ("text → pair @5", neg),
    "back/at1": ("pair → text @1", neg),
    "back/at5": ("pair → text @5", neg),
}
CURVES = ("loss", "recall", "alpha", "beta", "effective_rank", "nc2_deviation")
OVER_C = (
    "Test texts classified by the nearest class mean (of pairs: recall@1, the mean of both "
    "directions) over the sharpness c = 1/(τε) (1/ε for IOT, 1/τ for InfoNCE)."
)
NEAREST = (
    "Texts drawn at random, and the ones whose embeddings are nearest; numbers are cosines. ✓ is "
    "for one of the same class, or the right answer."
)
CONFUSED = "Classes that the nearest class mean takes for others most often, and a text of each"
MAP = (
    "Texts by t-SNE of their features before and after training, coloured and shaped by class; of "
    "many classes the ones that are confused most. It keeps neighbours together and nothing else: "
    "read whether classes are apart, not how far."
)


def article(study: Study) -> Article:
    """Return everything the page says about a study, or about runs."""
    groups, everywhere = finals(study), at_every_c(study)
    measured = tables(groups, everywhere) if groups else []
    return Article(
        title=f"Texts: {study.name}",
        lead=LEAD,
        sections=[
            section("results", "What was measured", *measured),
            *embeddings.gallery_sections(embeddings.galleries(study, groups, c=True), _drawn),
            *chart_sections([sharpness_chart(study), curves_chart(groups)]),
        ],
        found=headline(groups, everywhere),
        missing=gaps(study, groups),
    )


def files(study: Study) -> Files:
    """What the documentation shows: the tables, accuracy over c, a map."""
    groups, everywhere = finals(study), at_every_c(study)
    points = "".join(f"- {text}\n" for text in headline(groups, everywhere))
    found: Files = {
        "text-table.md": [*tables(groups, everywhere), points],
        "text-sharpness.png": png(sharpness_chart(study), height=3.5),
    }
    for gallery in list(embeddings.galleries(study, groups, c=True).values())[:1]:
        found["text-map.png"] = png(map_chart(gallery), columns=2, height=5)
    return found


def terminal(study: Study) -> list[Table | str]:
    """The tables for a terminal, and what is missing."""
    groups = finals(study)
    return [*tables(groups, at_every_c(study)), *gaps(study, groups)[:1]]


def finals(study: Study) -> list[Group]:
    """The final runs of every loss that has a finished one."""
    return _finished(study, "final")


def at_every_c(study: Study) -> list[Group]:
    """The runs on test texts at every c: of a study, the ones that were not chosen too."""
    return _finished(study, "final", "equal")


def _finished(study: Study, *parts: str) -> list[Group]:
    found = group(study.part(*parts), NEEDS, _place, _order)
    return [own for own in found if own.finished]


def tables(groups: Sequence[Group], everywhere: Sequence[Group]) -> list[Table]:
    """What was measured, at the c of each loss and at equal c."""
    return [*accuracy_tables(groups), *equal_tables(groups, everywhere)]


def _place(config: dict[str, Any]) -> str:
    """What losses are compared on."""
    data, model, shots = config["data"], config["model"], config.get("shots")
    few = f", {shots} texts a class" if shots else ""
    return f"{DATA.get(data, data)}{few}, {ENCODERS.get(model, model)}"


def _order(config: dict[str, Any]) -> tuple[object, ...]:
    return (rank(config["data"], DATA), config.get("shots") or math.inf, config["model"])


def accuracy_tables(groups: Sequence[Group]) -> list[Table]:
    """Every measure at the c of each loss, below the encoder as it was; one table a place."""
    tables = []
    for place, own in by_place(groups).items():
        names = [(each.name, each.c) for each in own]
        frozen = not own[0].config["model"].endswith("-tuned")
        if frozen:
            names.append(("the encoder as it is", "–"))
        columns = []
        for key, (title, badness) in MEASURES.items():
            values = [each.percent(f"embedding/{key}") for each in own]
            if any(math.isfinite(value.mean) for value in values):
                before = [own[0].percent(f"penultimate/{key}")] if frozen else []
                columns.append(Column(title, [*values, *before], badness, percent))
        caption = f"{place}: test texts, %, after {steps_of(own)}, mean ± std over seeds"
        tables.append(measured_table(caption, ("loss", "c"), names, columns))
    return tables


def equal_tables(groups: Sequence[Group], everywhere: Sequence[Group]) -> list[Table]:
    """The nearest class mean (of pairs: recall@1) at each c, and at the chosen one."""
    tables = []
    chosen = {(own.place, own.loss): own for own in groups}
    alone = len(chosen) == len(groups)  # otherwise nothing was chosen: a folder of runs
    for place, own in by_place(everywhere).items():
        cs = sorted({each.sharpness for each in own if math.isfinite(each.sharpness)})
        losses = list(dict.fromkeys(each.loss for each in own if math.isfinite(each.sharpness)))
        if len(cs) < 2:
            continue
        at = {(each.loss, each.sharpness): each.percent(RIGHT) for each in own}
        columns = [
            Column(f"c = {plain(c)}", [at.get((k, c), NOTHING) for k in losses], neg, percent)
            for c in cs
        ]
        if alone:
            best_c = [chosen.get((place, key)) for key in losses]
            values = [each.percent(RIGHT) if each else NOTHING for each in best_c]
            columns.append(Column("at its own c", values, neg, percent))
        names = [(loss_name(key),) for key in losses]
        what = "nearest class mean" if own[0].metric("embedding/ncm").count else "recall@1"
        note = "; its own c was chosen on validation texts, at the first seed" if alone else ""
        caption = f"{place}: {what} at equal c, %, the best of a column in bold{note}"
        tables.append(measured_table(caption, ("loss",), names, columns))
    return tables


def sharpness_chart(study: Study) -> Chart:
    """Test accuracy over c; of a study without such runs, that on validation texts."""
    tested = study.part("equal") or not study.part("sharpness")
    sweep = group(study.part("sharpness"), NEEDS, _place, _order)
    groups = at_every_c(study) if tested else sweep
    lines = curves.over_sharpness(groups, RIGHT)
    told = f"{OVER_C} After {steps_of(groups)}." if groups else OVER_C
    if not tested:
        told = told.replace("Test texts", "Validation texts")
    title = "Which sharpness suits each loss"
    return curves.sharpness_chart(lines, {RIGHT: "right"}, title, told)


def curves_chart(groups: Sequence[Group]) -> Chart:
    """Loss and geometry, or recall, of held-out texts over the epochs."""
    caption, panels = curves.HELD_OUT.format("texts"), curves.during_training(groups, CURVES)
    return Chart("curves", "During training", caption, panels)


def headline(groups: Sequence[Group], everywhere: Sequence[Group]) -> list[str]:
    """What was found; nothing if nothing has finished."""
    places = by_place(groups)
    own = {place: {g.name: g.percent(RIGHT) for g in found} for place, found in places.items()}
    single = len(groups) == 1
    found = [
        f"{place}: {name} answers {percent(value)} % of the test texts right."
        for place, named in own.items()
        for name, value in named.items()
        if single
    ]
    found += best("Right at the c of each loss, %", own, percent)
    equal = {
        f"{place} at c = {plain(c)}": {
            loss_name(g.loss): g.percent(RIGHT) for g in here if g.sharpness == c
        }
        for place, here in by_place(everywhere).items()
        for c in sorted({g.sharpness for g in here if math.isfinite(g.sharpness)})
    }
    if len(equal) > len(places):
        found += best("Right at equal c, %", equal, percent)
    before = {
        place: here[0].percent("penultimate/ncm")
        for place, here in places.items()
        if not here[0].config["model"].endswith("-tuned")
    }
    found += [
        f"{place}: the encoder as it is has {percent(value)} % by the nearest class mean."
        for place, value in before.items()
        if math.isfinite(value.mean)
    ]
    rule = [] if single or not found else [LEVEL]
    return [*found, *rule, *one_seed(groups)]


# --- texts, classes and maps, as an evaluation left them -----------------------------------------


def _drawn(arrays: Arrays) -> dict[str, Part]:
    nearest, confused, mapped = nearest_html(arrays), confused_table(arrays), map_chart(arrays)
    return {"Nearest texts": nearest, "Confused classes": confused, mapped.title: mapped}


def nearest_html(arrays: Arrays, told: str = NEAREST) -> str:
    """Texts with the ones that are nearest, right ones marked."""
    classes = [str(name) for name in arrays["classes"]]
    queries = []
    for row, query in enumerate(arrays["queries"]):
        own, answers = "", [str(answer) for answer in arrays["answers"][row]]
        if classes:
            label, labels = arrays["query_labels"][row], arrays["answer_labels"][row]
            own, right = f" ({classes[label]})", labels == label
            named = zip(answers, labels, strict=True)
            answers = [f"{answer} ({classes[code]})" for answer, code in named]
        else:
            right = arrays["right"][row]
        texts = zip(answers, arrays["scores"][row], right, strict=True)
        head = f"<div><strong>{escape(str(query))}</strong>{escape(own)}</div>"
        queries.append(head + embeddings.listed(texts))
    return f"{paragraph(told)}\n{embeddings.gallery_html(queries)}"


def confused_table(arrays: Arrays) -> Table:
    """Which classes are taken for which."""
    classes = [str(name) for name in arrays["classes"]]
    keys = ("confused", "confused_count", "confused_of", "confused_text")
    rows = [
        (classes[true], classes[taken], f"{count} of {of}", str(text))
        for (true, taken), count, of, text in zip(
            *(arrays.get(key, ()) for key in keys), strict=True
        )
    ]
    head = ("true class", "taken for", "how often", "for instance")
    return Table(CONFUSED, head, rows, words=4)


def map_chart(arrays: Arrays) -> Chart:
    """The texts in the plane, before and after training."""
    labels = arrays["map_labels"].astype(np.int64)
    names = [str(name) for name in arrays["map_names"]]
    panels = [
        Panel(
            words,
            f"{len(labels)} texts of {len(names)} kinds, {words}, by t-SNE.",
            [Cloud(embeddings.tsne(arrays[f"map_{kind}"].astype(np.float64)), labels, names=names)],
            reach=1.08,
        )
        for kind, words in {"penultimate": "before the head", "embedding": "after the head"}.items()
    ]
    return Chart("map", "A map of the texts", MAP, panels)
