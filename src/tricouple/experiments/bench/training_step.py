"""What a loss adds to a whole training step: encoder, loss, both gradients and the optimiser."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from rich.table import Table
from torch import Tensor, nn

from tricouple.experiments.bench.clip_step import ClipStepPlan, clip_steps
from tricouple.experiments.bench.summary import Claim
from tricouple.experiments.bench.timing import Step, time_together
from tricouple.losses import IOT, InfoNCE, NegMMIOT, PushPull
from tricouple.losses.base import ContrastiveLoss
from tricouple.models.encoders import build_encoder

BASELINE = "InfoNCE"
LOSSES: dict[str, Callable[[], ContrastiveLoss]] = {
    BASELINE: InfoNCE,
    "NegMMIOT": NegMMIOT,
    "PushPull": PushPull,
    "IOT": IOT,
}
TARGET = 1.05  # NegMMIOT against the baseline


@dataclass(frozen=True)
class StepPlan:
    """What is timed, and how long.

    Attributes:
        backbone: A model of timm.
        batch_size: Images in a batch.
        image_size: Their side.
        classes: Of the labels, and dimensions of the embedding.
        rounds: Interleaved turns of each loss, of one step each.
        seed: Of the weights and the batch.
    """

    backbone: str = "resnet18"
    batch_size: int = 256
    image_size: int = 32
    classes: int = 10
    rounds: int = 15
    seed: int = 0

    @classmethod
    def quick(cls) -> StepPlan:
        """A run of seconds."""
        return cls(batch_size=32, image_size=16, rounds=2)

    def __str__(self) -> str:
        return f"{self.backbone} step of {self.batch_size}"


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step with one loss, and its ratio to the baseline's."""

    loss: str
    best: float
    median: float
    ratio: float


AnyPlan: TypeAlias = StepPlan | ClipStepPlan


def measure_steps(
    plan: AnyPlan, on_turn: Callable[[str], None] = lambda loss: None
) -> list[StepTime]:
    """Time steps with every loss on the same network and batch, in interleaved rounds.

    Ratios are of the best times: noise only ever adds time.
    """
    torch.manual_seed(plan.seed)
    if isinstance(plan, ClipStepPlan):
        steps = clip_steps(plan, LOSSES)
    else:
        encoder = build_encoder(
            plan.backbone, channels=3, image_size=plan.image_size, head_dim=plan.classes
        )
        steps = make_steps(plan, encoder)
    for step in steps.values():
        step()
    timings = time_together(steps, plan.rounds, 0.0, on_turn)
    base = timings[BASELINE].best
    return [
        StepTime(name, timing.best, timing.median, timing.best / base)
        for name, timing in timings.items()
    ]


def make_steps(plan: StepPlan, encoder: nn.Module) -> dict[str, Step]:
    """A training step for each loss; they share the network, one optimiser and one batch."""
    optimiser = torch.optim.Adam(encoder.parameters(), lr=1e-3, fused=True)
    images = torch.randn(plan.batch_size, 3, plan.image_size, plan.image_size)
    labels = torch.randint(plan.classes, (plan.batch_size,))

    def step(criterion: Callable[..., Tensor]) -> Step:
        def run() -> None:
            optimiser.zero_grad()
            criterion(encoder(images), labels).backward()
            optimiser.step()

        return run

    return {name: step(make()) for name, make in LOSSES.items()}


def step_claim(times: list[StepTime], plan: AnyPlan) -> Claim:
    """The target of the project, met or missed."""
    ratio = next(time.ratio for time in times if time.loss == "NegMMIOT")
    text = f"a {plan} with NegMMIOT takes {ratio:.3f}× InfoNCE's"
    return Claim(text, f"at most {TARGET}×", ratio <= TARGET)


def step_table(times: list[StepTime], plan: AnyPlan) -> Table:
    """One row a loss."""
    table = Table(title=f"training: a {plan}")
    table.add_column("loss")
    for heading in ("best, ms", "median, ms", f"× {BASELINE}"):
        table.add_column(heading, justify="right")
    for time in times:
        table.add_row(
            time.loss, f"{1e3 * time.best:.1f}", f"{1e3 * time.median:.1f}", f"{time.ratio:.3f}"
        )
    return table


def write_steps(
    path: Path, plan: AnyPlan, times: list[StepTime], provenance: dict[str, Any]
) -> None:
    """Keep the numbers as JSON."""
    content = {
        "plan": asdict(plan),
        "times": [asdict(time) for time in times],
        "provenance": provenance,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
