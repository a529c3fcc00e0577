"""A comparison of losses, each at the setting that suits it, found for all in the same way.

Within a block (a data set and a setting), for each loss: the sharpness is chosen at the first
learning rate, then the learning rate at that sharpness, at the first seed and on validation
images; what was chosen is then measured on the test set, for all seeds. The test set is not looked
at before.

Every finished run is a line of ``runs.jsonl``. A study that is started again reads them, and goes
on with what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tricouple.conf.schema import Study

SHARPNESS, LEARNING_RATE, FINAL = "sharpness", "learning_rate", "final"


@dataclass(frozen=True)
class Trial:
    """One run that a study wants.

    Attributes:
        part: What it is for: ``sharpness``, ``learning_rate`` or ``final``.
        block: Words of its block.
        loss: Name of the loss.
        sharpness: c.
        learning_rate: Of Adam.
        seed: Of the run.
    """

    part: str
    block: tuple[str, ...]
    loss: str
    sharpness: float
    learning_rate: float
    seed: int

    def words(self) -> list[str]:
        """The configuration of the run, after the words that all runs share."""
        return [
            *self.block,
            f"loss={self.loss}",
            f"loss.sharpness={self.sharpness:g}",
            f"training.learning_rate={self.learning_rate:g}",
            f"seed={self.seed}",
            f"evaluation.part={'test' if self.part == FINAL else 'validation'}",
        ]


def run_block(study: Study, block: tuple[str, ...], measure: Callable[[Trial], float]) -> None:
    """Choose and measure, loss after loss.

    Args:
        study: The grids.
        block: Words of the block.
        measure: Does a trial, or remembers it, and returns its accuracy; 0 if it diverged.
    """
    rate, seed = study.learning_rates[0], study.seeds[0]
    for loss in study.losses:
        trials = [Trial(SHARPNESS, block, loss, c, rate, seed) for c in study.sharpness]
        scores = {trial: measure(trial) for trial in trials}
        for other in study.learning_rates[1:]:
            trial = replace(best(scores), part=LEARNING_RATE, learning_rate=other)
            scores[trial] = measure(trial)
        for number in study.seeds:
            measure(replace(best(scores), part=FINAL, seed=number))


def best(scores: Mapping[Trial, float]) -> Trial:
    """The trial with the highest accuracy; of equal ones the first.

    Example:
        >>> soft, sharp = (Trial(SHARPNESS, (), "iot", c, 1e-3, 0) for c in (3, 100))
        >>> best({soft: 0.5, sharp: 0.4}).sharpness
        3
    """
    return max(scores, key=lambda trial: scores[trial])
