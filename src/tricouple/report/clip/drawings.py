"""What the documentation shows of an image-text study, and what a terminal does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure
from rich.table import Table as RichTable

from tricouple.report.clip.figures import CHOSEN_BY, over_sharpness
from tricouple.report.clip.groups import SHARPNESS, Group, finals, group, where
from tricouple.report.clip.headline import gaps, headline
from tricouple.report.clip.tables import retrieval_tables, zero_shot_table
from tricouple.report.ink import with_legend
from tricouple.report.over_sharpness import draw
from tricouple.report.read import Study
from tricouple.report.tables_before import Table, markdown_table, terminal_table
from tricouple.report.words import AXES


def sharpness_picture(study: Study) -> Figure | None:
    """The recall by which c is chosen, over c."""
    series = over_sharpness(group(study, SHARPNESS))
    if not series:
        return None
    picture = Figure(figsize=(9.5, 4.2), layout="constrained")
    axis = picture.add_subplot()
    draw(axis, series)
    axis.set(title=f"{CHOSEN_BY}, validation images", xlabel=AXES["sharpness"], ylabel="%")
    return with_legend(picture, [axis])


def markdown_tables(study: Study) -> str | None:
    """Retrieval and zero-shot, what they say, and how they were trained; None without results."""
    groups = finals(study)
    if not groups:
        return None
    budget = f"Mean ± std over seeds, the best in bold. Trained on {where(study)}."
    notes = [*headline(groups), *gaps(study, groups)[:1]]
    points = "".join(f"- {note}\n" for note in notes)
    return "\n".join([*map(markdown_table, _tables(groups)), budget, "", points])


def terminal_tables(study: Study) -> list[RichTable | str]:
    """The same for a terminal, as many columns as 80 characters hold."""
    groups = finals(study)
    if not groups:
        return []
    tables = map(terminal_table, _tables(groups, at=(1, 5)))
    return [*tables, *headline(groups), *gaps(study, groups)[:1]]


DRAWINGS: dict[str, Callable[[Study], Figure | str | None]] = {
    "clip-sharpness.png": sharpness_picture,
    "clip-table.md": markdown_tables,
}


def _tables(groups: tuple[Group, ...], at: Sequence[int] = (1, 5, 10)) -> list[Table]:
    zero_shot = zero_shot_table(groups, paper=False)
    return [*retrieval_tables(groups, paper=False, at=at), *([zero_shot] if zero_shot else [])]
