"""What every experiment is given, the losses under test and a seed, and what becomes of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tricouple.experiments.verify.results import NONE, Finding, Row, chart, worst_of
from tricouple.losses import DBOT, IOT, FusedGromov, InfoNCE, NegMMIOT, PushPull
from tricouple.report.chart import Line

Criterion = Callable[[Tensor, Tensor], Tensor]
"""A loss of embeddings (N, d) and labels (N,)."""

Factory = Callable[..., Criterion]
"""What makes a loss from its options, as the classes of ``tricouple.losses`` do."""

TOLERANCE = 1e-13
"""Marginal error at which a coupling counts as converged."""

CONVERGED: dict[str, Any] = {"n_iters": 200, "tol": TOLERANCE}
"""More than enough sweeps for a soft loss to converge."""


MARGINALS = ("uniform", "target")


@dataclass(frozen=True)
class Losses:
    """The losses under test; replace one to see what the experiments say about another.

    Each takes the options of the class that is its default.
    """

    neg_mmiot: Factory = NegMMIOT
    push_pull: Factory = PushPull
    iot: Factory = IOT
    info_nce: Factory = InfoNCE
    dbot: Factory = DBOT
    fused_gromov: Factory = FusedGromov

    def triplets(self, sharpness: float, **options: Any) -> Criterion:
        """Neg-MMIOT, swept to convergence, with any other of its options."""
        fixed = {"temperature": 1.0, "epsilon": 1 / sharpness}
        return self.neg_mmiot(**{**fixed, **CONVERGED, **options})

    def pairs(self, sharpness: float, **options: Any) -> Criterion:
        """PushPull likewise."""
        epsilons = dict.fromkeys(("epsilon_pos", "epsilon_neg"), 1 / sharpness)
        return self.push_pull(**{"temperature": 1.0, **epsilons, **CONVERGED, **options})

    def at_sharpness(self, sharpness: float, marginals: str = "uniform") -> dict[str, Criterion]:
        """All losses with the same factor c in front of the similarities.

        τ and ε enter only as c = 1/(τε), so losses compared at equal τ and ε would differ in c.
        """
        epsilon = 1 / sharpness
        return {
            "Neg-MMIOT": self.triplets(sharpness, marginals=marginals),
            "PushPull": self.pairs(sharpness, marginals=marginals),
            "IOT": self.iot(epsilon=epsilon, marginals=marginals, **CONVERGED),
            "InfoNCE": self.info_nce(temperature=epsilon),
        }

    def with_marginals(self, sharpness: float) -> Iterator[tuple[str, str, Criterion]]:
        """Loss and marginals as a table names them, and the loss; InfoNCE, without any, once."""
        for kind in MARGINALS:
            for name, criterion in self.at_sharpness(sharpness, kind).items():
                if name != "InfoNCE":
                    yield name, kind, criterion
                elif kind == "uniform":
                    yield name, NONE, criterion


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


Measured: TypeAlias = Iterator[Row | Line]
"""What an experiment yields: rows of its table, and lines of its chart."""


def experiment(
    title: str,
    axes: tuple[str, str],
    alt: str = "",
    *,
    log: str = "",
    residual: Sequence[str] | Callable[[list[Row]], float],
    lines: Callable[[list[Row]], Iterable[Line]] = lambda rows: (),
) -> Callable[[Callable[[Setting], Measured]], Callable[[Setting], Finding]]:
    """Make a finding of what a function measures.

    The first four arguments are those of ``chart``; the residual is the worst number of some
    columns, or what a function makes of the rows; `lines` draws rows, after the lines yielded.
    """

    def decorate(measure: Callable[[Setting], Measured]) -> Callable[[Setting], Finding]:
        @wraps(measure)
        def run(setting: Setting) -> Finding:
            found = list(measure(setting))
            rows = [one for one in found if isinstance(one, dict)]
            drawn = [one for one in found if isinstance(one, Line)]
            figure = chart(title, axes, [*drawn, *lines(rows)], alt, log=log)
            value = residual(rows) if callable(residual) else worst_of(rows, *residual)
            return Finding(value, rows, figure)

        return run

    return decorate
