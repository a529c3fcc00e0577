"""The synthetic mixture at sharpnesses that the stored runs lack: how near each loss ends."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from studies.study import Measure, Plan, Runs, Stage, run_rows
from tricouple_lab.config.compose import compose
from tricouple_lab.runs.execute import execute
from tricouple_lab.tasks.base import task_of


def run(plan: Plan, runs: Runs) -> None:
    """All cells, rows and seeds: runs of ``tricouple synthetic``."""

    def prepare(name: str, of_cell: Sequence[str]) -> Measure:
        def measure(config: Mapping[str, Any], part: str) -> dict[str, float]:
            row = config["row"]
            words = [*plan["words"], *of_cell, *plan["rows"][row], f"seed={config['seed']}"]
            return measured(words, row == "untrained", runs)

        return measure

    run_rows(plan, runs, prepare, lambda row, cell: [Stage({}, "")])


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
