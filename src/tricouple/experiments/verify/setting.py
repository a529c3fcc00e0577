"""What every experiment is given: the losses under test and a seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tricouple.losses import IOT, InfoNCE, NegMMIOT, PushPull

Criterion = Callable[[Tensor, Tensor], Tensor]
"""A loss of embeddings (N, d) and labels (N,)."""

Factory = Callable[..., Criterion]
"""What makes a loss from its options, as the classes of ``tricouple.losses`` do."""

SWEEPS = 200
"""More than enough sweeps for a soft loss to converge."""

TOLERANCE = 1e-13
"""Marginal error at which a coupling counts as converged."""


@dataclass(frozen=True)
class Losses:
    """The losses under test; replace one to see what the experiments say about another.

    Attributes:
        neg_mmiot: Takes the options of ``NegMMIOT``.
        push_pull: Takes the options of ``PushPull``.
        iot: Takes the options of ``IOT``.
        info_nce: Takes the options of ``InfoNCE``.
    """

    neg_mmiot: Factory = NegMMIOT
    push_pull: Factory = PushPull
    iot: Factory = IOT
    info_nce: Factory = InfoNCE

    def at_sharpness(self, sharpness: float, marginals: str = "uniform") -> dict[str, Criterion]:
        """All losses with the same factor c in front of the similarities.

        τ and ε enter only as c = 1/(τε), so losses compared at equal τ and ε would differ in c.

        Args:
            sharpness: c.
            marginals: ``"uniform"`` or ``"target"``; InfoNCE has none.

        Returns:
            Losses by their names in the tables.
        """
        epsilon = 1 / sharpness
        rest = {"n_iters": SWEEPS, "tol": TOLERANCE, "marginals": marginals}
        return {
            "Neg-MMIOT": self.neg_mmiot(temperature=1.0, epsilon=epsilon, **rest),
            "PushPull": self.push_pull(
                temperature=1.0, epsilon_pos=epsilon, epsilon_neg=epsilon, **rest
            ),
            "IOT-CL": self.iot(epsilon=epsilon, **rest),
            "InfoNCE": self.info_nce(temperature=epsilon),
        }


@dataclass(frozen=True)
class Setting:
    """The losses under test and the seed of all random numbers."""

    seed: int = 0
    losses: Losses = field(default_factory=Losses)

    def generator(self, name: str) -> torch.Generator:
        """Return a source of random numbers of its own for each experiment.

        So an experiment measures the same alone as in the company of others.
        """
        return torch.Generator().manual_seed(self.seed + zlib.crc32(name.encode()))
