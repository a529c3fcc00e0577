"""Results of runs on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tricouple.experiments.runs.once import Finished
from tricouple.report.kinds import write_report

DIRECTIONS = {"image_to_text": "image → text", "text_to_image": "text → image"}
CHANCES = {"image_to_text": "chance", "text_to_image": "chance_text"}


def show(finished: Finished, console: Console) -> None:
    """Print what a run has reached, and write its page."""
    console.print(evaluation_table(finished.evaluation))
    page = write_report(finished.folder.path)
    console.print(f"Queries and answers: {page}", soft_wrap=True)


def evaluation_table(record: Mapping[str, Any]) -> Table:
    """The content of an evaluation.json as a table."""
    result, sharpness = record["result"], record["sharpness"]
    seconds = sum(record["seconds"].values())
    geometry = result["modalities"]
    table = Table(
        title=record["run"],
        caption=(
            f"epochs: {record['epoch']}, {seconds:.0f} s; sharpness c = {sharpness:g}; modality "
            f"gap {geometry['gap']:.2f}, alignment {geometry['alignment']:.2f}, uniformity "
            f"{geometry['image_uniformity']:.2f} (images) {geometry['text_uniformity']:.2f} (texts)"
        ),
    )
    table.add_column(f"{record['settings']['part']} set, % (chance)")
    for heading in ("@1", "@5", "@10"):
        table.add_column(heading, justify="right")
    whole = f"whole split, {result['n_images']} images, {result['n_captions']} captions"
    batch = f"in batches of {result['batch_size']}"
    for place, name in (("in_batch", batch), ("whole_split", whole)):
        for key, direction in DIRECTIONS.items():
            found, chance = result[place][key], result[place][CHANCES[key]]
            cells = (
                f"{100 * found[k]:.1f} ({100 * chance[k]:.1f})" for k in ("at1", "at5", "at10")
            )
            table.add_row(f"{direction}, {name}", *cells)
    for name, row in result["zero_shot"].items():
        chance = row["chance"]
        table.add_row(
            f"zero-shot {name}, {row['n_images']} images",
            f"{100 * row['top1']:.1f} ({100 * chance:.1f})",
            f"{100 * row['top5']:.1f} ({500 * chance:.1f})",
            "",
        )
    return table
