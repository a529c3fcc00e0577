"""Pictures of embeddings: t-SNE, the circle view, the movie of a training, a confusion matrix."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.console import Console

from tricouple_lab.names import FEATURES
from tricouple_lab.report.chart import Array, Axis, Chart, Cloud, Grid, Panel
from tricouple_lab.report.groups import Group
from tricouple_lab.report.numbers import number
from tricouple_lab.report.page import Part, Section, paragraph, part_html
from tricouple_lab.report.read import Arrays, Study, StudyError, read_arrays
from tricouple_lab.report.sweeps import choice

Labels = npt.NDArray[np.int64]

# Enough to see classes, few enough for t-SNE in a second and for smooth motion on a phone.
MOST_POINTS = 300
MOST_FRAMES = 30
MOST_GALLERIES = 6  # of a folder of runs; the report of a single one shows any other
LEGIBLE = 20  # with more classes than this, names and numbers would overlap
TSNE = (
    "Each dot is a sample at the end of training, coloured and shaped by class; one seed. t-SNE "
    "keeps neighbours together and nothing else: read whether classes are apart, not how far."
)
CIRCLE = (
    "The embeddings seen in the plane of the two leading directions of their class means. Small "
    "dots: samples, moved out to the unit circle, so that only their direction counts. Spokes: "
    "class means where they fall in that plane; the closer to the rim, the more of the mean lies "
    "in it. A full circle has classes pointing every way; one narrow sector is dimensional "
    "collapse. Many classes cannot be equally far apart in a plane: spokes of different length "
    "are no fault."
)
MOVIE = (
    "The unit embeddings of one seed, projected on the plane of the two leading directions that "
    "their class means have at the last step; the circle has radius 1. The plane stays fixed, so "
    "what moves is the embedding. Move the slider, or press play."
)


@dataclass(frozen=True)
class Picture:
    """The unit embeddings of one run at several steps: (S,), (S, n, d) and (n,)."""

    group: Group
    name: str  # method, ψ, place and seed in words
    steps: tuple[int, ...]
    embeddings: Array
    labels: Labels


def read_pictures(study: Study, groups: Sequence[Group]) -> list[Picture]:
    """Read the snapshots of the first seed that has some, for every group."""
    found = []
    for own in groups:
        for run in own.shown:
            snapshot = study.snapshot(run)
            if snapshot is None:
                continue
            # A run that diverged has steps without numbers: nothing to draw there.
            finite = np.isfinite(snapshot.embeddings).all(axis=(1, 2))
            if finite.any():
                chosen = thin(len(snapshot.labels), MOST_POINTS)
                z = unit(snapshot.embeddings[finite][:, chosen])
                steps = tuple(int(step) for step in snapshot.steps[finite])
                name = f"{own.full_name}, seed {run.config['seed']}"
                found.append(Picture(own, name, steps, z, snapshot.labels[chosen]))
                break
    return found


def tsne_chart(pictures: Sequence[Picture]) -> Chart:
    """t-SNE of the final embeddings, one small panel for each method."""
    places = count(1)
    with Console(stderr=True).status("t-SNE …") as status:

        def drawn(picture: Picture) -> tuple[Cloud, str]:
            status.update(f"t-SNE, {next(places)} of {len(pictures)}: {picture.name}")
            at = tsne(picture.embeddings[-1])
            distances = np.square(at[:, None] - at).sum(axis=2)
            np.fill_diagonal(distances, np.inf)
            pure = (picture.labels[distances.argmin(axis=1)] == picture.labels).mean()
            words = f"{number(100 * pure)} % of the samples lie nearest to one of their own class"
            return Cloud(at, picture.labels, when=choice(picture.group)), words

        panels = _panels(pictures, drawn, "t-SNE", 1.08, circle=False)
    return Chart("tsne", "The final embeddings, by t-SNE", TSNE, panels)


def circle_chart(pictures: Sequence[Picture]) -> Chart:
    """Which ways the classes point, by method."""

    def drawn(picture: Picture) -> tuple[Cloud, str]:
        z = picture.embeddings[-1]
        means = class_means(z, picture.labels)
        plane = leading_plane(means)
        ends = means @ plane
        angles = np.sort(np.degrees(np.arctan2(ends[:, 1], ends[:, 0])))
        gap = float(np.diff(np.append(angles, angles[0] + 360)).max())
        cloud = Cloud(unit(z @ plane), picture.labels, 5, ends, when=choice(picture.group))
        return cloud, f"class means point over {number(360 - gap)} of 360 degrees"

    panels = _panels(pictures, drawn, "Circle view", 1.12)
    return Chart("circle", "The final embeddings, on a circle", CIRCLE, panels)


def movie_chart(pictures: Sequence[Picture]) -> Chart:
    """The same plane at every step, moved through by a slider."""

    def drawn(picture: Picture) -> tuple[Cloud, str]:
        plane = leading_plane(class_means(picture.embeddings[-1], picture.labels))
        frames = thin(len(picture.steps), MOST_FRAMES)
        at = picture.embeddings[frames] @ plane  # (S, n, 2)
        lengths = [np.linalg.norm(class_means(at[i], picture.labels), axis=1) for i in (0, -1)]
        first, last = (number(float(length.mean())) for length in lengths)
        steps = [picture.steps[frame] for frame in frames]
        cloud = Cloud(at, picture.labels, steps=steps, when=choice(picture.group))
        return cloud, f"class means move from radius {first} to {last}"

    moving = [picture for picture in pictures if len(picture.steps) > 1]
    panels = _panels(moving, drawn, "Over training", 1.08)
    return Chart("movie", "The embedding during training", MOVIE, panels)


def _panels(
    pictures: Sequence[Picture],
    drawn: Callable[[Picture], tuple[Cloud, str]],
    lead: str,
    reach: float,
    *,
    circle: bool = True,
) -> list[Panel]:
    """One for each method, from dots and words for each picture; the page chooses K and ψ."""
    by_name: dict[str, list[tuple[Cloud, str]]] = {}
    for picture in pictures:
        cloud, words = drawn(picture)
        own = by_name.setdefault(picture.group.short_name, [])
        own.append((cloud, f"{picture.name}: {words}"))
    panels = []
    for name, own in by_name.items():
        alt = f"{lead}. {'; '.join(words for _, words in own)}."
        panels.append(Panel(name, alt, [cloud for cloud, _ in own], reach=reach, circle=circle))
    return panels


CONFUSION = (
    "What the linear probe takes test images of each class for, in per cent of the class; the "
    "diagonal is right."
)
MAP = (
    "Test images by t-SNE of their features, coloured and shaped by class. It keeps neighbours "
    "together and nothing else: read whether classes are apart, not how far."
)
NEAREST = (
    "Test images, drawn at random, and the training images whose embeddings are nearest; numbers "
    "are cosines, ✓ marks one of the same class."
)


def evaluation_charts(gallery: Arrays) -> tuple[Chart, Chart]:
    """What a linear probe confuses, a map of the features it saw, before and after projection."""
    classes = [str(each) for each in gallery["classes"]]
    shown = classes if len(classes) <= LEGIBLE else ()
    labels = gallery["labels"].astype(np.int64)
    confused, mapped = [], []
    for kind, words in FEATURES.items():
        counts = gallery[f"confusion_{kind}"].astype(np.float64)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)  # of the true class
        texts = [[_percent(share) for share in row] for row in shares] if shown else ()
        right = number(100 * float(counts.trace() / max(counts.sum(), 1)))
        grid = Grid(shares, (0.0, 1.0), shown, shown, "share", texts=texts, unit="true, taken for ")
        x, y = Axis("taken for"), Axis("true class")
        alt = f"Confusion matrix of the {words}: {right} % are right."
        confused.append(Panel(f"{words}: {right} % right", alt, [grid], x, y))
        at = tsne(gallery[f"features_{kind}"].astype(np.float64))
        alt = f"{len(labels)} test images of {len(classes)} classes by t-SNE of the {words}."
        mapped.append(Panel(words, alt, [Cloud(at, labels, names=shown)], reach=1.08))
    return (
        Chart("confusion", "What is confused", CONFUSION, confused),
        Chart("map", "A map of the test images", MAP, mapped),
    )


def evaluation_neighbours(gallery: Arrays) -> str:
    """Test images and their nearest training images, as HTML."""
    classes, k = [str(each) for each in gallery["classes"]], gallery["scores"].shape[1]
    rows = []
    for row, label in enumerate(gallery["query_labels"]):
        found = zip(gallery["answer_labels"][row], gallery["scores"][row], strict=True)
        answers = [
            (gallery["answers"][row * k + place], f"{score:.2f} {classes[own]}", bool(own == label))
            for place, (own, score) in enumerate(found)
        ]
        rows.append((gallery["queries"][row], classes[label], answers))
    return neighbours_html(NEAREST, rows)


# A picture (c, h, w) of 8 bits, its words, and whether it is right.
Answer: TypeAlias = tuple[npt.NDArray[np.uint8], str, bool]


def neighbours_html(
    told: str, rows: Sequence[tuple[npt.NDArray[np.uint8], str, Sequence[Answer]]]
) -> str:
    """Pictures with their names, each beside its answers; right ones are marked."""
    queries = []
    for pixels, name, answers in rows:
        image = f'<img src="{picture(pixels)}" alt="{escape(name)}">'
        found = [(picture(answer), words, words, same) for answer, words, same in answers]
        queries.append(f"<div><strong>{escape(name)}</strong>{image}</div>{pictured(found)}")
    return f"{paragraph(told)}\n{gallery_html(queries)}"


def pictured(answers: Iterable[tuple[str, str, str, bool]]) -> str:
    """Answers to a query: addresses of pictures, words below, words instead, whether right."""
    figures = "".join(
        f'<figure{right}><img src="{source}" alt="{escape(alt)}"><figcaption>{mark}{escape(words)}'
        "</figcaption></figure>"
        for source, words, alt, same in answers
        for right, mark in [(' class="right"', "✓ ") if same else ("", "")]
    )
    return f'<div class="answers">{figures}</div>'


def listed(answers: Iterable[tuple[str, float, bool]]) -> str:
    """Answers to a query: texts, their scores, whether they are right."""
    texts = "".join(
        f'<li{right}>{escape(text)} <span class="score">{score:.2f}{mark}</span></li>'
        for text, score, same in answers
        for right, mark in [(' class="right"', " ✓") if same else ("", "")]
    )
    return f"<ol>{texts}</ol>"


def gallery_html(queries: Iterable[str]) -> str:
    """Queries with their answers, each of them HTML, below each other."""
    return '<div class="gallery">{}</div>'.format(
        "".join(f'<div class="query">{query}</div>' for query in queries)
    )


def picture(pixels: npt.NDArray[np.uint8]) -> str:
    """Pixels (c, h, w) of 8 bits, grey or in colour, as the address of an image."""
    content = io.BytesIO()
    shown = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    Image.fromarray(shown).save(content, format="png")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.005 else ""


def unit(embeddings: Array) -> Array:
    """Scale the last axis to length one; zero vectors stay zero.

    Example:
        >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings / np.where(lengths > 0, lengths, 1.0)


def class_means(z: Array, labels: Labels) -> Array:
    """Mean of each class, (K, d), in the order of the labels.

    Example:
        >>> class_means(np.array([[0.0], [2.0], [5.0]]), np.array([4, 4, 7])).tolist()
        [[1.0], [5.0]]
    """
    return np.stack([z[labels == label].mean(axis=0) for label in np.unique(labels)])


def leading_plane(means: Array) -> Array:
    """The two leading directions of class means (K, d), as orthonormal columns (d, 2).

    The means are not centred: when all classes point the same way, that way is a leading
    direction and the picture shows them in one place.

    Example:
        >>> leading_plane(np.array([[2.0, 0.0, 0.0], [0.0, 0.0, -1.0]])).T.tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    directions = np.linalg.svd(means)[2][:2]  # (2, d), or (1, d) in one dimension
    largest = np.abs(directions).argmax(axis=1)
    # A singular vector is known up to its sign: fix it, so that the page does not flip.
    signs = np.sign(directions[np.arange(len(directions)), largest])
    plane = (directions * signs[:, None]).T + 0.0
    return np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))


def tsne(z: Array, seed: int = 0) -> Array:
    """Points in the plane, within ±1, that are neighbours where the directions of rows are.

    They are all zero where there is nothing to tell apart; equal seeds give equal points.

    Example:
        >>> tsne(np.eye(12)).shape
        (12, 2)
    """
    # Distances of unit vectors order like their cosines, and are much faster here.
    z = unit(z)
    if len(z) < 3 or np.ptp(z, axis=0).max() < 1e-6:
        return np.zeros((len(z), 2))
    from sklearn.manifold import TSNE  # seconds to import, and not every page needs it
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(30.0, (len(z) - 1) / 3)
    model = TSNE(perplexity=perplexity, init="pca", max_iter=500, random_state=seed, n_jobs=1)
    # Its sums over threads depend on their number, and their waiting costs more than they gain.
    with warnings.catch_warnings(), threadpool_limits(1):
        # Its initial projection divides by the spread, which a nearly collapsed z has not.
        warnings.simplefilter("ignore", RuntimeWarning)
        points = np.asarray(model.fit_transform(z), dtype=np.float64)
    points -= points.mean(axis=0)
    return points / max(float(np.abs(points).max()), 1e-12)


def thin(count: int, limit: int) -> npt.NDArray[np.int64]:
    """Return at most `limit` positions out of `count`, evenly spread, first and last included.

    Example:
        >>> thin(9, 3).tolist(), thin(2, 5).tolist()
        ([0, 4, 8], [0, 1])
    """
    return np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64))


def galleries(study: Study, groups: Sequence[Group], *, c: bool = False) -> dict[str, Arrays]:
    """What evaluations left to show, by the name of the run: one seed each, not too many."""
    found: dict[str, Arrays] = {}
    for own in groups:
        for run in own.finished[:1]:
            places = [f"galleries/{run.id}.npz", f"{run.id}/gallery.npz"]
            places += ["gallery.npz"] * (len(study.runs) == 1)  # the folder of the run itself
            read = (read_arrays(study.folder / place, "gallery") for place in places)
            arrays = next(filter(None, read), None)
            if arrays and len(found) < MOST_GALLERIES:
                sharpness = f", c = {own.c}" if c else ""
                found[f"{own.full_name}{sharpness}, seed {run.config['seed']}"] = arrays
    return found


def gallery_sections(
    found: Mapping[str, Arrays], drawn: Callable[[Arrays], Mapping[str, Part]]
) -> list[Section]:
    """What evaluations left to look at, by the name of the run: a section a title, in it every run.

    ``drawn`` makes the parts of sections by their titles.

    Raises:
        StudyError: If a gallery is damaged.
    """
    parts: dict[str, list[str]] = {}
    for name, gallery in found.items():
        heading = f"<h3>{escape(name)}</h3>\n" if len(found) > 1 else ""
        try:
            for title, part in drawn(gallery).items():
                if html := part_html(part):
                    parts.setdefault(title, []).append(heading + html)
        except (LookupError, TypeError, ValueError) as error:
            told = f"{name}: its gallery.npz is damaged ({error!r}): delete it"
            raise StudyError(told) from error
    return [
        Section(title.lower().replace(" ", "-"), title, "\n".join(htmls))
        for title, htmls in parts.items()
    ]
