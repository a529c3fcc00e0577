"""The article of image-text runs: what was found, tables, pictures, gaps and provenance."""

from __future__ import annotations

from html import escape

from tricouple.report.clip import figures
from tricouple.report.clip.gallery import FILE, queries_html, read_gallery
from tricouple.report.clip.groups import SHARPNESS, Group, finals, group, where
from tricouple.report.clip.headline import gaps, headline
from tricouple.report.clip.matrices import CAPTION, TITLE, matrices
from tricouple.report.clip.tables import geometry_table, retrieval_tables, zero_shot_table
from tricouple.report.frame import Article, Section, figure_html, items
from tricouple.report.provenance import provenance_tables
from tricouple.report.read import Study
from tricouple.report.tables_before import html_table

LEAD = (
    "An image and a text encoder trained on captions with contrastive losses, then asked to find "
    "the caption of an image, the image of a caption, and the class of an image by its name."
)
PAPER = (
    "The paper (MS-COCO, ResNet-50, 35 epochs) does not say how many candidates its retrieval has; "
    "figures near 67 % suggest batches of 64, so they stand beside ours in batches. Ours are of "
    "another data set and a small fraction of the budget: compare the order of losses at most."
)
GEOMETRY = (
    "Gap: distance between the mean image and the mean text. Alignment: mean squared distance of "
    "an image and its captions. Uniformity: log-mean of exp(−2 d²), lower is more spread."
)


def article(study: Study) -> Article:
    """Return everything the page says about a study, or about a single run."""
    groups = finals(study)
    trials = group(study, SHARPNESS)
    missing = gaps(study, groups)
    sections = []
    if groups:
        paper = len(groups) > 1
        note = f"<p>{escape(PAPER)}</p>" if paper else ""
        tables = "\n".join(map(html_table, retrieval_tables(groups, paper=paper)))
        sections.append(Section("retrieval", "Retrieval", note + tables))
        zero_shot = zero_shot_table(groups, paper=paper)
        if zero_shot:
            sections.append(Section("zero-shot", "Zero-shot classification", html_table(zero_shot)))
    sections += _pictures(study, groups)
    for figure in (figures.sharpness(trials), figures.curves(groups)):
        if figure.panels:
            sections.append(Section(figure.id, figure.title, figure_html(figure)))
    if groups:
        geometry = f"<p>{escape(GEOMETRY)}</p>{html_table(geometry_table(groups))}"
        sections.append(Section("geometry", "How the modalities share the sphere", geometry))
    if missing:
        sections.append(Section("missing", "What is missing", items(missing)))
    sections.append(Section("provenance", "Where the numbers come from", provenance_tables(study)))
    return Article(
        title=f"Image and text: {study.name}",
        lead=f"{LEAD} Trained on {where(study)}.",
        found=headline(groups) or ["No final run has finished: nothing can be said yet."],
        warning=f"The study is not complete: {missing[0]}" if missing else "",
        choices=(),
        sections=tuple(sections),
    )


def _pictures(study: Study, groups: tuple[Group, ...]) -> list[Section]:
    """Queries with answers, similarities and plans: of the run, or of each loss of a study."""
    sections = []
    own = read_gallery(study.folder / FILE)
    if own is not None:
        if own.has_queries:
            sections.append(Section("queries", "Queries and answers", queries_html(own)))
        figure = matrices(own, "run")
        sections.append(Section(figure.id, figure.title, figure_html(figure)))
    parts = []
    for each in groups:
        for run in each.finished:
            kept = read_gallery(study.folder / "galleries" / f"{run.id}.npz")
            if kept is not None:
                figure = matrices(kept, each.loss, caption="")
                parts.append(f"<h3>{escape(each.name)}</h3>\n{figure_html(figure)}")
    if parts:
        body = "\n".join([f"<p>{escape(CAPTION)}</p>", *parts])
        sections.append(Section("matrices", TITLE, body))
    return sections
