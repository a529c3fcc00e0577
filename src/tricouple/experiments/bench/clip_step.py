"""Training steps of an image and a text encoder, one with each loss, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple.conf.compose import configure
from tricouple.conf.schema import Clip
from tricouple.experiments.bench.timing import Step
from tricouple.experiments.clip.method import build_model
from tricouple.losses.base import ContrastiveLoss
from tricouple.training.both_directions import BothDirections


@dataclass(frozen=True)
class ClipStepPlan:
    """What is timed, and how long.

    Attributes:
        model: Of ``tricouple clip``; the smaller the model, the more a loss weighs.
        batch_size: Pairs in a batch.
        rounds: Interleaved turns of each loss, of one step each.
        seed: Of the weights and the batch.
    """

    model: str = "small"
    batch_size: int = 64
    rounds: int = 60
    seed: int = 0

    @classmethod
    def quick(cls) -> ClipStepPlan:
        """A run of seconds."""
        return cls(model="tiny", batch_size=16, rounds=2)

    def __str__(self) -> str:
        return f"CLIP ({self.model}) step of {self.batch_size}"


def clip_steps(
    plan: ClipStepPlan, losses: Mapping[str, Callable[[], ContrastiveLoss]]
) -> dict[str, Step]:
    """A training step for each loss; they share the model, one optimiser and one batch."""
    config = configure([f"model={plan.model}", f"seed={plan.seed}"], Clip)
    model = build_model(config)
    vision, text = config.model.vision, config.model.text
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(plan.seed)
    side, n = int(vision["image_size"]), plan.batch_size
    images = torch.randn(n, 3, side, side).contiguous(memory_format=torch.channels_last)
    tokens = torch.randint(1, int(text["vocab_size"]), (n, int(text["context_length"])))
    identities = torch.arange(n)

    def step(criterion: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Step:
        def run() -> None:
            optimiser.zero_grad()
            both = model.encode_image(images), model.encode_text(tokens)
            criterion(*both, identities).backward()
            optimiser.step()

        return run

    return {name: step(BothDirections(make())) for name, make in losses.items()}
