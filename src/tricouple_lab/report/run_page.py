"""The page of a run: tables by pandas, figures by matplotlib, put together by Jinja2. No scripts.

Every text is escaped. A section has one fixed paragraph that says how to read it. Of
``Evaluation.arrays`` it draws ``labels`` and ``predicted`` (n,), ``embedding`` and
``embedding_before`` (n, d), ``image`` and ``text`` (n, d) of pairs, and ``probe.examples``.
"""

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape
from PIL import Image
from sklearn.metrics import confusion_matrix

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
    "epoch": "Validation data, and the loss of training batches; epoch 0 is before training.",
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


class Section(NamedTuple):
    """A title, a paragraph, and tables and figures below."""

    title: str
    text: str
    parts: Sequence[Markup]


def run_table(record: Record) -> pd.DataFrame:
    """Return what has a chance level, in percent: a row per metric, chance, before and after."""
    table = {"chance": record.chance, "before training": record.before}
    return 100 * pd.DataFrame(table | {"after training": record.after}).loc[[*record.chance]]


def run_page(record: Record, arrays: Mapping[str, Array] | None = None) -> str:
    """Return the HTML page of one run."""
    arrays = arrays or {}
    evaluation = record.config["evaluation"]
    split = evaluation["split"]
    how = MEASURED.get(record.task, "").format_map(evaluation) + "chance: without an encoder."
    sections = []
    if record.chance:  # a row per metric, so that 400 pixels are enough
        shares = run_table(record).map("{:.1f}".format).rename_axis("metric")
        size = record.data.get("sizes", {}).get(split, "")
        text = f"{split.capitalize()} split, {size} samples, {record.steps} training steps. {how}"
        sections.append(Section("Accuracy (%)", text, [to_html(shares)]))
    both = pd.DataFrame({"before training": record.before, "after training": record.after})
    others = both.drop(index=[*record.chance], errors="ignore").map(number)
    if len(others):
        text = "Of the embeddings of the same samples; they have no chance level."
        parts = [to_html(others.rename_axis("quantity"))]
        sections.append(Section("Other measurements", text, parts))
    classes = record.data.get("classes") or []
    sections += [*_curves(record), *_maps(record, arrays, classes), *_classes(arrays, classes)]
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
    shares = [key for key in keys if key in record.chance]
    chance = 100 * record.chance[record.metric] if record.metric in shares else None
    panels = [("accuracy (%)", shares)] if shares else []
    panels += [(key, [key]) for key in keys if key not in shares]
    drawn = []
    for title, shown in panels[:MOST_FIGURES]:
        lines = []
        for key in shown:
            known = history[[x, key]].dropna().astype(float)
            y = known[key] * (100 if key in shares else 1)
            lines.append(Series(key, list(known[x]), list(y)))
        log_y = "nc" in title and min(lines[0].y) > 0
        level = chance if shown == shares else None
        drawn.append(svg(lines_figure({"": lines}, x, title, log_y=log_y, chance=level)))
    if drawn:
        text = TRAINING[x] + " Dotted: chance." * (chance is not None)
        yield Section("Training", text, drawn)


def _maps(record: Record, arrays: Mapping[str, Array], classes: Sequence[str]) -> Iterator[Section]:
    """Embeddings in the plane: of samples by class, or of images and texts."""
    labels, points = arrays.get("labels", np.zeros(0)), {}
    if {"image", "text"} <= arrays.keys():
        pairs = [arrays[key][:250] for key in ("image", "text")]
        labels, classes = np.repeat([0, 1], [len(rows) for rows in pairs]), ["images", "texts"]
        points = {"": plane(np.concatenate(pairs))}
    elif len(labels):
        found = {"before training": "embedding_before", "after training": "embedding"}
        points = {when: plane(arrays[key], labels) for when, key in found.items() if key in arrays}
    if points:
        text = (
            "The embeddings on two principal axes, of the class means if there are several classes;"
            " other directions are not shown."
        )
        drawn = [map_figure({when: rows}, labels, classes) for when, rows in points.items()]
        yield Section("Map", text, [svg(figure) for figure in drawn])


def _classes(arrays: Mapping[str, Array], classes: Sequence[str]) -> Iterator[Section]:
    """Accuracy per class, and what classes are taken for."""
    if not {"labels", "predicted"} <= arrays.keys() or not len(arrays["labels"]):
        return
    both = arrays["labels"], arrays["predicted"]
    shares = confusion_matrix(*both, labels=range(len(classes)), normalize="true")
    seen = np.unique(arrays["labels"])
    names = [classes[label] for label in seen]
    accuracy = pd.Series(100 * shares.diagonal()[seen], names, name="accuracy (%)")
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
        answers, scores = arrays[f"{stem}answers"], arrays[f"{stem}scores"]
        right, rows = arrays.get(f"{stem}right"), Markup("")
        for i, query in enumerate(arrays[key][:MOST_EXAMPLES]):
            cells = Markup("")
            for j, answer in enumerate(answers[i]):
                mark = "" if right is None else (" ✓" if right[i, j] else " ✗")
                cell = Markup("<li>{} <small>{:.2f}{}</small></li>")
                cells += cell.format(_item(answer), scores[i, j], mark)
            rows += Markup('<div class="example">{}<ol>{}</ol></div>').format(_item(query), cells)
        way = stem.removeprefix("examples").strip("_").replace("_", " ")
        title = "Examples" + (f": {way}" if way else "")
        text = "Random queries and what is nearest to them; the number is the cosine. ✓: right."
        yield Section(title, text, [rows])


def _item(value: Any) -> Markup:
    """Return a text, escaped, or an image, at most 48 pixels high, as a data URI."""
    if isinstance(value, str):
        return Markup("<span>{}</span>").format(value)
    picture, buffer = Image.fromarray(value), io.BytesIO()
    picture.thumbnail((48, 48))
    kind = "jpeg" if min(picture.size) >= 32 else "png"
    picture.save(buffer, kind, quality=80)
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
    origin = pd.DataFrame(list(runs["provenance"]))
    last = runs["provenance"].iloc[-1]
    versions = last.get("versions") or {k: last[k] for k in ("torch", "tricouple") if k in last}

    def values(column: Any, length: int) -> str:
        known = column.dropna().astype(str).str[:length].unique() if column is not None else []
        return ", ".join(known[:5]) or "unknown"

    seeds = sorted(runs.loc[runs["stage"] != "choose", "seed"].unique())
    commits, commands = values(origin.get("commit"), 12), values(origin.get("command"), 200)
    return [
        f"runs: {len(runs)}, seeds: {', '.join(map(str, seeds))}, {values(origin.get('date'), 10)}",
        f"commit {commits}: {commands}",
        f"data {values(runs.get('data.digest'), 12)}",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]


def number(value: float, share: bool = False) -> str:
    """Write a value: two decimals of a percentage, three significant digits of others."""
    if pd.isna(value):
        return "–"
    return f"{value:.2f}" if share else f"{value:.3g}"


def method_name(loss: Mapping[str, Any]) -> str:
    """Return a loss with its arguments, such as ``IOT, c = 10``."""
    return ", ".join(title(f"loss.{key}", loss[key]) for key in sorted(loss, key="name".__ne__))


def title(key: str, value: Any) -> str:
    """Return a setting as a table writes it: ``CIFAR-10``, ``c = 10``, ``K = 50``."""
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
