"""The article of a synthetic study: what was found, figures, tables, gaps and provenance."""

from __future__ import annotations

from html import escape

from tricouple.report.frame import Article, Choices, Section, figure_html, items
from tricouple.report.provenance import provenance_tables
from tricouple.report.read import Study
from tricouple.report.synthetic.claims import check, claims_table
from tricouple.report.synthetic.figures import circle, curves, maps, movie, spectra, tsne
from tricouple.report.synthetic.figures.scatter import read_pictures
from tricouple.report.synthetic.finals import finals_tables
from tricouple.report.synthetic.gaps import gaps, left_out
from tricouple.report.synthetic.groups import Group, group
from tricouple.report.synthetic.headline import headline
from tricouple.report.synthetic.sweeps import Sweep, read_sweeps
from tricouple.report.synthetic.verdicts import meanings
from tricouple.report.words import SHAPINGS

LEAD = (
    "Encoders trained on a mixture of Gaussians, with each loss under the same conditions. The "
    "question is the paper's: do negatives make the classes collapse to the simplex ETF, K "
    "directions as far apart as can be, while losses without them collapse into few dimensions?"
)


def article(study: Study) -> Article:
    """Return everything the page says about one study."""
    groups = group(study.part("main"))
    sweeps = read_sweeps(study)
    pictures = read_pictures(study, groups)
    findings = check(groups)
    missing = gaps(study, groups)
    found = headline(groups, findings, sweeps)
    figures = [
        curves.figure(groups),
        spectra.figure(groups),
        tsne.figure(pictures),
        circle.figure(pictures),
        movie.figure(pictures),
    ]
    sections = [Section(f.id, f.title, figure_html(f)) for f in figures if f.panels]
    # The numbers come right after the figures that they summarise.
    if any(own.finished for own in groups):
        sections[2:2] = [
            Section("finals", "Final figures", finals_tables(groups)),
            Section("claims", "The paper's claims", claims_table(findings)),
        ]
    if sweeps:
        sections.append(Section("maps", "Where each method ends up", _maps(sweeps)))
    if study.verdicts:
        sections.append(Section("verdicts", "What the verdicts mean", items(meanings(study))))
    absent = [*missing, *(left_out(study, sweeps) if study.runs else ())]
    if absent:
        sections.append(Section("missing", "What is missing", items(absent)))
    sections.append(Section("provenance", "Where the numbers come from", provenance_tables(study)))
    return Article(
        title=f"Synthetic study: {study.name}",
        lead=LEAD,
        found=found or ["No run of the main part has finished: nothing can be said yet."],
        warning=_warning(missing),
        choices=_choices(groups),
        sections=tuple(sections),
    )


def _choices(groups: tuple[Group, ...]) -> tuple[Choices, ...]:
    """K and ψ, where there is something to choose."""
    classes = sorted({group.n_classes for group in groups})
    shapings = [name for name in SHAPINGS if name in {group.shaping for group in groups}]
    return (
        Choices("n_classes", "Classes K", {str(k): str(k) for k in classes}),
        Choices("shaping", "Cost ψ", {name: SHAPINGS[name] for name in shapings}),
    )


def _maps(sweeps: tuple[Sweep, ...]) -> str:
    signs = maps.SIGNS if any(sweep.judged for sweep in sweeps) else ""
    parts = [f"<p>{escape(maps.LEAD + signs)}</p>"]
    for sweep in sweeps:
        strip = maps.verdict_table(sweep) if sweep.judged else ""
        figure = maps.figure(sweep)
        parts.append(f"<h3>{escape(figure.title)}</h3>\n{figure_html(figure)}\n{strip}")
    return "\n".join(parts)


def _warning(missing: list[str]) -> str:
    if not missing:
        return ""
    more = " More under “What is missing”." if len(missing) > 1 else ""
    return f"The study is not complete: {missing[0]}{more}"
