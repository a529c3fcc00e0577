"""The synthetic mixture of the paper, and its class-uniform batches (Algorithm 4).

Class means span a (K−1)-dimensional subspace and sum to zero. All classes share one covariance: the
identity inside that subspace and κ times the identity in its complement. With a large κ most of the
variance says nothing about the class.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tricouple_lab.config.schema import MixtureData
from tricouple_lab.data.sources import Sets
from tricouple_lab.files import derived_seed
from tricouple_lab.names import UserError

HELD_OUT = 50  # samples per class of the validation and of the test set
BATCHES = 100  # of an epoch


@dataclass(frozen=True)
class Mixture:
    """K Gaussians in d dimensions that share one covariance."""

    means: Tensor  # (K, d); they sum to zero
    subspace: Tensor  # (d, K−1): orthonormal columns that span the means
    kappa: float  # variance in each direction outside the subspace

    @classmethod
    def draw(cls, n_classes: int, dim: int, kappa: float, generator: torch.Generator) -> Mixture:
        """Draw means and subspace.

        The paper does not state the distance of the means. Here their coordinates inside the
        subspace are standard normal before they are centred, so that classes overlap.
        """
        # The Q of a Gaussian matrix spans a uniformly random subspace.
        subspace = torch.linalg.qr(torch.randn(dim, n_classes - 1, generator=generator)).Q
        coordinates = torch.randn(n_classes, n_classes - 1, generator=generator)
        return cls((coordinates - coordinates.mean(0)) @ subspace.T, subspace, kappa)

    def sample(self, sizes: Sequence[int], generator: torch.Generator) -> Samples:
        """Draw inputs (n, d) and labels (n,), class after class."""
        labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        noise = torch.randn(len(labels), self.means.shape[1], generator=generator)
        inside = noise @ self.subspace @ self.subspace.T
        noise = inside + self.kappa**0.5 * (noise - inside)
        return Samples(self.means[labels] + noise, labels)


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs (n, d) and labels (n,)."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a whole batch at once; PyTorch's DataLoader calls this."""
        return self.inputs[indices], self.labels[indices]

    def content(self) -> Iterator[bytes]:
        """Yield what the digest is computed from."""
        yield self.inputs.numpy().tobytes()
        yield self.labels.numpy().tobytes()


@dataclass(frozen=True, eq=False)
class ClassUniform(Samples):
    """Training samples whose batches have equally many samples of each class.

    A batch keeps the share ``carry_over`` of the batch before. The others are drawn from the
    samples that the current pass over the class has not shown yet; when these run out, the batch
    takes all that are left and begins another pass (Algorithm 4 of the paper).
    """

    per_class: int  # b, samples of each class in a batch
    carry_over: float  # ρ, between 0 (all new) and 1 (always the same batch)

    @cached_property
    def epoch_size(self) -> int:
        """Samples of an epoch, repeated ones counted each time."""
        return BATCHES * self.per_class * len(self.labels.unique())

    def order(self, seed: int) -> list[int]:
        """Indices of the batches of an epoch, one batch after the other."""
        generator = torch.Generator().manual_seed(seed)
        size, kept = self.per_class, math.floor(self.carry_over * self.per_class + 1e-9)
        members = [(self.labels == k).nonzero()[:, 0].tolist() for k in self.labels.unique()]
        classes = [_class_batches(own, size, kept, generator) for own in members]
        return [index for _ in range(BATCHES) for batches in classes for index in next(batches)]


def _class_batches(
    members: list[int], size: int, kept: int, generator: torch.Generator
) -> Iterator[list[int]]:
    """Yield batches of one class: ``kept`` samples of the last one, and others up to ``size``."""

    def draw(indices: list[int], count: int) -> list[int]:
        order = torch.randperm(len(indices), generator=generator)[:count]
        return [indices[place] for place in order.tolist()]

    last: list[int] = []
    left = members  # not shown in this pass
    while True:
        keep = draw(last, kept)
        new = [index for index in left if index not in keep]
        wanted = size - len(keep)
        if len(new) >= wanted:
            new = draw(new, wanted)
        else:  # another pass
            left = [index for index in members if index not in (*keep, *new)]
            new += draw(left, wanted - len(new))
        left = [index for index in left if index not in new]
        last = keep + new
        yield last


def class_sizes(n_classes: int, per_class: int, imbalance: float) -> list[int]:
    """Sizes that fall geometrically; the largest is ``imbalance`` times the smallest."""
    steps = max(1, n_classes - 1)
    return [round(per_class * imbalance ** (-rank / steps)) for rank in range(n_classes)]


def load_mixture(config: MixtureData, seed: int, batch_size: int) -> Sets:
    """Draw train, validation and test samples; a seed gives the same ones to all methods.

    With ``data.sampler=class_uniform`` a batch has batch_size // K samples of each class.
    """
    check(config, batch_size)
    n_classes = config.n_classes
    generator = torch.Generator().manual_seed(derived_seed(seed, "mixture"))
    sizes, held_out = class_sizes(n_classes, config.per_class, config.imbalance), [HELD_OUT]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products depend on the number of threads, and a digest on each bit
    mixture = Mixture.draw(n_classes, config.dim, config.kappa, generator)
    parts = sizes, held_out * n_classes, held_out * n_classes
    train, validation, test = (mixture.sample(part, generator) for part in parts)
    torch.set_num_threads(threads)
    if config.sampler == "class_uniform":
        per_class, carry_over = batch_size // n_classes, config.carry_over
        train = ClassUniform(train.inputs, train.labels, per_class, carry_over)
    classes = tuple(f"class {index}" for index in range(n_classes))
    return Sets({"train": train, "validation": validation, "test": test}, classes)


def check(config: MixtureData, batch_size: int) -> None:
    """Raise for settings that no mixture can have."""
    k, largest, imbalance = config.n_classes, config.per_class, config.imbalance
    uniform, b = config.sampler == "class_uniform", batch_size // max(1, k)
    if k < 2:
        fault = f"data.n_classes={k}: 2 or more are needed for a negative"
    elif config.dim < k - 1:
        fault = f"data.dim={config.dim}: the means of {k} classes need {k - 1} or more"
    elif not 1 <= imbalance <= largest / 2:
        fault = f"data.imbalance={imbalance:g}: must be 1 to {largest / 2:g}, so that the smallest "
        fault += f"class has 2 samples if the largest has {largest}"
    elif config.kappa <= 0:
        fault = f"data.kappa={config.kappa:g}: must be positive"
    elif not 0 <= config.carry_over <= 1:
        fault = f"data.carry_over={config.carry_over:g}: must be between 0 and 1"
    elif uniform and b < 2:
        fault = f"training.batch_size={batch_size}: must be {2 * k} or more, 2 samples per class"
    elif uniform and b > largest:
        fault = f"training.batch_size={batch_size}: {b} samples per class, a class has {largest}"
    elif uniform and imbalance > 1:
        fault = f"data.imbalance={imbalance:g}: class-uniform batches would hide it, use "
        fault += "data.sampler=shuffled"
    else:
        return
    raise UserError(fault)
