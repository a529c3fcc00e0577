"""The triplet plan for ψ(t) = log(1 + e^{−t}): O(Q·N²) a sweep, Q terms of a quadrature."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple.memory import CACHED
from tricouple.numeric import row_blocks
from tricouple.ot.sweeps.quadrature import LogSigmoidTerms, log_sigmoid_terms
from tricouple.ot.sweeps.similarities import Similarities
from tricouple.ot.sweeps.term_kernels import TermKernels
from tricouple.ot.sweeps.triplet_log import LogTriplet
from tricouple.ot.sweeps.triplet_scaled import ScaledTriplet
from tricouple.ot.sweeps.trust import CANCELLATION


def scaled_log_sigmoid(
    similarities: Similarities,
    factor: float,
    *,
    within: bool,
    power: float,
    tolerance: float,
    budget: float = torch.inf,
    tile_entries: int = CACHED,
    cancellation: float = CANCELLATION,
) -> ScaledTriplet:
    """The fast coupling; ``factor`` is 1/τ and ``power`` 1/ε.

    Its two kernels of Q·N·M numbers each are stored if they fit in ``budget`` bytes.
    """
    terms = _terms(similarities, factor, power, tolerance, tile_entries)
    n, m = similarities.shape
    size = 2 * len(terms.nodes) * n * m * similarities.like.element_size()
    kernels = TermKernels(
        similarities,
        factor,
        terms,
        within=within,
        stored=size <= budget,
        tile_entries=tile_entries,
    )
    return ScaledTriplet(
        kernels,
        kernels.anchor_shift,
        within=within,
        log_excluded=terms.log_excluded,
        cancellation=cancellation,
    )


def careful_log_sigmoid(
    similarities: Similarities, factor: float, *, within: bool, power: float, tolerance: float
) -> LogTriplet:
    """The log-domain coupling; ``factor`` is 1/τ and ``power`` 1/ε."""
    terms = _terms(similarities, factor, power, tolerance)
    return LogTriplet(similarities.matrix() * factor, terms, within=within)


def _terms(
    similarities: Similarities,
    factor: float,
    power: float,
    tolerance: float,
    tile_entries: int = CACHED,
) -> LogSigmoidTerms:
    """Terms for the range of the scores."""
    blocks = row_blocks(*similarities.shape, tile_entries)
    buffer = similarities.like.new_empty(blocks[0].stop, similarities.shape[1])
    ends: list[Tensor] = []
    for block in blocks:
        tile = similarities.tile(block, buffer[: block.stop - block.start])
        ends += torch.aminmax(tile)
    lowest, highest = (float(end) * factor for end in torch.aminmax(torch.stack(ends)))
    return log_sigmoid_terms(power, lowest, highest, tolerance)
