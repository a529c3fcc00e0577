"""The one problem that all contenders solve with its random batches, and whole training steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple import IOT, InfoNCE, NegMMIOT, PushPull
from tricouple.losses.base import ContrastiveLoss
from tricouple.shaping import Hinge

Criterion = Callable[[Tensor, Tensor], Tensor]
"""Embeddings (N, d) and labels (N,) in, a scalar out."""


@dataclass(frozen=True)
class Problem:
    """What is fixed while contender and batch size vary."""

    dim: int = 128
    classes: int = 10
    temperature: float = 0.1
    epsilon: float = 0.1
    n_iters: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """A random batch: class centres plus noise, with unbalanced classes."""

    embeddings: Tensor  # (N, d) float32, not normalised: that is part of a loss
    labels: Tensor  # (N,) int64

    def similarities(self) -> Tensor:
        """Return the N×N cosine similarities."""
        unit = normalize(self.embeddings, dim=1)
        return unit @ unit.T

    def pair_cost(self) -> Tensor:
        """Return 1 − s with an infinite diagonal, the cost of the pairwise plans."""
        return (1.0 - self.similarities()).fill_diagonal_(torch.inf)

    def value_and_gradient(self, criterion: Criterion) -> Callable[[], tuple[Tensor, Tensor]]:
        """Return a call that evaluates a loss and its gradient at the embeddings."""
        embeddings = self.embeddings.clone().requires_grad_()

        def step() -> tuple[Tensor, Tensor]:
            value = criterion(embeddings, self.labels)
            (gradient,) = torch.autograd.grad(value, embeddings)
            return value.detach(), gradient

        return step


def make_batch(size: int, problem: Problem) -> Batch:
    """Draw a batch; the same size and problem give the same batch in every process.

    Class k is drawn with probability proportional to 1 / (k + 1), so that classes differ in size
    as they do in shuffled mini-batches.
    """
    generator = torch.Generator().manual_seed(problem.seed)
    weights = 1.0 / torch.arange(1, problem.classes + 1, dtype=torch.float32)
    labels = torch.multinomial(weights, size, replacement=True, generator=generator)
    centres = torch.randn(problem.classes, problem.dim, generator=generator)
    noise = torch.randn(size, problem.dim, generator=generator)
    return Batch(embeddings=centres[labels] + noise, labels=labels)


# --- training steps: encoder, loss, both gradients and the optimiser; only the loss differs -------


TRAINING_STEP = "training step"
BASELINE = "InfoNCE"
LOSSES: dict[str, Callable[[], ContrastiveLoss]] = {
    BASELINE: InfoNCE,
    "NegMMIOT": NegMMIOT,
    "NegMMIOT log-sigmoid": partial(NegMMIOT, shaping="log_sigmoid"),
    "NegMMIOT hinge": partial(NegMMIOT, shaping=Hinge(margin=0.5)),
    "PushPull": PushPull,
    "IOT": IOT,
}

StepOf: TypeAlias = Callable[[ContrastiveLoss], Callable[[], None]]


@dataclass(frozen=True)
class VisionStep:
    """Training on labelled images."""

    backbone: str = "resnet18"  # a model of timm
    batch_size: int = 256  # images in a batch
    image_size: int = 32  # their side
    classes: int = 10  # of the labels, and dimensions of the embedding
    rounds: int = 40  # interleaved turns of each loss, of one step each
    seed: int = 0  # of the weights and the batch

    def __str__(self) -> str:
        return f"{self.backbone} step of {self.batch_size}"

    def build(self) -> StepOf:
        """Build network and batch; return what makes a step of a loss."""
        from tricouple_lab.models.encoders import build_encoder  # timm

        torch.manual_seed(self.seed)
        side = self.image_size
        encoder = build_encoder(self.backbone, channels=3, image_size=side, head_dim=self.classes)
        optimiser = torch.optim.Adam(encoder.parameters(), lr=1e-3, fused=True)
        images = torch.randn(self.batch_size, 3, side, side)
        labels = torch.randint(self.classes, (self.batch_size,))
        return lambda loss: _step(optimiser, lambda: loss(encoder(images), labels))


@dataclass(frozen=True)
class ClipStep:
    """Training on images with captions, in both directions."""

    model: str = "small"  # of ``tricouple clip``; the smaller the model, the more a loss weighs
    batch_size: int = 64  # pairs in a batch
    rounds: int = 60  # interleaved turns of each loss, of one step each
    seed: int = 0  # of the weights and the batch

    def __str__(self) -> str:
        return f"CLIP ({self.model}) step of {self.batch_size}"

    def build(self) -> StepOf:
        """Build network and batch; return what makes a step of a loss."""
        from tricouple import BothDirections
        from tricouple_lab.conf.compose import configure
        from tricouple_lab.conf.schema import Clip  # hydra, open_clip
        from tricouple_lab.models.encoders import build_clip
        from tricouple_lab.training.module import derived_seed

        settings = configure([f"model={self.model}"], Clip).model
        torch.manual_seed(derived_seed(self.seed, "weights"))
        model = build_clip(settings.embed_dim, settings.vision, settings.text)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        n, side = self.batch_size, int(settings.vision["image_size"])
        vocabulary, length = (int(settings.text[key]) for key in ("vocab_size", "context_length"))
        torch.manual_seed(self.seed)
        images = torch.randn(n, 3, side, side).contiguous(memory_format=torch.channels_last)
        tokens = torch.randint(1, vocabulary, (n, length))
        identities = torch.arange(n)

        def step_of(loss: ContrastiveLoss) -> Callable[[], None]:
            both = BothDirections(loss)
            return _step(
                optimiser,
                lambda: both(model.encode_image(images), model.encode_text(tokens), identities),
            )

        return step_of


AnyStep: TypeAlias = VisionStep | ClipStep

STEPS: dict[str, AnyStep] = {"vision": VisionStep(), "clip": ClipStep()}
QUICK_STEPS: dict[str, AnyStep] = {  # of seconds
    "vision": VisionStep(batch_size=32, image_size=16, rounds=2),
    "clip": ClipStep(model="tiny", batch_size=16, rounds=2),
}


def training_steps(setup: AnyStep) -> dict[str, Callable[[], None]]:
    """A training step with each loss, by the name of the loss."""
    step_of = setup.build()
    return {name: step_of(make()) for name, make in LOSSES.items()}


def _step(optimiser: torch.optim.Optimizer, value: Callable[[], Tensor]) -> Callable[[], None]:
    def step() -> None:
        optimiser.zero_grad()
        value().backward()
        optimiser.step()

    return step
