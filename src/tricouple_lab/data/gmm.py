"""The synthetic mixture of the paper: Gaussian classes like parallel pancakes.

Class means span a (K−1)-dimensional subspace and sum to zero. All classes share one covariance: the
identity inside that subspace and κ times the identity in its complement. What tells the classes
apart is thus hidden in few directions, and a large κ makes the others loud.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple import checks


@dataclass(frozen=True)
class Mixture:
    """K Gaussians in d dimensions that share one covariance."""

    means: Tensor  # shape (K, d); they sum to zero
    subspace: Tensor  # orthonormal columns that span the means, shape (d, K−1)
    kappa: float  # variance in each direction outside the subspace

    def sample(self, sizes: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw inputs (n, d) and labels (n,), class after class; see ``class_sizes``."""
        if len(sizes) != len(self.means):
            raise ValueError(
                f"sizes has {len(sizes)} entries for a mixture of {len(self.means)} classes"
            )
        labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        noise = torch.randn(len(labels), self.means.shape[1], generator=generator)
        inside = noise @ self.subspace @ self.subspace.T
        noise = inside + self.kappa**0.5 * (noise - inside)
        return self.means[labels] + noise, labels


def draw_mixture(
    n_classes: int,
    dim: int = 100,
    kappa: float = 5.0,
    *,
    generator: torch.Generator,
    separation: float = 1.0,
) -> Mixture:
    """Draw the means and the subspace of a mixture of K classes in d ≥ K − 1 dimensions.

    κ is the variance outside the subspace; that inside is 1. The paper does not say how far apart
    the means are. Here their coordinates inside the subspace are standard normal times `separation`
    before they are centred, so that at 1 classes overlap.
    """
    checks.count("n_classes", n_classes)
    if n_classes < 2:
        raise ValueError(f"n_classes is {n_classes}: a mixture needs 2 classes or more")
    checks.count("dim", dim)
    if dim < n_classes - 1:
        raise ValueError(
            f"dim is {dim}: the means of {n_classes} classes need {n_classes - 1} or more"
        )
    checks.positive_number("kappa", kappa)
    checks.positive_number("separation", separation)
    # The Q of a Gaussian matrix spans a uniformly random subspace.
    subspace = torch.linalg.qr(torch.randn(dim, n_classes - 1, generator=generator)).Q
    coordinates = separation * torch.randn(n_classes, n_classes - 1, generator=generator)
    means = (coordinates - coordinates.mean(0)) @ subspace.T
    return Mixture(means, subspace, kappa)


def class_sizes(n_classes: int, per_class: int = 50, imbalance: float = 1.0) -> list[int]:
    """How many samples each class has: equally many, or fewer and fewer.

    The imbalance is the largest class over the smallest; sizes fall geometrically in between.

    Example:
        >>> class_sizes(3, 50, imbalance=25)
        [50, 10, 2]
    """
    checks.count("n_classes", n_classes)
    checks.count("per_class", per_class)
    if not 1 <= imbalance <= per_class:
        raise ValueError(
            f"imbalance is {imbalance}: the largest class, of {per_class}, can be between 1 and "
            f"{per_class} times the smallest"
        )
    steps = max(1, n_classes - 1)
    return [round(per_class * imbalance ** (-rank / steps)) for rank in range(n_classes)]
