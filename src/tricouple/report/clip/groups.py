"""Runs of an image-text study that differ only in their seed."""

from __future__ import annotations

from dataclasses import dataclass

from tricouple.report import seeds
from tricouple.report.read import Run, Study, StudyError
from tricouple.report.statistics import Curve, MeanStd
from tricouple.report.words import METHODS, axis_value

# Losses of the command line, in the order of the paper's table, by their name in the report.
LOSSES = {
    "infonce": "infonce",
    "iot": "iot",
    "iot_uniformity": "iot_uniformity",
    "dbot": "dbot",
    "fused_gromov": "fused_gromov",
    "pushpull": "pushpull",
    "neg_mmiot": "neg_mmiot",
    "dbot_published": "dbot_published",
    "fused_gromov_published": "fused_gromov_published",
}
NAMES = {
    "iot": "Standard OT",
    "iot_uniformity": "Standard OT with uniformity",
}
FINAL, SHARPNESS = "final", "sharpness"


@dataclass(frozen=True)
class Group:
    """The seeds of a loss at one sharpness."""

    loss: str
    sharpness: float
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The loss in words."""
        return loss_name(self.loss)

    @property
    def method(self) -> str:
        """The loss by the name that styles know."""
        return LOSSES.get(self.loss, self.loss)

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that came to their end."""
        return seeds.finished(self.runs)

    def percent(self, name: str) -> MeanStd:
        """A share over the finished seeds, in per cent."""
        share = self.metric(name)
        return MeanStd(100 * share.mean, 100 * share.std, share.count)

    def metric(self, name: str) -> MeanStd:
        """A measure over the finished seeds."""
        return seeds.metric(self.runs, name)

    def curve(self, name: str) -> Curve:
        """A quantity over the epochs."""
        return seeds.curve_over(self.finished, name, "epoch")


def loss_name(loss: str) -> str:
    """Return the name of a loss of the command line.

    Example:
        >>> loss_name("pushpull"), loss_name("iot"), loss_name("my_loss")
        ('PushPull', 'Standard OT', 'my_loss')
    """
    return NAMES.get(loss) or METHODS.get(LOSSES.get(loss, loss), loss)


def group(study: Study, part: str) -> tuple[Group, ...]:
    """Gather the seeds of every loss and sharpness of a part, in the order of the paper.

    Raises:
        StudyError: If a run does not say what it is a run of.
    """
    found: dict[tuple[str, float], list[Run]] = {}
    for run in study.part(part):
        loss, sharpness = run.config.get("loss"), run.config.get("sharpness")
        if not isinstance(loss, str) or not isinstance(sharpness, int | float):
            raise StudyError(
                f"runs.jsonl, line {run.line}: config of run {run.id} needs loss and sharpness"
            )
        found.setdefault((loss, float(sharpness)), []).append(run)
    order = list(LOSSES)
    return tuple(
        Group(loss, sharpness, tuple(found[loss, sharpness]))
        for loss, sharpness in sorted(
            found, key=lambda key: (order.index(key[0]) if key[0] in order else 99, key)
        )
    )


def finals(study: Study) -> tuple[Group, ...]:
    """The final runs of every loss that has a finished one."""
    return tuple(own for own in group(study, FINAL) if own.finished)


def where(study: Study) -> str:
    """What the runs were trained on, in words."""
    for run in study.runs:
        config = run.config
        return (
            f"{config.get('data')}, model {config.get('model')} at {config.get('image_size')} "
            f"pixels, {config.get('epochs')} epochs, batches of {config.get('batch_size')}, "
            f"learning rate {axis_value(config.get('learning_rate'))}"
        )
    return "nothing yet"
