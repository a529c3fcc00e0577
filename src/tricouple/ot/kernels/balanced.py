"""A kernel exp(score) with its rows and columns brought to a common scale.

At the paper's defaults the entries of exp(c·s) span e^{±100}, beyond float32. Sinkhorn's scalings
undo most of that, so the kernel is stored with row and column shifts that make the largest entry
of every row and every column exactly 1; the scalings that remain are moderate, and matrix-vector
products in plain float32 replace log-sum-exp over N² entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tricouple.memory import empty_matrix
from tricouple.numeric import wide_dtype
from tricouple.ot.kernels import native


@dataclass(frozen=True)
class BalancedKernel:
    """``matrix_ij = exp(score_ij + row_shift_i + column_shift_j)``, excluded entries 0.

    Attributes:
        matrix: Entries in [0, 1], shape (N, M).
        row_shift: Shape (N,), wide dtype.
        column_shift: Shape (M,), wide dtype.
    """

    matrix: Tensor
    row_shift: Tensor
    column_shift: Tensor
    _transposed: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # In a small batch even making a view counts.
        object.__setattr__(self, "_transposed", self.matrix.T)

    def rows(self, weights: Tensor) -> Tensor:
        """``Σ_j matrix_ij weights_j``."""
        return torch.mv(self.matrix, weights)

    def columns(self, weights: Tensor) -> Tensor:
        """``Σ_i matrix_ij weights_i``."""
        return torch.mv(self._transposed, weights)


def balance(similarity: Tensor, sharpness: float, *, within: bool) -> BalancedKernel:
    """Build the kernel of ``score = sharpness · similarity``.

    Args:
        similarity: Shape (N, M); an entry with score −∞ is excluded.
        sharpness: The factor c; negative for the repelling kernel.
        within: Exclude the diagonal.
    """
    if native.suits(similarity):
        n, m = similarity.shape
        logs, tops = empty_matrix(similarity, n, m), similarity.new_empty(n + m)
        native.balance_into(similarity, sharpness, within, logs, tops)
        top_rows, top_columns = tops.split([n, m])
    else:
        logs, top_rows, top_columns = _balanced_logs(similarity, sharpness, within)
    shifts = torch.cat([top_rows, top_columns]).to(wide_dtype(logs.device)) * -abs(sharpness)
    row_shift, column_shift = shifts.split([len(top_rows), len(top_columns)])
    return BalancedKernel(logs.exp_(), row_shift, column_shift)


def _balanced_logs(
    similarity: Tensor, sharpness: float, within: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """``c · (±s − top of row − top of column)`` and the tops.

    Tops are taken before the factor c is applied: differences of nearby similarities are exact in
    floating point, so the entries that matter keep their digits.
    """
    logs = empty_matrix(similarity, *similarity.shape)
    torch.mul(similarity, 1.0 if sharpness > 0 else -1.0, out=logs)
    lowest = torch.finfo(logs.dtype).min  # stands for −∞ where a whole row or column is excluded
    if within:
        logs.fill_diagonal_(-torch.inf)
    top_rows = logs.amax(1).clamp_min_(lowest)
    logs -= top_rows[:, None]
    top_columns = logs.amax(0).clamp_min_(lowest)
    logs -= top_columns
    logs *= abs(sharpness)
    return logs, top_rows, top_columns


KernelTerm = tuple[Tensor, Tensor, Tensor]
"""A kernel's matrix (N, M) with the factors of a low-rank one, (N, T) and (T, M)."""


def kernel_gradient(terms: Sequence[KernelTerm]) -> Tensor:
    """``Σ (left @ right) ∘ matrix`` over kernels, in blocks of rows.

    Args:
        terms: Kernels with their factors ``left`` and ``right``.

    Returns:
        Shape (N, M).
    """
    out = empty_matrix(terms[0][0], *terms[0][0].shape)
    blocks = row_blocks(*out.shape)
    # One buffer for all blocks: fresh memory for each would cost more than the arithmetic.
    buffer = torch.empty_like(out[blocks[0]])
    for block in blocks:
        for number, (matrix, left, right) in enumerate(terms):
            target = out[block] if number == 0 else buffer[: block.stop - block.start]
            torch.mm(left[block], right, out=target).mul_(matrix[block])
            if number > 0:
                out[block] += target
    return out


def row_blocks(n_rows: int, n_columns: int, entries: int = 1 << 22) -> list[slice]:
    """Slices of rows that hold about ``entries`` numbers each."""
    step = max(1, entries // max(1, n_columns))
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def underflow_margin(dtype: torch.dtype) -> float:
    """How far above the smallest normal number a sum must be for lost terms not to matter."""
    info = torch.finfo(dtype)
    return float(info.tiny / info.eps**2)
