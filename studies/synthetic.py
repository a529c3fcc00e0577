"""The synthetic mixture at sharpnesses that the stored runs lack: how near each loss ends."""

import math
import tempfile
from collections.abc import Sequence
from typing import Any

from studies.study import Config, Measure, Runs, Stage
from tricouple_lab.config.compose import compose
from tricouple_lab.runs.execute import execute
from tricouple_lab.tasks.base import task_of


def prepare(runs: Runs, name: str, of_cell: Sequence[str]) -> Measure:
    """Geometry of the embeddings after a run of ``tricouple synthetic``, or before it."""

    def measure(config: Config, part: str) -> dict[str, float]:
        row, plan = config["row"], runs.plan
        words = [*plan["words"], *of_cell, *plan["rows"][row], f"seed={config['seed']}"]
        with tempfile.TemporaryDirectory() as folder:
            settings = compose("mixture", [*words, f"run={folder}/run"])
            record = execute(task_of("mixture"), settings, say=lambda line: None)
        runs.data = record.data["digest"][:12]
        found = record.before if row == "untrained" else record.after
        return {
            "log10 NC1": math.log10(found["geometry/nc1"]),
            "log10 NC2 deviation": math.log10(found["geometry/nc2_deviation"]),
            "directions": found["geometry/directions"],
            "k-NN": 100 * found["embedding/knn"],
        }

    return measure


def stages(runs: Runs, row: str, cell: Any) -> list[Stage]:
    """Nothing is chosen."""
    return [Stage({})]
