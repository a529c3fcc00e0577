"""The triplet plan for ψ(t) = log(1 + e^{−t}): O(Q·N²) a sweep, Q terms of a quadrature."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple.ot.kernels.balanced import KernelTerm
from tricouple.ot.kernels.quadrature import LogSigmoidTerms, log_sigmoid_terms
from tricouple.ot.kernels.terms import balance_terms
from tricouple.ot.kernels.triplet_log import LogTriplet
from tricouple.ot.kernels.triplet_scaled import ScaledTriplet


class LogSigmoidTriplet(ScaledTriplet):
    """Entropic transport for ``C_ijk = log(1 + e^{−(s_ij − s_ik)/τ})`` by scaling."""

    def __init__(self, scores: Tensor, terms: LogSigmoidTerms, *, within: bool) -> None:
        self.scores, self.terms = scores, terms
        attract, repel, anchor_shift = balance_terms(scores, terms, within=within)
        super().__init__(
            attract, repel, anchor_shift, within=within, log_excluded=terms.log_excluded
        )

    def score_gradient(self, attract: KernelTerm, repel: KernelTerm) -> Tensor:
        """Chain the gradients of all factors with their slopes, a term at a time."""
        total = torch.zeros_like(self.scores)
        n = len(self.scores)
        sides = ((attract, self.terms.attract_slope), (repel, self.terms.repel_slope))
        for (matrix, left, right), slope in sides:
            for number, node in enumerate(self.terms.nodes):
                rows = slice(number * n, (number + 1) * n)
                weights = (left[rows] @ right).mul_(matrix[rows])
                # Where the slope overflows the kernel is exactly zero.
                bounded = slope(self.scores, node).clamp_min(torch.finfo(total.dtype).min)
                total.addcmul_(weights, bounded)
        return total


def scaled_log_sigmoid(
    similarity: Tensor, factor: float, *, within: bool, power: float, tolerance: float
) -> LogSigmoidTriplet:
    """The fast coupling; ``factor`` is 1/τ and ``power`` 1/ε."""
    scores = similarity * factor
    return LogSigmoidTriplet(scores, _terms(scores, power, tolerance), within=within)


def careful_log_sigmoid(
    similarity: Tensor, factor: float, *, within: bool, power: float, tolerance: float
) -> LogTriplet:
    """The log-domain coupling; ``factor`` is 1/τ and ``power`` 1/ε."""
    scores = similarity * factor
    return LogTriplet(scores, _terms(scores, power, tolerance), within=within)


def _terms(scores: Tensor, power: float, tolerance: float) -> LogSigmoidTerms:
    lowest, highest = (float(end) for end in torch.aminmax(scores))
    return log_sigmoid_terms(power, lowest, highest, tolerance)
