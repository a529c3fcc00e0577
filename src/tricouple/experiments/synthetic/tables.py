"""Final figures as terminal tables: mean ± std over seeds, beside target and the paper's words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from tricouple.experiments.synthetic.grid import LINEAR, LOG_SIGMOID

Record = dict[str, Any]

NAMES = {
    "neg_mmiot": "Neg-MMIOT",
    "pushpull": "PushPull",
    "iot": "IOT-CL",
    "infonce": "InfoNCE",
    "byol": "BYOL",
    "vicreg": "VICReg",
}

# The paper shows curves without numbers in its text; this is what it says of them.
CLAIMS = {
    "neg_mmiot": "neural collapse, simplex ETF",
    "pushpull": "neural collapse, simplex ETF",
    "iot": "less collapse within classes, fewer directions",
    "infonce": "not shown",
    "byol": "dimensional collapse",
    "vicreg": "dimensional collapse",
}

QUANTITIES = {
    "loss": "loss",
    "nc1": "NC1",
    "nc2_std": "NC2 std",
    "nc2_deviation": "NC2 dev.",
    "alpha": "α",
    "beta": "β",
    "effective_rank": "rank",
    "knn": "k-NN",
}


def final_table(records: Sequence[Record], n_classes: int) -> Table:
    """Lay out where the methods ended: a column a method, the ETF's value first."""
    groups = by_variant(records)
    seeds = max(map(len, groups.values()), default=0)
    table = Table(
        title=f"{n_classes} classes: the training set after training"
        + (f", mean ± std of {seeds} seeds" if seeds > 1 else ""),
        caption="NC2: cosines between class means. λ: smallest over largest eigenvalue of their "
        "covariance. rank: effective rank of all embeddings. k-NN: accuracy on held-out samples.",
        box=SIMPLE,
        padding=(0, 0),
        show_edge=False,
    )
    table.add_column(no_wrap=True)
    table.add_column("ETF", justify="right")
    for variant in groups:
        # Broken where it may break, so that eight columns fit 80 characters.
        heading = variant_name(*variant).replace("Neg-", "Neg-\n").replace("Push", "Push\n")
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    targets = {"nc1": "0", "nc2_std": "0", "nc2_deviation": "0", "alpha": "1"}
    targets |= {"beta": f"{-1 / (n_classes - 1):.3g}", "effective_rank": f"{n_classes - 1}"}
    for key, heading in QUANTITIES.items():
        ends = ([record["curves"][key][-1] for record in group] for group in groups.values())
        table.add_row(heading, targets.get(key, ""), *map(spread, ends))
    ratios = ([ratio(record["spectrum"]) for record in group] for group in groups.values())
    table.add_row("λ", "1", *map(spread, ratios))
    return table


def claims_table(records: Sequence[Record]) -> Table:
    """Lay out what became of each method beside what the paper says of it."""
    table = Table(box=SIMPLE)
    for heading in ("method", "here", "the paper says"):
        table.add_column(heading)
    for (method, shaping), group in by_variant(records).items():
        table.add_row(variant_name(method, shaping), outcomes(group), CLAIMS[method])
    return table


def map_table(records: Sequence[Record], axis: str) -> Table:
    """Lay out what became of each method along one axis: a column a value."""
    values = sorted({record["config"][axis] for record in records})
    table = Table(title=f"where they end, by {axis}", box=SIMPLE)
    for heading in ("method", *map(str, values)):
        table.add_column(heading)
    for variant, group in by_variant(records).items():
        at = ([record for record in group if record["config"][axis] == v] for v in values)
        table.add_row(variant_name(*variant), *map(outcomes, at))
    return table


def by_variant(records: Sequence[Record]) -> dict[tuple[str, str | None], list[Record]]:
    """Group records by method and ψ, in the order of the grid."""
    groups: dict[tuple[str, str | None], list[Record]] = {v: [] for v in LINEAR + LOG_SIGMOID}
    for record in records:
        groups[record["config"]["method"], record["config"]["shaping"]].append(record)
    return {variant: group for variant, group in groups.items() if group}


def variant_name(method: str, shaping: str | None) -> str:
    """A method's name, with its ψ where that is not linear.

    Example:
        >>> variant_name("neg_mmiot", "log_sigmoid"), variant_name("iot", None)
        ('Neg-MMIOT log-σ', 'IOT-CL')
    """
    return NAMES[method] + (" log-σ" if shaping == "log_sigmoid" else "")


def outcomes(records: Sequence[Record]) -> str:
    """The verdicts of some runs, each once."""
    return ", ".join(sorted({record["verdict"] or record["status"] for record in records}))


def spread(values: Sequence[float | None]) -> str:
    """Mean and std, on two lines of seven characters, of the values that are numbers.

    Example:
        >>> print(spread([0.25, 0.75]))
        0.5
        ±0.4
    """
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if not numbers:
        return "–"
    centre = mean(numbers)
    text = f"{centre:.{3 if abs(centre) >= 1e-3 else 2}g}"
    return text if len(numbers) == 1 else f"{text}\n±{stdev(numbers):.1g}"


def ratio(spectrum: Sequence[float | None]) -> float | None:
    """Smallest over largest eigenvalue.

    Example:
        >>> ratio([0.5, 0.25])
        0.5
    """
    first, last = spectrum[0], spectrum[-1]
    return None if not first or last is None else last / first
