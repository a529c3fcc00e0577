"""The table of final figures: mean ± std over seeds at each K, beside the target of the theory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import neg, pos

from tricouple.report.read import Study
from tricouple.report.synthetic.groups import Group, group
from tricouple.report.synthetic.verdicts import majority
from tricouple.report.tables_before import Column, Table, html_table, markdown_table, measured_table
from tricouple.report.words import method_name, number

TARGET = "simplex ETF (target)"
NOTE = (
    "Bold: best of its column (lowest NC1 and NC2, highest α, directions and k-NN accuracy, β "
    "nearest to its target). An effective rank has no best: noise raises it too."
)


def finals_tables(groups: Sequence[Group]) -> str:
    """Return one table for each K, as HTML."""
    return "\n".join([*map(html_table, _tables(groups)), f'<p class="quiet">{NOTE}</p>'])


def finals_markdown(study: Study) -> str | None:
    """Return the same as Markdown; None if the main comparison was not begun."""
    groups = group(study.part("main"))
    return "\n".join([*map(markdown_table, _tables(groups)), NOTE, ""]) if groups else None


def _tables(groups: Sequence[Group]) -> list[Table]:
    classes = sorted({own.n_classes for own in groups})
    return [finals_table([g for g in groups if g.n_classes == k], k) for k in classes]


def finals_table(groups: list[Group], n_classes: int) -> Table:
    """Lay out the final figures of all methods at one K."""
    beta = -1 / (n_classes - 1)

    def column(title: str, name: str, badness: Callable[[float], float] | None) -> Column:
        return Column(title, [own.final(name) for own in groups], badness)

    columns = (
        column("NC1", "nc1", pos),
        column("NC2 std", "nc2_std", pos),
        column("NC2 deviation", "nc2_deviation", pos),
        column("α", "alpha", neg),
        column("β", "beta", lambda value: abs(value - beta)),
        column("directions", "directions", neg),
        column("k-NN", "knn", neg),
        column("effective rank", "effective_rank", None),
    )
    names = [method_name(own.method, own.shaping) for own in groups]
    caption = f"Final figures at K = {n_classes}, mean ± std over seeds"
    table = measured_table(caption, "method", names, columns)
    top = number(n_classes - 1.0)
    target = (TARGET, "0", "0", "0", "1", number(beta), top, "–", top, "", "")
    rows = [
        (*row, majority(own.verdicts), _seeds(own))
        for row, own in zip(table.rows, groups, strict=True)
    ]
    return replace(table, head=(*table.head, "verdict", "seeds"), rows=(*rows, target))


def _seeds(group: Group) -> str:
    """How many seeds finished, and what became of the others."""
    others = [
        f"{count} {status}"
        for status in ("diverged", "partial")
        if (count := sum(run.status == status for run in group.runs))
    ]
    return f"{len(group.finished)}" + (f" ({', '.join(others)})" if others else "")
