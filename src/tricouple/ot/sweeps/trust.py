"""When the fast sweeps of a triplet coupling can be believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tricouple.ot.sweeps.plan import Masses
from tricouple.ot.sweeps.tiles import underflow_margin
from tricouple.ot.sweeps.triplet_history import Scalings

if TYPE_CHECKING:
    from tricouple.ot.sweeps.triplet_scaled import ScaledTriplet

# How many times what is left may have been subtracted before digits are missed.
CANCELLATION = 10.0


def trustworthy(kernel: ScaledTriplet, vectors: Scalings, masses: Masses) -> bool:
    """Whether no sum came near underflow and no difference lost digits, in all sweeps at once.

    The measure of cancellation is what was subtracted, own part included, against the mass that
    remained. A NaN fails every comparison.

    Args:
        kernel: The kernel.
        vectors: What the sweeps went through.
        masses: Imposed marginals of anchors, positives and negatives.
    """
    a, b, h, r_plus, r_minus = vectors
    rows = a[:, None]
    per_a, per_b, per_h = masses.inverses
    excluded_a, excluded_h = kernel.exclusion_row * a, kernel.exclusion_column * h
    excluded_pairs = excluded_h[:-1] * b[:-1]
    lost = excluded_a.sum(1, keepdim=True)
    taken = excluded_pairs.sum(1, keepdim=True)
    cancelled = (
        excluded_a * (taken * per_a),
        b[1:] * excluded_h[:-1] * (lost * per_b),
        b[1:] * excluded_h[1:] * (lost * per_h),
    )
    # What is lost to underflow, against what was summed: rows, then columns, then exclusions.
    top_b, top_h = b.amax(), h.amax()
    lost_to_underflow = (
        top_b * top_h / (r_plus[:-1] * r_minus).sum(1).amin(),
        (b[1:] * per_b).amax() * (rows * r_minus).amax(),
        (h[1:] * per_h).amax() * (rows * r_plus[1:]).amax(),
        a.amax() * top_b * top_h * torch.finfo(a.dtype).eps,
    )
    negative = torch.stack([a.amin(), b.amin(), h.amin()]) < 0
    limit = 1 / (underflow_margin(a.dtype) * max(a.shape[1], b.shape[1]))
    return bool(
        (torch.stack([part.amax() for part in cancelled]) <= kernel.cancellation).all()
        & (torch.stack(lost_to_underflow) <= limit).all()
        & ~negative.any()
    )
