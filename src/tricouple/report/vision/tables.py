"""The tables of the vision study for the page, for a terminal and for Markdown."""

from __future__ import annotations

from itertools import groupby

from rich.table import Table as RichTable
from rich.text import Text

from tricouple.report.read import Study
from tricouple.report.tables_before import Table, html_table
from tricouple.report.vision.budget import budget
from tricouple.report.vision.gaps import gaps
from tricouple.report.vision.groups import Group, blocks_of, final_groups
from tricouple.report.vision.names import BACKBONES, DATA, FEATURES, MEASURES, SETTINGS, loss_name
from tricouple.report.vision.results import Cell, Results, percent, results
from tricouple.report.words import axis_value, mean_std

GEOMETRY = {
    "nc1": "NC1",
    "nc2_std": "NC2 std",
    "nc2_deviation": "NC2 deviation",
    "effective_rank": "effective rank",
    "alpha": "α",
    "beta": "β",
}

MARKDOWN_NOTE = (
    "Mean ± std over seeds of the accuracy on features before the projection, the best in bold, "
    "the paper's mean in brackets."
)


def page_table(found: Results) -> str:
    """One of the paper's tables as HTML: ours and the paper's number side by side."""
    head, rows, bold = ["loss"], [], set()
    paired = _paired(found)
    for (_, measure), with_paper in zip(found.columns, paired, strict=True):
        head += [MEASURES[measure], *(["paper"] if with_paper else [])]
    for row, (name, cells) in enumerate(zip(found.names, found.cells, strict=True)):
        texts = [name]
        for cell, with_paper in zip(cells, paired, strict=True):
            if cell is not None and cell.best:
                bold.add((row, len(texts)))
            texts += [_ours(cell), *([_paper(cell)] if with_paper else [])]
        rows.append(texts)
    spans = [("", 1)]
    for columns, own in groupby(
        zip(found.columns, paired, strict=True), key=lambda pair: pair[0][0].columns
    ):
        spans.append((columns, sum(1 + with_paper for _, with_paper in own)))
    return html_table(Table(_caption(found), head, rows, bold=frozenset(bold), spans=tuple(spans)))


def terminal_tables(study: Study) -> list[RichTable | str]:
    """The same for a terminal: one for each setting and data set, as in the paper's appendix."""
    groups = final_groups(study)
    tables = [
        _terminal_table(found, data)
        for found in results(groups)
        for data in dict.fromkeys(block.data for block, _ in found.columns)
    ]
    return [*tables, *budget(groups), *gaps(study, groups)[:1]]


def markdown_tables(study: Study) -> str | None:
    """The same as Markdown, the paper's mean in brackets; None if nothing has finished."""
    groups = final_groups(study)
    tables = [_markdown_table(found) for found in results(groups)]
    if not tables:
        return None
    notes = [MARKDOWN_NOTE, *budget(groups), *gaps(study, groups)[:1]]
    return "\n".join([*tables, " ".join(notes), ""])


def geometry_table(groups: tuple[Group, ...]) -> str:
    """NC1, NC2, effective rank, α and β of the embeddings at the end, for every block."""
    tables = []
    for block in blocks_of(groups):
        own = [g for g in groups if g.block == block and g.finished]
        rows = [
            [g.name, *(mean_std(g.metric(f"embedding/{key}")) for key in GEOMETRY)] for g in own
        ]
        if rows:
            tables.append(html_table(Table(str(block), ("loss", *GEOMETRY.values()), rows)))
    return "\n".join(tables)


def chosen_table(groups: tuple[Group, ...]) -> str:
    """The sharpness, the learning rate and the budget of every row of the tables."""
    head = ("loss", "compared on", "c", "learning rate", "epochs", "images", "seeds")
    rows = [
        (
            loss_name(own.loss),
            str(own.block),
            *map(_value, (own.config.get(key) for key in ("sharpness", "learning_rate", "epochs"))),
            _value(own.images or "all"),
            ", ".join(str(run.config["seed"]) for run in own.finished),
        )
        for own in groups
        if own.finished
    ]
    return html_table(Table("Settings of the runs in the tables", head, rows, words=2))


def _terminal_table(found: Results, data: str) -> RichTable:
    title = f"{SETTINGS.get(found.setting, found.setting)}, {DATA.get(data, data)}"
    table = RichTable(title=f"{title}: accuracy on the {FEATURES[found.features]}, %")
    table.add_column("loss", no_wrap=True)
    chosen = [number for number, (block, _) in enumerate(found.columns) if block.data == data]
    paired = _paired(found)
    for number in chosen:
        block, measure = found.columns[number]
        backbone = BACKBONES.get(block.backbone, block.backbone)
        table.add_column(f"{backbone}\n{MEASURES[measure]}", justify="right")
        if paired[number]:
            table.add_column("\npaper", justify="right", style="dim")
    for name, cells in zip(found.names, found.cells, strict=True):
        texts = [Text(name)]
        for number in chosen:
            cell = cells[number]
            texts.append(Text(_ours(cell), style="bold" if cell and cell.best else ""))
            if paired[number]:
                texts.append(Text(_paper(cell)))
        if any(cells[number] for number in chosen):
            table.add_row(*texts)
    return table


def _markdown_table(found: Results) -> str:
    head = [f"{SETTINGS.get(found.setting, found.setting)}, %"]
    head += [f"{block.columns}: {MEASURES[measure]}" for block, measure in found.columns]
    lines = [head, ["---", *("--:" for _ in found.columns)]]
    for name, cells in zip(found.names, found.cells, strict=True):
        lines.append([name, *map(_markdown_cell, cells)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    ours = f"**{_ours(cell)}**" if cell.best else _ours(cell)
    return ours + (f" ({cell.paper.mean:.2f})" if cell.paper else "")


def _paired(found: Results) -> list[bool]:
    """Which columns have a number of the paper in some row."""
    columns = zip(*found.cells, strict=True)
    return [any(cell and cell.paper for cell in column) for column in columns]


def _ours(cell: Cell | None) -> str:
    return "–" if cell is None else percent(cell.ours)


def _paper(cell: Cell | None) -> str:
    return "–" if cell is None or cell.paper is None else percent(cell.paper)


def _caption(found: Results) -> str:
    setting = SETTINGS.get(found.setting, found.setting)
    return f"{setting}: accuracy on the {FEATURES[found.features]}, %, mean ± std over seeds"


def _value(value: object) -> str:
    return "–" if value is None else axis_value(value)
