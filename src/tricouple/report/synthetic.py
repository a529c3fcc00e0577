"""A synthetic study: the collapse of classes in training, spectra, claims, swept settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import neg, pos

import numpy as np
from rich.table import Table as RichTable

from tricouple.names import QUANTITIES, SHAPINGS
from tricouple.report import embeddings, sentences, sweeps
from tricouple.report.chart import Axis, Chart, Panel
from tricouple.report.curves import band_line, during_training
from tricouple.report.draw_matplotlib import png
from tricouple.report.groups import MAIN, Curve, Group, by_place, gaps, steps_of
from tricouple.report.numbers import listing, mean_std, number
from tricouple.report.page import Article, Choices, Section, chart_sections, items, paragraph
from tricouple.report.read import Study
from tricouple.report.sentences import LEVEL, Finding, best, check_claims, one_seed
from tricouple.report.sweeps import Sweep, choice, read_sweeps, verdict, verdicts
from tricouple.report.tables import Column, Table, measured_table, to_html, to_markdown, to_terminal

LEAD = (
    "Encoders trained on a mixture of Gaussians, with each loss under the same conditions. The "
    "question is the paper's: do negatives make the classes collapse to the simplex ETF, K "
    "directions as far apart as can be, while losses without them collapse into few dimensions?"
)
PANELS = ("nc1", "nc2_std", "nc2_deviation", "effective_rank")
CURVES = (
    "Lines are means over seeds, bands ± one standard deviation (cut at the smallest seed). Both "
    "forms of NC2 are zero at the simplex ETF, NC1 is zero when every class has shrunk to a point. "
    "The effective rank counts the directions that the embeddings use: K − 1 for a perfect ETF."
)
SPECTRA = (
    "Eigenvalues of the covariance of the centred class means, sorted, each over the largest one; "
    "means over seeds with a band of ± one standard deviation. A flat line is a simplex ETF: all "
    "K − 1 directions used alike. A steep fall is dimensional collapse."
)
SHARPNESS = (
    "c is the sharpness of a loss: 1/(τε), 1/ε for IOT, 1/τ for InfoNCE; BYOL, VICReg have none. "
    "Losses are best compared at the same c."
)
FINALS = (
    "c is the sharpness 1/(τε), 1/τ for InfoNCE. Bold: best of its column (lowest NC1 and NC2, "
    "highest α, directions and k-NN accuracy, β nearest to its target). An effective rank has no "
    "best: noise raises it too."
)
FLOOR = 1e-6  # of the largest eigenvalue; how empty an empty direction is says nothing


def article(study: Study) -> Article:
    """Return everything the page says about one study."""
    groups = main_groups(study)
    swept = read_sweeps(study)
    findings = check_claims(groups)
    pictures = embeddings.read_pictures(study, groups)
    sections = chart_sections([
        curves_chart(groups),
        spectra_chart(groups),
        embeddings.tsne_chart(pictures),
        embeddings.circle_chart(pictures),
        embeddings.movie_chart(pictures),
    ])  # fmt: skip
    # The numbers come right after the figures that they summarise.
    if any(own.finished for own in groups):
        finals = "\n".join(map(to_html, finals_tables(groups)))
        sections[2:2] = [
            Section("finals", "Final figures", finals + paragraph(FINALS, "quiet")),
            Section("claims", "The paper's claims", sentences.claims_html(findings)),
        ]
    if swept:
        sections.append(Section("maps", "Where each method ends up", sweeps.sweeps_html(swept)))
    if study.verdicts:
        told = [f"{verdict(v).sign} {verdict(v).word}: {t}." for v, t in study.verdicts.items()]
        sections.append(Section("verdicts", "What the verdicts mean", items(told)))
    left_out = [] if swept else ["No setting was swept: no maps."]
    if not (study.folder / "snapshots").is_dir():
        left_out.insert(0, "There are no snapshots: no pictures of the embeddings.")
    classes = sorted({own.config["n_classes"] for own in groups})
    used = {own.config.get("shaping") for own in groups}
    return Article(
        title=f"Synthetic study: {study.name}",
        lead=LEAD,
        sections=sections,
        found=headline(groups, findings, swept),
        missing=gaps(study, groups, everywhere=True),
        left_out=left_out if study.runs else [],
        choices=(
            Choices("n_classes", "Classes K", {str(k): str(k) for k in classes}),
            Choices("shaping", "Cost ψ", {k: v for k, v in SHAPINGS.items() if k in used}),
        ),
    )


def files(study: Study) -> dict[str, bytes | None]:
    """What the documentation shows: pictures of linear ψ (and losses without ψ), and the table."""
    groups = main_groups(study)
    usual = {"shaping": "linear", "n_classes": str(groups[0].config["n_classes"])} if groups else {}
    curves = curves_chart(groups).chosen(usual)
    first = replace(curves, panels=[
        replace(panel, y=replace(panel.y, title=f"K = {usual['n_classes']}" if not place else ""))
        for place, panel in enumerate(curves.panels[:3])
    ])  # fmt: skip
    spectra = spectra_chart(groups).chosen({"shaping": "linear"})
    grid = sweeps.map_chart(read_sweeps(study))
    table = "\n".join([*map(to_markdown, finals_tables(groups)), FINALS, ""])
    return {
        "synthetic-curves.png": png(first) if first.panels else None,
        "synthetic-spectra.png": png(spectra) if spectra.panels else None,
        "synthetic-map.png": png(grid, columns=2, height=1.9) if grid.panels else None,
        "synthetic-table.md": table.encode() if groups else None,
    }


def terminal(study: Study) -> list[RichTable | str]:
    """What 80 characters hold of the figures, the claims and the maps; what the verdicts mean."""
    groups = main_groups(study)
    columns = ("method", "c", "NC1", "NC2 deviation", "directions", "k-NN", "verdict")
    tables = [table.narrow(*columns, note=SHARPNESS) for table in finals_tables(groups)]
    if any(own.finished for own in groups):
        table = sentences.claims_table(check_claims(groups))
        tables.append(table.narrow("the paper says", "here", "comparisons for it", "factor"))
    swept = [sweep for sweep in read_sweeps(study) if sweep.judged()]
    tables += [sweeps.verdict_table(sweep, words=False).narrow() for sweep in swept]
    given = {run.verdict for run in study.runs}
    meanings = [
        f"{verdict(name).sign} {verdict(name).word}: {text}."
        for name, text in study.verdicts.items()
        if name in given
    ]
    return [*map(to_terminal, tables), *meanings]


def main_groups(study: Study) -> tuple[Group, ...]:
    """The comparison of all methods at each K."""
    return sweeps.groups_of(study.part(MAIN))


def curves_chart(groups: Sequence[Group]) -> Chart:
    """Neural collapse over training; K and ψ are chosen in the page."""
    rows = [
        (str(own.config["n_classes"]), own.name, own.c,
         *(f"{mean_std(own.first(n))} → {mean_std(own.last(n))}" for n in PANELS))
        for own in groups
        if own.finished
    ]  # fmt: skip
    head = ("K", "method", "c", *(QUANTITIES[name] for name in PANELS))
    caption = f"First and last recorded values, finished runs, {steps_of(groups)}"
    panels = during_training(groups, PANELS, log=PANELS[:3], when=choice)
    numbers = [Table(caption, head, rows, words=2)] if panels else []
    return Chart("curves", "Neural collapse during training", CURVES, panels, numbers)


def spectrum(own: Group) -> Curve:
    """Eigenvalues over the largest one, by position from 1."""
    spectra = [run.spectrum for run in own.shown if len(run.spectrum)]
    shares = [values / values[0] if values[0] > 0 else 0 * values for values in spectra]
    return Curve.over([dict(enumerate(values, 1)) for values in shares])


def spectra_chart(groups: Sequence[Group]) -> Chart:
    """Spectra of the class-mean covariance at the end, one panel for each K."""
    measured = [own for own in groups if any(len(run.spectrum) for run in own.shown)]
    panels, rows = [], []
    for place, here in by_place(measured).items():
        lines, ends, lowest = [], [], 1.0
        for own in here:
            curve = spectrum(own)
            when = {key: value for key, value in choice(own).items() if key == "shaping"}
            lines.append(band_line(own, curve, when))
            ends.append(f"{own.name}: smallest eigenvalue {number(curve.end)} of the largest")
            lowest = min([lowest, *curve.low[curve.low > 0]])
            rows.append((
                str(own.config["n_classes"]), own.name, own.c,
                f"{mean_std(own.last('directions'))} of {own.config['n_classes'] - 1}",
                number(float(np.median(curve.mean))), number(curve.end),
            ))  # fmt: skip
        # Never less than a decade: a flat spectrum should look flat.
        bottom = min(max(lowest, FLOOR), 0.1) / 1.25
        panels.append(
            Panel(
                place,
                f"Class-mean spectra at {place}. {'; '.join(ends)}.",
                lines,
                x=Axis("eigenvalue, from the largest", whole=True),
                y=Axis("share of the largest", log=True, limits=(bottom, 1.25)),
            )
        )
    head = ("K", "method", "c", "directions filled", "median share", "smallest share")
    caption = f"What the spectra come down to after {steps_of(measured)}"
    numbers = [Table(caption, head, rows, words=2)] if rows else []
    return Chart("spectra", "Spectrum of the class means", SPECTRA, panels, numbers)


def finals_tables(groups: Sequence[Group]) -> list[Table]:
    """Final figures, mean ± std over seeds, beside the target of the theory; one for each K."""
    return list(map(_finals, by_place(groups).values()))


def _finals(groups: list[Group]) -> Table:
    n_classes = groups[0].config["n_classes"]
    beta = -1 / (n_classes - 1)

    def column(title: str, name: str, badness: Callable[[float], float] | None) -> Column:
        return Column(title, [own.last(name) for own in groups], badness)

    columns = [
        column("NC1", "nc1", pos),
        column("NC2 std", "nc2_std", pos),
        column("NC2 deviation", "nc2_deviation", pos),
        column("α", "alpha", neg),
        column("β", "beta", lambda value: abs(value - beta)),
        column("directions", "directions", neg),
        column("k-NN", "knn", neg),
        column("effective rank", "effective_rank", None),
    ]
    caption = f"Final figures at K = {n_classes} after {steps_of(groups)}, mean ± std over seeds"
    names = [(own.name, own.c) for own in groups]
    table = measured_table(caption, ("method", "c"), names, columns)
    top = number(n_classes - 1.0)
    target = ("simplex ETF (target)", "", "0", "0", "0", "1", number(beta), top, "–", top, "", "")
    rows = [
        (*row, sweeps.majority(verdicts(own)), _seeds(own))
        for row, own in zip(table.rows, groups, strict=True)
    ]
    return replace(table, head=(*table.head, "verdict", "seeds"), rows=(*rows, target))


def _seeds(own: Group) -> str:
    """How many seeds finished, and what became of the others."""
    others = [
        f"{count} {status}"
        for status in ("diverged", "partial")
        if (count := sum(run.status == status for run in own.runs))
    ]
    return f"{len(own.finished)}" + (f" ({', '.join(others)})" if others else "")


def headline(
    groups: Sequence[Group], findings: Sequence[Finding], swept: Sequence[Sweep]
) -> list[str]:
    """What was found; nothing if no run has finished."""
    usual = [g for g in groups if g.config.get("shaping") in (None, "linear") and g.finished]
    leads = {
        "nc2_deviation": ("Closest to the simplex ETF (NC2 deviation)", True),
        "nc1": ("Tightest classes (NC1)", True),
        "directions": ("Richest class means (directions filled, of K − 1)", False),
    }
    compared: list[str] = []
    for name, (lead, less) in leads.items():
        values = {p: {g.name: g.last(name) for g in own} for p, own in by_place(usual).items()}
        compared += best(lead, values, mean_std, less=less)
    return [
        *_outcomes(usual),
        *compared,
        *([LEVEL] if compared else []),
        *sentences.claims_sentence(findings),
        *sweeps.sweeps_sentence(swept),
        *one_seed(usual),
    ]


def _outcomes(groups: Sequence[Group]) -> Iterator[str]:
    """Which methods got which verdict; values of K with the same answer share a clause."""
    clauses: dict[str, list[str]] = {}
    for here in by_place(groups).values():
        names: dict[str, list[str]] = {}
        for own in here:
            for name, count in verdicts(own).most_common(1):
                total = verdicts(own).total()
                several = "" if count == total else f" ({count} of {total} seeds)"
                names.setdefault(name, []).append(own.short_name + several)
        order = sorted(names, key=lambda name: [*sweeps.VERDICTS, name].index(name))
        text = "; ".join(f"{verdict(name).word}: {listing(names[name])}" for name in order)
        if text:
            clauses.setdefault(text, []).append(str(here[0].config["n_classes"]))
    if clauses:
        parts = [f"{text} (K = {listing(classes)})" for text, classes in clauses.items()]
        yield f"The study's verdicts: {'. '.join(parts)}."
