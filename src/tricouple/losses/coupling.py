"""KL from a pair target to an entropic transport plan: the piece that pairwise losses share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple.losses.batch import Batch
from tricouple.numeric import expectation
from tricouple.ot.engine import Pairs, Sweeps
from tricouple.ot.potentials import embedded_potentials, solve_potentials
from tricouple.relations import TargetPairs


@dataclass(frozen=True)
class PairDivergence:
    """``KL(P̃ ‖ P)`` and the log-scalings of P."""

    value: Tensor  # the divergence, a scalar in wide dtype
    potentials: tuple[Tensor, ...]  # log-scalings of rows and columns, wide dtype


def pair_divergence(
    batch: Batch,
    target: TargetPairs,
    sharpness: float | Tensor,
    sweeps: Sweeps,
    *,
    costs: Tensor | None = None,
) -> PairDivergence:
    """Solve the plan with kernel ``exp(sharpness · s)`` and compare the target with it.

    ``KL(P̃‖P) = −H(P̃) − sharpness·⟨P̃, s⟩ − Σ ⟨target marginal, log-scaling⟩``.

    Args:
        batch: The batch, with cosines s.
        target: P̃.
        sharpness: Positive for transport, negative for anti-transport.
        sweeps: How to solve.
        costs: Take these, shape (N, M), for s.
    """
    rows, columns = target.pairs.marginals
    masses = torch.cat([rows, columns])
    sizes = (len(rows), len(columns))
    sweeps = batch.shared(sweeps)
    imposed, problem = batch.imposed(sweeps, masses, sizes), Pairs(batch.within)
    if costs is None:
        embedded = batch.anchors, batch.references
        potentials = embedded_potentials(*embedded, sharpness, imposed, problem, sweeps)
        mean = batch.inner(target.pairs)  # O(N·d) work
    else:
        potentials, _ = solve_potentials(costs, sharpness, imposed, problem, sweeps)
        mean = (target.pairs.dense() * costs).sum()
    value = -target.entropy - sharpness * mean - expectation(masses, potentials)
    return PairDivergence(value, potentials.split(sizes))
