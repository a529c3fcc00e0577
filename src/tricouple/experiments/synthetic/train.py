"""One run: train an encoder on the mixture with a method, and measure it on the way."""

from __future__ import annotations

import itertools
import math
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, RandomSampler

from tricouple.data.gmm import class_sizes, draw_mixture
from tricouple.data.sampler import ClassUniformBatchSampler
from tricouple.experiments.synthetic.config import TAKES, RunConfig
from tricouple.experiments.synthetic.measure import Measurement, measure
from tricouple.models.encoders import three_layer_mlp
from tricouple.names import LOSSES
from tricouple.relations import Identities, view_pairs
from tricouple.training.byol import BYOL, momentum_at, predictor_head

HELD_OUT_PER_CLASS = 50
N_MEASUREMENTS = 32


@dataclass(frozen=True)
class Samples:
    """The training set and the held-out set, which is balanced: inputs (n, d), labels (n,)."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]


def train(config: RunConfig) -> Iterator[tuple[Measurement, Tensor]]:
    """Train, and yield each measurement with the embeddings (n, dim) of the training set.

    The first is before any step, the last after all of them or where the numbers ended.

    Example:
        >>> points = [point for point, _ in train(RunConfig(n_classes=3, steps=4))]
        >>> [point.step for point in points]
        [0, 1, 2, 3, 4]
    """
    samples = draw_samples(config)
    inputs, labels = samples.train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        method = build_method(config)
    trainable = [parameter for parameter in method.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(
        trainable, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    to_measure = set(measured_steps(config.steps))

    @torch.no_grad()
    def look(step: int, losses: list[float]) -> tuple[Measurement, Tensor]:
        embeddings = method.encoder(inputs)
        held_out = method.encoder(samples.held_out[0]), samples.held_out[1]
        loss = math.fsum(losses) / len(losses)
        return measure(step, loss, (embeddings, labels), held_out), embeddings

    losses: list[float] = []
    for step, batch in enumerate(batches(config, labels)):
        loss = method.loss(inputs[batch], labels[batch])
        losses.append(loss.item())
        if step == 0:
            yield look(0, losses)
        if not math.isfinite(losses[-1]):
            yield look(step, losses[-1:])
            return
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * rate_factor(config, step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        method.after_step(step, config.steps)
        if step + 1 in to_measure:
            yield look(step + 1, losses)
            losses.clear()


def draw_samples(config: RunConfig) -> Samples:
    """Draw the data of a seed: the same for all methods."""
    generator = torch.Generator().manual_seed(config.seed)
    mixture = draw_mixture(config.n_classes, config.data_dim, config.kappa, generator=generator)
    sizes = class_sizes(config.n_classes, config.per_class, config.imbalance)
    return Samples(
        train=mixture.sample(sizes, generator),
        held_out=mixture.sample([HELD_OUT_PER_CLASS] * config.n_classes, generator),
    )


def batches(config: RunConfig, labels: Tensor) -> Iterator[list[int]]:
    """The batches of a run, one for each step."""
    if config.sampler == "class_uniform":
        return iter(
            ClassUniformBatchSampler(
                labels,
                config.batch_per_class,
                config.carry_over,
                n_batches=config.steps,
                seed=config.seed,
            )
        )
    order = RandomSampler(range(len(labels)), generator=torch.Generator().manual_seed(config.seed))
    size = min(config.n_classes * config.batch_per_class, len(labels))
    epochs = itertools.repeat(BatchSampler(order, size, drop_last=True))
    return itertools.islice(itertools.chain.from_iterable(epochs), config.steps)


def rate_factor(config: RunConfig, step: int) -> float:
    """The learning rate at a step, from 0, as a share of the first one."""
    if config.schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * step / config.steps)) / 2


def measured_steps(steps: int, count: int = N_MEASUREMENTS) -> list[int]:
    """When to measure: denser at the start, where most happens, and always at the end.

    Example:
        >>> measured_steps(100, 4)
        [6, 25, 56, 100]
    """
    return sorted({max(1, round(steps * (i / count) ** 2)) for i in range(1, count + 1)})


class Method(nn.Module):
    """An encoder and how it learns: by a loss of embeddings and labels, if nothing else."""

    def __init__(self, encoder: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.criterion = criterion

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, a scalar; NaN where the embeddings are no longer finite."""
        embeddings: Tensor = self.encoder(inputs)
        if not bool(torch.isfinite(embeddings).all()):
            return embeddings.new_tensor(torch.nan)
        value: Tensor = self.criterion(embeddings, labels)
        return value

    def after_step(self, step: int, n_steps: int) -> None:
        """What is left to do after the optimiser's step number `step`, from 0."""


class Bootstrap(Method):
    """BYOL, with two samples of one class as the two views."""

    criterion: BYOL

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Samples of a class are paired in batch order, as in VICReg."""
        first, second = view_pairs(Identities.within_one_set(labels))
        return self.criterion.loss(inputs[first], inputs[second])

    def after_step(self, step: int, n_steps: int) -> None:
        """The target follows, ever more slowly."""
        self.criterion.update_target(momentum_at(step, n_steps))


def build_method(config: RunConfig) -> Method:
    """Build encoder and method; the encoder comes first, so it is the same for all methods.

    BYOL and VICReg have the settings of their own papers.

    Example:
        >>> method = build_method(RunConfig(method="vicreg", shaping=None))
        >>> method.loss(torch.randn(8, 100), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).shape
        torch.Size([])
    """
    encoder = three_layer_mlp(config.data_dim, config.hidden, config.dim)
    if config.method == "byol":
        return Bootstrap(encoder, BYOL(encoder, predictor_head(config.dim)))
    settings = {name: getattr(config, name) for name in TAKES[config.method]}
    if config.method == "pushpull":
        settings["epsilon_pos"] = settings["epsilon_neg"] = settings.pop("epsilon")
    criterion = pkgutil.resolve_name(str(LOSSES[config.method].target))
    return Method(encoder, criterion(**settings))
