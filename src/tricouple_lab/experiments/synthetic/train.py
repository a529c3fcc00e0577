"""One run: train an encoder on the mixture with a method, and measure it on the way."""

from __future__ import annotations

import itertools
import math
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, RandomSampler

from tricouple import geometry
from tricouple_lab.data.gmm import class_sizes, draw_mixture
from tricouple_lab.data.sampler import ClassUniformBatchSampler
from tricouple_lab.evaluation.probe import knn_accuracy
from tricouple_lab.experiments.synthetic.config import TAKES, RunConfig
from tricouple_lab.models.encoders import three_layer_mlp
from tricouple_lab.names import LOSSES
from tricouple_lab.report.numbers import directions
from tricouple_lab.training.byol import BYOL, class_pairs, momentum_at, predictor_head

CURVES = (
    "loss", "nc1", "nc2_std", "nc2_deviation", "alpha", "beta", "effective_rank", "knn",
)  # fmt: skip
"""The quantities that become curves, beside ``step``."""


ETF_DEVIATION = 0.01
ETF_RATIO = 0.95
ALIVE = 0.01
NO_SPREAD = 0.01
ONE_DIRECTION = 1.5
LOSS_NOISE = 0.05

MEANINGS = {
    "etf": f"NC2 deviation ≤ {ETF_DEVIATION} and every one of the K−1 eigenvalues of the "
    f"class-mean covariance at least {ETF_RATIO:.0%} of the largest",
    "rich": "not ETF, but every direction the class means could fill (the smaller of K−1 and the "
    f"embedding dimension) has an eigenvalue of {ALIVE:.0%} of the largest or more",
    "reduced": "some of these directions are lost, not all",
    "collapsed": f"the class means fill {ONE_DIRECTION} directions or fewer (exponential of the "
    f"entropy of the eigenvalues' shares), or their total variance is below {NO_SPREAD}",
    "diverged": "numbers were no longer finite, or the loss ended above its start by more than "
    f"{LOSS_NOISE:.0%}",
}


@dataclass(frozen=True)
class Measurement:
    """One point of all curves."""

    step: int  # optimiser steps done
    # Mean loss of the batches since the last measurement; at step 0 that of the first one.
    loss: float
    nc1: float  # scatter within classes, summed over the training set
    nc2_std: float  # standard deviation of the cosines between centred class means
    nc2_deviation: float  # their mean distance from −1/(K−1)
    alpha: float  # mean cosine within classes
    beta: float  # mean cosine across classes
    effective_rank: float  # of the training embeddings
    knn: float  # accuracy of k-NN on held-out samples; the neighbours are training samples
    spectrum: tuple[float, ...]  # eigenvalues of the class-mean covariance, descending, K−1 of them

    @property
    def finite(self) -> bool:
        """Whether training still has numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.nc1)


def measure(
    step: int, loss: float, train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor]
) -> Measurement:
    """Measure embeddings (n, d) with their labels (n,); NaN throughout if they are not finite.

    Example:
        >>> z, labels = torch.eye(3).repeat_interleave(20, 0), torch.arange(3).repeat_interleave(20)
        >>> point = measure(0, 1.0, (z, labels), (z, labels))
        >>> point.nc1, point.knn, len(point.spectrum)
        (0.0, 1.0, 2)
    """
    embeddings, labels = train
    if not bool(torch.isfinite(embeddings).all() & torch.isfinite(held_out[0]).all()):
        n_values = len(torch.unique(labels)) - 1
        return Measurement(step, loss, *(math.nan,) * 7, (math.nan,) * n_values)
    collapse = geometry.neural_collapse(embeddings, labels)
    distances = geometry.two_distance(embeddings, labels)
    return Measurement(
        step=step,
        loss=loss,
        nc1=collapse.nc1,
        nc2_std=collapse.nc2_std,
        nc2_deviation=collapse.nc2_deviation,
        alpha=distances.alpha,
        beta=distances.beta,
        effective_rank=geometry.effective_rank(embeddings),
        knn=knn_accuracy(embeddings, labels, *held_out, k=min(20, len(labels))),
        spectrum=tuple(collapse.spectrum.tolist()),
    )


def judge(
    losses: Sequence[float], nc2_deviation: float, spectrum: Sequence[float], dim: int
) -> str:
    """Name the outcome of a run from its curves' ends; ``MEANINGS`` says what each word means.

    The spectrum has the K−1 last eigenvalues of the class-mean covariance, descending.

    Example:
        >>> judge([2.0, 1.0], 0.0, [0.5, 0.5, 0.5], dim=8)
        'etf'
        >>> judge([2.0, 1.0], 0.2, [0.9, 0.5, 0.001], dim=8)
        'reduced'
    """
    if not all(map(math.isfinite, [*losses, nc2_deviation, *spectrum])):
        return "diverged"
    if losses[-1] - losses[0] > LOSS_NOISE * abs(losses[0]):
        return "diverged"
    total = sum(spectrum)
    if total < NO_SPREAD or directions(spectrum) <= ONE_DIRECTION < len(spectrum):
        return "collapsed"
    if nc2_deviation <= ETF_DEVIATION and spectrum[-1] >= ETF_RATIO * spectrum[0]:
        return "etf"
    possible = min(dim, len(spectrum))
    return "rich" if spectrum[possible - 1] >= ALIVE * spectrum[0] else "reduced"


# --- training -------------------------------------------------------------------------------------


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
        first, second = class_pairs(labels)
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
