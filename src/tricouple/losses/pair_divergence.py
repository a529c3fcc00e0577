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
    scores: Tensor,
    target: UniformPairs,
    sharpness: float | Tensor,
    *,
    marginals: str,
    n_iters: int,
    tol: float | None,
    gradient: str,
    shaped: bool = False,
) -> PairDivergence:
    """Solve the plan with kernel ``exp(sharpness · scores)`` and compare the target with it.

    ``KL(P̃‖P) = −log|pairs| − sharpness·⟨P̃, scores⟩ − Σ ⟨target marginal, log-scaling⟩``.

    Args:
        batch: The batch.
        scores: Its cosines, or costs shaped from them, shape (N, M).
        target: P̃.
        sharpness: Positive for transport, negative for anti-transport.
        marginals: ``"uniform"`` or ``"target"``.
        n_iters: Sweeps, at most.
        tol: Marginal error to stop at.
        gradient: The gradient rule.
        shaped: Whether the scores are other than the batch's cosines.
    """
    rows, columns = target.pairs.marginals
    masses = torch.cat([rows, columns])
    sizes = (len(rows), len(columns))
    imposed = uniform(sizes, masses) if marginals == "uniform" else masses
    settings = Settings(PAIR, sizes, batch.within, n_iters, tol, gradient)
    potentials, _ = solve_potentials(scores, sharpness, imposed, settings)
    # The mean of cosines over a target is O(N·d) work.
    if shaped:
        mean = scores[target.pairs.mask()].to(masses.dtype).mean()
    else:
        mean = batch.inner(target.pairs)
    value = -math.log(target.size) - sharpness * mean - expectation(masses, potentials)
    return PairDivergence(value, potentials.split(sizes))
