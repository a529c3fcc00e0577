"""KL from a pair target to an entropic transport plan: the piece that pairwise losses share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple.losses.batch import Batch
from tricouple.numeric import expectation, uniform
from tricouple.ot.potentials import PAIR, Settings, solve_potentials
from tricouple.relations import UniformPairs


@dataclass(frozen=True)
class PairDivergence:
    """``KL(P̃ ‖ P)`` and the log-scalings of P.

    Attributes:
        value: The divergence, a scalar in wide dtype.
        potentials: Log-scalings of rows and columns, wide dtype.
    """

    value: Tensor
    potentials: tuple[Tensor, ...]


def pair_divergence(
    batch: Batch,
    similarity: Tensor,
    target: UniformPairs,
    sharpness: float | Tensor,
    *,
    marginals: str,
    n_iters: int,
    tol: float | None,
    gradient: str,
) -> PairDivergence:
    """Solve the plan with kernel ``exp(sharpness · s)`` and compare the target with it.

    ``KL(P̃‖P) = −log|pairs| − sharpness·⟨P̃, s⟩ − Σ ⟨target marginal, log-scaling⟩``.

    Args:
        batch: The batch.
        similarity: Its cosines, shape (N, M), shared between the plans of one loss.
        target: P̃.
        sharpness: Positive for transport, negative for anti-transport.
        marginals: ``"uniform"`` or ``"target"``.
        n_iters: Sweeps, at most.
        tol: Marginal error to stop at.
        gradient: The gradient rule.
    """
    rows, columns = target.pairs.marginals
    masses = torch.cat([rows, columns])
    sizes = (len(rows), len(columns))
    imposed = uniform(sizes, masses) if marginals == "uniform" else masses
    settings = Settings(PAIR, sizes, batch.within, n_iters, tol, gradient)
    potentials, _ = solve_potentials(similarity, sharpness, imposed, settings)
    inner = sharpness * batch.inner(target.pairs)
    value = -math.log(target.size) - inner - expectation(masses, potentials)
    return PairDivergence(value, potentials.split(sizes))
