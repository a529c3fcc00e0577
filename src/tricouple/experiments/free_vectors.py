"""Free unit vectors under Neg-MMIOT descend to the simplex equiangular tight frame.

The unconstrained-features model: the embeddings themselves are the parameters. With K balanced
classes, dimension d ≥ K − 1 and the linear cost, the optimum is known exactly: equal vectors
within a class (α = 1) and inner products β = −1/(K − 1) across classes, at a loss with a closed
form. A descent that ends there checks cost, coupling, loss and gradient together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from tricouple import geometry
from tricouple.losses import NegMMIOT


@dataclass(frozen=True)
class FreeVectorsSetup:
    """One descent of free vectors.

    The sharpness of the loss is 1 / (temperature · epsilon). The defaults give 2: at the usual 100
    the loss is zero to machine precision long before the vectors reach the frame, so nothing
    would be left to pull them there.
    """

    classes: int = 10
    dim: int = 16
    per_class: int = 10
    steps: int = 400
    learning_rate: float = 0.1
    temperature: float = 1.0
    epsilon: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ValueError(f"classes is {self.classes}: two or more are needed for a negative")
        if self.per_class < 2:
            raise ValueError(f"per_class is {self.per_class}: two or more make a positive pair")
        # On a line unit vectors are ±1: no descent can carry one to the other.
        needed = max(2, self.classes - 1)
        if self.dim < needed:
            raise ValueError(
                f"dim is {self.dim}: a simplex of {self.classes} classes needs dim of "
                f"{needed} or more"
            )


@dataclass(frozen=True)
class FreeVectorsResult:
    """Where a descent ended, beside where the theory says it must end."""

    setup: FreeVectorsSetup
    loss: float
    optimal_loss: float
    alpha: float
    beta: float
    nc1: float
    nc2_std: float
    nc2_deviation: float

    @property
    def optimal_beta(self) -> float:
        """Inner product between class means of the simplex ETF."""
        return -1.0 / (self.setup.classes - 1)

    @property
    def reached(self) -> bool:
        """Whether α and β are within 1e-3 and the loss within 1e-4 of the optimum."""
        return (
            abs(self.alpha - 1.0) <= 1e-3
            and abs(self.beta - self.optimal_beta) <= 1e-3
            and abs(self.loss - self.optimal_loss) <= 1e-4
        )


def descend(
    setup: FreeVectorsSetup, on_step: Callable[[int, float], None] | None = None
) -> FreeVectorsResult:
    """Minimise Neg-MMIOT over free vectors in float64.

    Args:
        setup: Sizes, sharpness, optimiser and seed.
        on_step: Called after every step with its number, from 1, and its loss.

    Returns:
        The geometry and loss of the final vectors.
    """
    generator = torch.Generator().manual_seed(setup.seed)
    n_samples = setup.classes * setup.per_class
    vectors = torch.randn(n_samples, setup.dim, generator=generator, dtype=torch.float64)
    vectors = normalize(vectors, dim=1).requires_grad_()  # (N, d)
    labels = torch.arange(setup.classes).repeat_interleave(setup.per_class)  # (N,)

    criterion = NegMMIOT(temperature=setup.temperature, epsilon=setup.epsilon)
    # Adam keeps a step size of the order of its learning rate however flat the loss is, so the
    # rate has to vanish for the vectors to settle: cosine decay to zero.
    optimiser = torch.optim.Adam([vectors], lr=setup.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=setup.steps)
    for step in range(1, setup.steps + 1):
        optimiser.zero_grad()
        loss = criterion(vectors, labels)
        loss.backward()
        optimiser.step()
        schedule.step()
        if on_step is not None:
            on_step(step, loss.item())

    final = vectors.detach()
    collapse = geometry.neural_collapse(final, labels)
    distances = geometry.two_distance(final, labels)
    return FreeVectorsResult(
        setup=setup,
        loss=criterion(final, labels).item(),
        optimal_loss=geometry.etf_loss(
            setup.classes, setup.per_class, temperature=setup.temperature, epsilon=setup.epsilon
        ),
        alpha=float(distances.alpha),
        beta=float(distances.beta),
        nc1=float(collapse.nc1),
        nc2_std=float(collapse.nc2_std),
        nc2_deviation=float(collapse.nc2_deviation),
    )
