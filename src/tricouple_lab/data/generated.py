"""The synthetic mixture of the paper, and its class-uniform batches (Algorithm 4).

Class means span a (K−1)-dimensional subspace and sum to zero. All classes share one covariance: the
identity inside that subspace and κ times the identity in its complement. With a large κ most of the
variance says nothing about the class.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tricouple_lab.config.schema import MixtureData
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
        classes = [
            _Cycle((self.labels == label).nonzero()[:, 0].tolist(), generator)
            for label in self.labels.unique()
        ]
        kept = math.floor(self.carry_over * self.per_class + 1e-9)  # 0.29 · 100 is 28.99…
        batches = ([cycle.next(self.per_class, kept) for cycle in classes] for _ in range(BATCHES))
        return [index for batch in batches for members in batch for index in members]


class _Cycle:
    """The samples of one class in passes: ``next`` gives those of the next batch."""

    def __init__(self, members: list[int], generator: torch.Generator) -> None:
        self.members, self.generator = members, generator
        self.last: list[int] = []
        self.left = list(members)  # not shown in this pass

    def next(self, size: int, kept: int) -> list[int]:
        """``kept`` samples of the last batch, and others up to ``size``."""
        keep = self.draw(self.last, min(kept, len(self.last)))
        open_ = [index for index in self.left if index not in keep]
        wanted = size - len(keep)
        if len(open_) >= wanted:
            new = self.draw(open_, wanted)
        else:
            self.left = [index for index in self.members if index not in (*keep, *open_)]
            new = open_ + self.draw(self.left, wanted - len(open_))
        self.left = [index for index in self.left if index not in new]
        self.last = keep + new
        return self.last

    def draw(self, indices: list[int], count: int) -> list[int]:
        """Some of the indices, without replacement."""
        order = torch.randperm(len(indices), generator=self.generator)[:count]
        return [indices[place] for place in order.tolist()]


def class_sizes(n_classes: int, per_class: int, imbalance: float) -> list[int]:
    """Sizes of the classes: they fall geometrically, the largest is imbalance times the smallest.

    Example:
        >>> class_sizes(3, 50, imbalance=25)
        [50, 10, 2]
    """
    steps = max(1, n_classes - 1)
    return [round(per_class * imbalance ** (-rank / steps)) for rank in range(n_classes)]


def load_mixture(config: MixtureData, seed: int, batch_size: int) -> dict[str, Samples]:
    """Draw train, validation and test samples; a seed gives the same ones to all methods.

    Args:
        config: Settings of the mixture.
        seed: Of everything that is drawn.
        batch_size: Of training; with ``data.sampler=class_uniform`` batch_size // K samples of each
            class.
    """
    check(config, batch_size)
    n_classes = config.n_classes
    generator = torch.Generator().manual_seed(derived_seed(seed, "mixture"))
    mixture = Mixture.draw(n_classes, config.dim, config.kappa, generator)
    sizes = class_sizes(n_classes, config.per_class, config.imbalance)
    train = mixture.sample(sizes, generator)
    if config.sampler == "class_uniform":
        per_class, carry_over = batch_size // n_classes, config.carry_over
        train = ClassUniform(train.inputs, train.labels, per_class, carry_over)
    held_out = [HELD_OUT] * n_classes
    validation, test = (mixture.sample(held_out, generator) for _ in range(2))
    return {"train": train, "validation": validation, "test": test}


def check(config: MixtureData, batch_size: int) -> None:
    """Raise for settings that no mixture can have."""
    k, largest, imbalance = config.n_classes, config.per_class, config.imbalance
    uniform, b = config.sampler == "class_uniform", batch_size // max(1, k)
    faults = {
        f"data.n_classes={k}: 2 or more are needed for a negative": k < 2,
        f"data.dim={config.dim}: the means of {k} classes need {k - 1} or more": config.dim < k - 1,
        f"data.imbalance={imbalance:g}: with {largest} samples in the largest class it can be 1 to "
        f"{largest / 2:g}, so that the smallest has 2": not 1 <= imbalance <= largest / 2,
        f"data.kappa={config.kappa:g}: must be positive": config.kappa <= 0,
        f"data.carry_over={config.carry_over:g}: must be between 0 and 1": (
            not 0 <= config.carry_over <= 1
        ),
        f"training.batch_size={batch_size}: {k} classes need 2 samples each, {2 * k} or more": (
            uniform and b < 2
        ),
        f"training.batch_size={batch_size}: {b} samples per class, a class has {largest}": (
            uniform and b > largest
        ),
        f"data.imbalance={imbalance:g}: class-uniform batches would hide it, use "
        "data.sampler=shuffled": uniform and imbalance > 1,
    }
    for sentence, wrong in faults.items():
        if wrong:
            raise UserError(sentence)


def digest(splits: dict[str, Samples]) -> str:
    """Return a sha256 of inputs and labels."""
    content = hashlib.sha256()
    for name, split in splits.items():
        content.update(name.encode())
        content.update(split.inputs.numpy().tobytes())
        content.update(split.labels.numpy().tobytes())
    return content.hexdigest()
