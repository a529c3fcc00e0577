"""The synthetic mixture at sharpnesses that the stored runs lack: how near each loss ends."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence

from studies.study import Plan, Runs
from tricouple_lab.config.compose import compose
from tricouple_lab.runs.execute import execute
from tricouple_lab.tasks.base import task_of


def run(plan: Plan, runs: Runs) -> None:
    """All cells, rows and seeds: runs of ``tricouple synthetic``."""
    for cell, of_cell in plan["cells"].items():
        for row, of_row in plan["rows"].items():
            for seed in plan["seeds"]:
                words = [*plan["words"], *of_cell, *of_row, f"seed={seed}"]

                def measure(words: Sequence[str] = words, before: bool = row == "untrained"):  # type: ignore[no-untyped-def]
                    return measured(words, before, runs)

                runs("final", {"cell": cell, "row": row, "seed": seed}, measure)


def measured(words: Sequence[str], before: bool, runs: Runs) -> dict[str, float]:
    """Geometry of the embeddings after training, or before it."""
    with tempfile.TemporaryDirectory() as folder:
        config = compose("mixture", [*words, f"run={folder}/run"])
        record = execute(task_of("mixture"), config, say=lambda line: None)
    runs.data = record.data["digest"][:12]
    found = record.before if before else record.after
    return {
        "log10 NC1": math.log10(found["geometry/nc1"]),
        "log10 NC2 deviation": math.log10(found["geometry/nc2_deviation"]),
        "directions": found["geometry/directions"],
        "k-NN": 100 * found["embedding/knn"],
    }
