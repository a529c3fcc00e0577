"""Log-sigmoid triplets where "j ≠ k" leaves next to nothing: sums with their largest term apart.

One sample opposite to all others is a positive that only its own similarity, which is excluded,
would pay for: of Σ_k nothing but k = j matters in the terms that j itself has weight in. Leaving it
out by a difference loses all digits. Here the sums over k ≠ j are formed term by term: the largest
k of a term is kept apart, so that "all but j" is the rest for that j and a harmless difference for
all others (mathematics §2, trust).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.contract import GradientSink, Masses, Received, Solution
from tricouple.ot.sweeps.log_sigmoid import LogSigmoidTerms
from tricouple.ot.sweeps.log_sigmoid_kernels import NativeTermKernels
from tricouple.ot.sweeps.triplet_adjoint import ATTRACT, REPEL
from tricouple.ot.sweeps.triplet_log import LogDomainTriplet, LogTriplet, LogTripletPlan


class ApartTriplet(LogTriplet):
    """The sweeps of ``LogTriplet`` on sums of the compiled module, in the wide dtype."""

    def __init__(self, kernels: NativeTermKernels, scores: Tensor, terms: LogSigmoidTerms) -> None:
        super().__init__(scores, terms, within=kernels.within)
        self.kernels = kernels
        # For each kernel the far ends of the last plan without weights there, and their sums.
        self._kept: dict[int, tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    def release(self) -> None:
        """Give up the matrices until they are needed again."""
        self.kernels.release()
        self._kept.clear()

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None where scalings are beyond the range of the dtype."""
        solution = super().solve(masses, n_iters, tol)
        if solution is None:
            return None
        sizes = [float(part.amax()) for part in solution.potentials.split(masses.sizes)]
        lost = sum(sizes) + self.kernels.blocks.log_lost + 3 * math.log(max(masses.sizes))
        return solution if lost <= math.log(torch.finfo(self.dtype).eps) else None

    # Sums may be empty here, and gradients come by ``push``.
    scaling, history = LogDomainTriplet.scaling, LogDomainTriplet.history

    def positive_pairs(self, g: Tensor) -> Tensor:
        """``log Σ_{k≠j} K_ijk exp(g_k)``, shape (N, M)."""
        return self._log_pairs(ATTRACT, g)

    def negative_pairs(self, f: Tensor) -> Tensor:
        """``log Σ_{j≠k} K_ijk exp(f_j)``, shape (N, M)."""
        return self._log_pairs(REPEL, f)

    def _log_pairs(self, which: int, logs: Tensor) -> Tensor:
        top = logs.amax()
        return self._pairs(which, torch.exp(logs - top))[0].log_().add_(top)

    def _pairs(self, which: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        """``Σ_{k≠j} K_ijk weights_k`` and its derivative with respect to x_ij."""
        sums, slopes = torch.empty_like(self.scores), torch.empty_like(self.scores)
        size, m = sums.element_size(), sums.shape[1]
        columns, out, slope = native.addresses(weights.contiguous(), sums, slopes)

        for rows, tile in self.kernels.tiles():
            calls = []
            for share in self.kernels.shares(rows, tile, m + 8):
                skipped = share.begin * m * size
                ends = columns, out + skipped, slope + skipped, native.address(share.work)
                numbers = size, *share.place[:3], int(which == ATTRACT)
                calls.append((*numbers, *share.arrays, *ends))
            native.shared(native.compiled.term_pairs, calls)
        return sums, slopes

    def push(
        self, plan: LogTripletPlan, axis: int, weights: Tensor, sink: GradientSink | None
    ) -> Received:
        """Products with the pair marginals (mathematics §2); those with P²³ go through anchors."""
        # P¹²_ij = a_i b_j Σ_{k≠j} K_ijk h_k and P¹³_ik = a_i h_k Σ_{j≠k} K_ijk b_j, with weights in
        # a, b or h.
        own = [weights if axis == end else None for end in range(3)]
        raised = self._marginal(ATTRACT, (plan.phi, plan.f, plan.g), (own[0], own[1], own[2]))
        lowered = self._marginal(REPEL, (plan.phi, plan.g, plan.f), (own[0], own[2], own[1]))
        if sink is not None:
            sink.add(raised[1])
            sink.add(lowered[1])
        to_anchors = (raised if axis == 1 else lowered)[0].sum(1)
        pushed = {0: to_anchors, 1: raised[0].sum(0), 2: lowered[0].sum(0)}
        del pushed[axis]
        return pushed

    def _marginal(
        self, which: int, logs: Sequence[Tensor], weights: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        """P¹² or P¹³ of weighted anchors, near and far ends, and its derivative."""
        phi, near, far = logs
        top = far.amax()
        if weights[2] is not None:
            pairs = self._pairs(which, torch.exp(far - top).mul_(weights[2]))
        else:  # several updates in a row leave these ends as they are
            if which not in self._kept or self._kept[which][0] is not far:
                self._kept[which] = far, self._pairs(which, torch.exp(far - top))
            pairs = self._kept[which][1]
        scale = torch.exp(phi[:, None] + near + top)
        if weights[0] is not None:
            scale.mul_(weights[0][:, None])
        if weights[1] is not None:
            scale.mul_(weights[1])
        return pairs[0] * scale, pairs[1] * scale
