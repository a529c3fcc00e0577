"""What every kind of run writes beside its weights: how good they are, and how that was found."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from tricouple.experiments.runs.run_folder import RunConfig, RunFolder
from tricouple.experiments.runs.trained import Trained
from tricouple.files import write_text
from tricouple.provenance import collect_provenance
from tricouple.training.history import curves


@dataclass(frozen=True)
class Beginning:
    """When an evaluation began, and under which circumstances."""

    seconds: float = field(default_factory=time.monotonic)
    provenance: dict[str, Any] = field(default_factory=collect_provenance)


def write_evaluation(
    config: RunConfig, folder: RunFolder, trained: Trained, began: Beginning, **found: object
) -> dict[str, Any]:
    """Write evaluation.json.

    Args:
        config: Of the run.
        folder: Of the run.
        trained: What was evaluated.
        began: Made before the evaluation.
        **found: What this kind of run measures.

    Returns:
        The content of that file.
    """
    record = {
        "run": folder.path.name,
        "epoch": trained.epoch,
        "settings": asdict(config.evaluation),
        **found,
        "curves": curves(trained.rows),
        "seconds": {
            "training": trained.rows[-1]["seconds"],
            "evaluation": round(time.monotonic() - began.seconds, 3),
        },
        "config": asdict(config),
        "provenance": began.provenance,
    }
    text = json.dumps(record, indent=1) + "\n"
    write_text(folder.evaluation, text)
    content: dict[str, Any] = json.loads(text)
    return content


def is_evaluated(folder: RunFolder, config: RunConfig) -> bool:
    """Whether the whole training was evaluated, in the way that the configuration asks for."""
    record = folder.read_evaluation()
    return (
        record is not None
        and record.get("epoch") == config.training.epochs
        and record.get("settings") == asdict(config.evaluation)
    )
