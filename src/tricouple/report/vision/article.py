"""The article of a vision study: what was found, tables, figures, gaps and provenance."""

from __future__ import annotations

from html import escape

from tricouple.report.frame import Article, Choices, Section, figure_html, items
from tricouple.report.provenance import provenance_tables
from tricouple.report.read import Study
from tricouple.report.vision import tables
from tricouple.report.vision.figures import curves, sharpness
from tricouple.report.vision.gaps import gaps
from tricouple.report.vision.groups import Group, blocks_of, final_groups
from tricouple.report.vision.headline import headline
from tricouple.report.vision.names import FEATURES
from tricouple.report.vision.results import results
from tricouple.report.vision.sharpness import read_lines

LEAD = (
    "Image encoders trained with contrastive losses, with labels (SCL: positives share a class) "
    "and without (UCL: positives are two views of an image), then frozen and judged by a linear "
    "probe and by k nearest neighbours."
)
NOTE = (
    "Bold: the best mean of its column. Beside it the paper's number for the same data set, "
    "setting, backbone and loss, mean ± std over four seeds. The paper does not say whether it "
    "measures features before or embeddings after the projection: it stands beside both."
)


def article(study: Study) -> Article:
    """Return everything the page says about one study."""
    groups = final_groups(study)
    lines = read_lines(study)
    missing = gaps(study, groups)
    sections = []
    if any(own.finished for own in groups):
        sections.append(Section("results", "Accuracy, beside the paper's", _results(groups)))
    over_c = sharpness.figure(lines)
    if over_c.panels:
        sections.append(Section(over_c.id, over_c.title, figure_html(over_c)))
    during = curves.figure(groups)
    if during.panels:
        sections.append(Section(during.id, during.title, figure_html(during)))
    geometry = tables.geometry_table(groups)
    if geometry:
        sections.append(Section("geometry", "Geometry of the embeddings", geometry))
    if missing:
        sections.append(Section("missing", "What is missing", items(missing)))
    sections.append(Section("provenance", "Where the numbers come from", provenance_tables(study)))
    found = headline(groups, lines)
    return Article(
        title=f"Vision study: {study.name}",
        lead=LEAD,
        found=found or ["No run has finished: nothing can be said yet."],
        warning=_warning(missing),
        choices=(
            Choices("measure", "Accuracy", sharpness.CHOICES if over_c.panels else {}),
            Choices("block", "Curves of", _blocks(groups) if during.panels else {}),
        ),
        sections=tuple(sections),
    )


def _results(groups: tuple[Group, ...]) -> str:
    parts = [
        tables.page_table(found) for features in FEATURES for found in results(groups, features)
    ]
    note = f'<p class="quiet">{escape(NOTE)}</p>'
    return "\n".join([*parts, note, tables.chosen_table(groups)])


def _blocks(groups: tuple[Group, ...]) -> dict[str, str]:
    return {str(block): str(block) for block in blocks_of(groups)}


def _warning(missing: list[str]) -> str:
    if not missing:
        return ""
    more = " More under “What is missing”." if len(missing) > 1 else ""
    return f"The study is not complete: {missing[0]}{more}"
