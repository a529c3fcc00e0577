"""The page of a run: tables by pandas, figures by matplotlib, put together by Jinja2. No scripts.

Every text is escaped. A section has one fixed paragraph that says how to read it.

What the page of a run draws of ``Evaluation.arrays`` (n samples, at most 2,000):
``labels`` and ``predicted`` (n,), ``embedding`` and ``embedding_before`` (n, d); ``image`` and
``text`` (n, d) of pairs. Examples, as ``examples_queries`` (q,) or any other
``examples…_queries``: texts, or images as uint8 (q, h, w, 3); the same with ``answers`` (q, k),
``scores`` (q, k) and ``right`` (q, k, bool).
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from tricouple_lab import names
from tricouple_lab.report.figures import (
    MOST_CLASSES,
    Array,
    Series,
    confusion_figure,
    lines_figure,
    map_figure,
    plane,
    svg,
)
from tricouple_lab.runs.folder import Record

TEMPLATES = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
MOST_FIGURES = 4  # of one kind, so that a page stays small
MOST_EXAMPLES = 8

TRAINING = {
    "epoch": "Measured on validation data; row 0 is before training.",
    "step": "Measured during training.",
}
MEASURED = {
    "images": "knn: {knn_k} neighbours. linear: logistic regression, weight decay "
    "{probe_weight_decay:g}. features: before the head, embedding: after it. ",
    "clip": "recall@k: share of queries whose caption or image is among the first k of the whole "
    "split; recall_in_batch: among the pairs of a batch. ",
    "text": "ncm: nearest class mean. knn: {knn_k} neighbours. linear: logistic regression, "
    "weight decay {probe_weight_decay:g}. ",
    "mixture": "knn: {knn_k} neighbours. nc1: scatter within classes over scatter between them. "
    "nc2_deviation: distance of the class means from a simplex, all angles equal (0). ",
}


@dataclass(frozen=True)
class Section:
    """A title, a paragraph, and tables and figures below."""

    title: str
    text: str
    parts: Sequence[Markup]


def run_table(record: Record) -> pd.DataFrame:
    """Return what has a chance level, in percent: rows chance, before and after training."""
    table = {"chance": record.chance, "before training": record.before}
    rows = pd.DataFrame(table | {"after training": record.after})
    return 100 * rows.loc[[*record.chance]].T


def run_page(record: Record, arrays: Mapping[str, Array] | None = None) -> str:
    """Return the HTML page of one run."""
    arrays = arrays or {}
    evaluation = record.config["evaluation"]
    split = evaluation["split"]
    how = MEASURED.get(record.task, "").format_map(evaluation)
    sections = []
    if record.chance:  # a row per metric, so that 400 pixels are enough
        shares = run_table(record).T.map("{:.1f}".format).rename_axis("metric")
        size = record.data.get("sizes", {}).get(split, "")
        text = f"{split.capitalize()} split, {size} samples. {how}chance: without an encoder."
        sections.append(Section("Accuracy (%)", text, [to_html(shares)]))
    both = pd.DataFrame({"before training": record.before, "after training": record.after})
    others = both.drop(index=[*record.chance], errors="ignore").map(number)
    if len(others):
        text = "Of the embeddings of the same samples; they have no chance level."
        parts = [to_html(others.rename_axis("quantity"))]
        sections.append(Section("Other measurements", text, parts))
    sections += [*_curves(record), *_maps(record, arrays), *_classes(record, arrays)]
    sections += _examples(arrays)
    about = {"provenance": record.provenance, "seed": record.config["seed"], "stage": record.stage}
    runs = pd.DataFrame([{**about, "data.digest": record.data["digest"]}])
    title = f"{record.data['name']}: {method_name(record.config['loss'])}, seed {about['seed']}"
    return render(title, sections, runs)


def _curves(record: Record) -> Iterator[Section]:
    """Accuracy, loss and geometry over training."""
    history = pd.DataFrame(record.curves)
    x = "step" if record.task == "mixture" and "step" in history else "epoch"
    keys = [key for key in history if "/" in key or key == "loss"]
    keys = [key for key in keys if history[key].notna().sum() > 1]
    accuracies = [key for key in keys if key in record.chance]
    chance = 100 * record.chance[record.metric] if record.metric in accuracies else None
    panels = [("accuracy (%)", accuracies)] if accuracies else []
    panels += [(key, [key]) for key in keys if key not in accuracies]
    drawn = []
    for title, shown in panels[:MOST_FIGURES]:
        share = title == "accuracy (%)"
        lines = [_series(history, x, key, 100 if share else 1) for key in shown]
        options = {"chance": chance} if share else {"log_y": "nc" in title and min(lines[0].y) > 0}
        drawn.append(svg(lines_figure({"": lines}, x, title, **options)))
    if drawn:
        text = TRAINING[x] + " Dotted: chance." * (chance is not None)
        yield Section("Training", text, drawn)


def _series(history: pd.DataFrame, x: str, key: str, factor: float) -> Series:
    known = history[[x, key]].dropna()
    return Series(key, list(known[x]), list(factor * known[key].astype(float)))


def _maps(record: Record, arrays: Mapping[str, Array]) -> Iterator[Section]:
    """Embeddings in the plane: of samples by class, or of images and texts."""
    labels, classes, points = arrays.get("labels", np.zeros(0)), _class_names(record, arrays), {}
    if {"image", "text"} <= arrays.keys():
        pairs = [arrays[key][:250] for key in ("image", "text")]
        labels, classes = np.repeat([0, 1], [len(rows) for rows in pairs]), ["images", "texts"]
        points = {"": plane(np.concatenate(pairs))}
    elif len(labels):
        found = {"before training": "embedding_before", "after training": "embedding"}
        found = {when: key for when, key in found.items() if key in arrays}
        points = {when: plane(arrays[key], labels) for when, key in found.items()}
    if points:
        text = (
            "The embeddings on two principal axes, of the class means if there are several classes;"
            " other directions are not shown."
        )
        drawn = [map_figure({when: rows}, labels, classes) for when, rows in points.items()]
        yield Section("Map", text, [svg(figure) for figure in drawn])


def _class_names(record: Record, arrays: Mapping[str, Array]) -> list[str]:
    given = [*map(str, arrays.get("classes", record.data.get("classes") or []))]
    found = [arrays[key].max() for key in ("labels", "predicted") if len(arrays.get(key, ()))]
    count = int(max(found, default=-1)) + 1
    return given if len(given) >= count else [*map(str, range(count))]


def _classes(record: Record, arrays: Mapping[str, Array]) -> Iterator[Section]:
    """Accuracy per class, and what classes are taken for."""
    if not {"labels", "predicted"} <= arrays.keys() or not len(arrays["labels"]):
        return
    classes = _class_names(record, arrays)
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (arrays["labels"].astype(int), arrays["predicted"].astype(int)), 1)
    shares = counts / np.maximum(counts.sum(axis=1), 1)[:, None]
    seen = np.flatnonzero(counts.sum(axis=1))
    accuracy = pd.Series(
        100 * shares.diagonal()[seen], [classes[i] for i in seen], name="accuracy (%)"
    )
    table = accuracy.sort_values(kind="stable").map("{:.1f}".format).to_frame().rename_axis("class")
    parts = [svg(confusion_figure(shares, classes))] if len(classes) <= MOST_CLASSES else []
    text = (
        "Predictions for the same samples. In the matrix a row is a true class, in percent of its "
        f"samples; below, up to {MOST_CLASSES} classes by accuracy, lowest first."
    )
    yield Section("Classes", text, [*parts, to_html(table[:MOST_CLASSES])])


def _examples(arrays: Mapping[str, Array]) -> Iterator[Section]:
    """Queries with their nearest neighbours or answers."""
    for key in [key for key in arrays if key.startswith("examples") and key.endswith("_queries")]:
        stem = key.removesuffix("queries")
        queries, answers = arrays[key][:MOST_EXAMPLES], arrays[f"{stem}answers"]
        scores, right = arrays.get(f"{stem}scores"), arrays.get(f"{stem}right")
        rows = Markup("")
        for i, query in enumerate(queries):
            cells = Markup("")
            for j, answer in enumerate(answers[i]):
                mark = "" if right is None else (" ✓" if right[i, j] else " ✗")
                score = "" if scores is None else f"{scores[i, j]:.2f}"
                cells += Markup("<li>{} <small>{}</small></li>").format(_item(answer), score + mark)
            rows += Markup('<div class="example">{}<ol>{}</ol></div>').format(_item(query), cells)
        way = stem.removeprefix("examples").strip("_").replace("_", " ")
        title = "Examples" + (f": {way}" if way else "")
        text = "Random queries and what is nearest to them; the number is the cosine. ✓: right."
        yield Section(title, text, [rows])


def _item(value: Any) -> Markup:
    """Return a text, escaped, or an image, at most 48 pixels high, as a data URI."""
    if isinstance(value, str):
        return Markup("<span>{}</span>").format(value)
    from PIL import Image

    picture = Image.fromarray(np.asarray(value, dtype=np.uint8).squeeze())
    picture.thumbnail((48, 48))
    buffer = io.BytesIO()
    if min(picture.size) >= 32:
        picture.convert("RGB").save(buffer, "JPEG", quality=80)
    else:
        picture.save(buffer, "PNG")
    kind = "jpeg" if buffer.getvalue()[:2] == b"\xff\xd8" else "png"
    data = base64.b64encode(buffer.getvalue()).decode()
    return Markup(f'<img alt="" src="data:image/{kind};base64,{data}">')


def to_html(table: pd.DataFrame, bold: pd.DataFrame | None = None, caption: str = "") -> Markup:
    """Return a table of texts as HTML, every cell and name escaped."""
    cells = table.map(escape)
    if bold is not None:
        cells = cells.where(~bold.to_numpy(), cells.map(Markup("<strong>{}</strong>").format))
    for axis in ("index", "columns"):  # long names break after a slash or underscore
        shown = [re.sub("([/_])", r"\1<wbr>", str(escape(name))) for name in getattr(cells, axis)]
        setattr(cells, axis, pd.Index(shown, dtype=object))
    cells = cells.rename_axis(columns=table.index.name, index=None)
    above = Markup("<h3>{}</h3>").format(caption) if caption else Markup("")
    html = cells.to_html(escape=False, border=0)
    return above + Markup(f'<div class="wide">{html}</div>')


def render(title: str, sections: Sequence[Section], runs: pd.DataFrame) -> str:
    """Fill the template; the footer says where the numbers come from."""
    style = Markup((Path(__file__).parent / "style.css").read_text(encoding="utf-8"))
    return TEMPLATES.get_template("template.html").render(
        title=title, sections=sections, footer=footer(runs), style=style
    )


def footer(runs: pd.DataFrame) -> list[str]:
    """Return commit, command, date, seeds, data and versions, a line each."""
    if runs.empty:
        return ["No run has finished."]
    origins = pd.DataFrame(list(runs["provenance"]))
    last = runs["provenance"].iloc[-1]
    versions = last.get("versions") or {
        key: last[key] for key in ("torch", "tricouple") if key in last
    }
    digests = runs["data.digest"].dropna().unique() if "data.digest" in runs else []

    def values(key: str, length: int = 200) -> str:
        known = origins[key].dropna().astype(str).str[:length].unique() if key in origins else []
        return ", ".join(known[:5]) or "unknown"

    seeds = sorted(runs.loc[runs["stage"] != "choose", "seed"].unique())
    return [
        f"{len(runs)} runs, seeds {', '.join(map(str, seeds))}, {values('date', 10)}",
        f"commit {values('commit', 12)}: {values('command')}",
        f"data {', '.join(digest[:12] for digest in digests[:5]) or 'unknown'}",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]


def number(value: float, share: bool = False) -> str:
    """Write a value: two decimals of a percentage, three significant digits of others."""
    if pd.isna(value):
        return "–"
    return f"{value:.2f}" if share else f"{value:.3g}"


def method_name(loss: Mapping[str, Any]) -> str:
    """Return a loss with its arguments.

    Example:
        >>> method_name({"name": "iot", "sharpness": 10.0})
        'IOT, c = 10'
    """
    return ", ".join(title(f"loss.{key}", loss[key]) for key in sorted(loss, key="name".__ne__))


def title(key: str, value: Any) -> str:
    """Return a setting as a table writes it: ``CIFAR-10``, ``c = 10``, ``K = 50``.

    Example:
        >>> title("loss.name", "pushpull"), title("loss.sharpness", 10.0), title("data.shots", 10)
        ('PushPull', 'c = 10', 'shots = 10')
    """
    tables: dict[str, Mapping[str, Any]] = {
        "loss.name": names.LOSSES,
        "backbone.name": names.BACKBONES,
        "data.name": names.IMAGES | names.CAPTIONS | names.TEXTS | names.MIXTURES,
        "model.name": names.CLIP_MODELS | names.TEXT_MODELS,
    }
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if key in tables:
        return tables[key][text].title if text in tables[key] else text
    if key in ("condition", "setting"):
        return text
    short = {"loss.sharpness": "c", "data.n_classes": "K", "loss.shaping": "ψ"}
    return f"{short.get(key, key.split('.')[-1])} = {text}"
