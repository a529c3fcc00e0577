"""ψ of all margins x_ij − x_ik, a few anchors at a time: N³ numbers that never exist at once."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple.shaping import Shaping

# Matrices of M×M that an anchor needs at once: margins, what ψ and its derivative keep, weights.
_WORKSPACE = 8
# Entries of a block that several operations find in a processor's cache, and that are still many
# enough for threads to share.
_CACHED = 1 << 19


class Margins:
    """``ψ(x_ij − x_ik)`` for all references j and k of some anchors i.

    Args:
        scores: x = s/τ, shape (N, M).
        psi: ψ, applied to every margin by itself.
        memory_budget: Bytes for one block of anchors with all that is computed from it.

    Example:
        >>> margins = Margins(torch.tensor([[0.0, 2.0]]), lambda t: 1 - t, memory_budget=1 << 20)
        >>> [margins.costs(anchors).tolist() for anchors in margins.blocks]
        [[[[1.0, 3.0], [-1.0, 1.0]]]]
    """

    def __init__(self, scores: Tensor, psi: Shaping, memory_budget: float) -> None:
        self.scores, self.psi = scores, psi
        self.blocks = _blocks(scores, memory_budget)

    def costs(self, anchors: slice) -> Tensor:
        """ψ, shape (rows, M, M): positives, then negatives."""
        return self.psi(self._differences(anchors)).to(self.scores.dtype)

    def slopes(self, anchors: slice) -> Tensor:
        """ψ', shape (rows, M, M)."""
        # The sweeps know no autograd; here it differentiates one function of one variable.
        with torch.inference_mode(False), torch.enable_grad():
            margins = self._differences(anchors).requires_grad_()
            (slopes,) = torch.autograd.grad(self.psi(margins).sum(), margins)
        return slopes

    def _differences(self, anchors: slice) -> Tensor:
        rows = self.scores[anchors]
        return rows[:, :, None] - rows[:, None, :]


def _blocks(scores: Tensor, memory_budget: float) -> list[slice]:
    """As many anchors at a time as the budget allows and, on a processor, its cache likes."""
    n, m = scores.shape
    step = int(memory_budget // anchor_bytes(scores))
    if step == 0:
        raise ValueError(
            f"memory_budget={memory_budget:.0f} bytes is too small: the {m}×{m} costs of one "
            f"anchor, with what is computed from them, take {anchor_bytes(scores)}"
        )
    if scores.device.type == "cpu":
        step = min(step, max(1, _CACHED // m**2))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def anchor_bytes(scores: Tensor) -> int:
    """What one anchor needs."""
    return _WORKSPACE * scores.element_size() * scores.shape[1] ** 2
