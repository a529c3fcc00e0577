"""What the scaling sweeps of a pairwise coupling remember, and their adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.balanced import BalancedKernels
from tricouple.ot.sweeps.plan import Masses
from tricouple.ot.sweeps.tiles import Factors


@dataclass(frozen=True)
class ScaledPairHistory:
    """Scalings of every sweep, stacked.

    Attributes:
        kernels: The kernel.
        masses: Imposed marginals.
        u: Scalings of the rows after each sweep, shape (T, N).
        v: Scalings of the columns, with those of the start, shape (T + 1, M).
        r: Row sums before each update of u, shape (T, N).
    """

    kernels: BalancedKernels
    masses: Masses
    u: Tensor
    v: Tensor
    r: Tensor

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Walk the sweeps backwards, one pass over the kernel each (see ``Stages.adjoint``)."""
        grad_u, grad_v = cotangents
        per_v = self.masses.inverses[1]
        to_v, weights_v = torch.empty_like(self.u), torch.empty_like(self.v[1:])
        for t in range(len(self.u) - 1, -1, -1):
            torch.mul(self.v[t + 1], grad_v * -per_v, out=weights_v[t])
            to_anchors = partial(self._weigh, self.u[t], grad_u, to_v[t])
            if t == 0:
                to_anchors(slice(None), self.kernels.row_sums(0, weights_v[t]))
            else:
                grad_v = self.v[t] * self.kernels.through(0, 0, weights_v[t], to_anchors)
                grad_u = torch.zeros_like(grad_u)
        left, right = torch.cat([to_v, self.u]), torch.cat([self.v[:-1], weights_v])
        return self.kernels.score_gradient([Factors(left[:, None], right)])

    def _weigh(self, u: Tensor, grad_u: Tensor, out: Tensor, rows: slice, sums: Tensor) -> Tensor:
        """Weights of the rows, from what the columns sent them."""
        gradient = torch.addcmul(grad_u[rows], u[rows], sums[0])
        return torch.mul(u[rows], gradient * -self.masses.inverses[0][rows], out=out[rows])[None]
