"""ψ: how a triplet's margin becomes its cost.

ψ is any decreasing function of the margin t = (s_ij − s_ik)/τ. The names ``"linear"`` and
``"log_sigmoid"`` have fast triplet kernels, O(N²) and O(Q·N²), as has every ``Hinge`` in C,
O(N² log N). Every other ψ, also one that is given as a function, has the exact one, O(N³).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Shaping = Callable[[Tensor], Tensor]
ShapingName = Literal["linear", "log_sigmoid", "exponential", "hinge", "squared_hinge"]

# What keeps the flat parts of named hinges decreasing.
_SLOPE = 0.01


def linear(t: Tensor) -> Tensor:
    """ψ(t) = −t."""
    return -t


def log_sigmoid(t: Tensor) -> Tensor:
    """ψ(t) = log(1 + e^{−t})."""
    return -torch.nn.functional.logsigmoid(t)


def exponential(t: Tensor) -> Tensor:
    """ψ(t) = e^{−t}."""
    return torch.exp(-t)


@dataclass(frozen=True)
class Hinge:
    """ψ(t) = max(0, margin − t) − slope·t, the cost of triplet margin losses.

    A triplet whose t exceeds the margin is satisfied: its cost has the gradient −slope. As
    t = (s_ij − s_ik)/τ, a margin of 0.2 in cosine is ``Hinge(margin=0.2 / temperature)``.

    Args:
        margin: From where on triplets are satisfied, in units of t; not negative.
        slope: What satisfied triplets still gain from a larger t, 0 for nothing.

    Example:
        >>> Hinge(margin=0.2)(torch.tensor([-1.0, 0.0, 0.2, 3.0]))
        tensor([1.2000, 0.2000, 0.0000, 0.0000])
    """

    margin: float = 1.0
    slope: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("margin", self.margin), ("slope", self.slope)):
            if not (isinstance(value, int | float) and 0 <= value < math.inf):
                raise ValueError(f"{name} must be a number that is 0 or more, got {value!r}")

    def __call__(self, t: Tensor) -> Tensor:
        """The cost of each margin t."""
        return torch.clamp(self.margin - t, min=0.0) - self.slope * t

    def over(self, epsilon: float) -> Hinge:
        """ψ(t)/ε as a function of t/ε."""
        return Hinge(self.margin / epsilon, self.slope)


hinge = Hinge(margin=1.0, slope=_SLOPE)


def squared_hinge(t: Tensor) -> Tensor:
    """ψ(t) = max(0, 1 − t)² − t/100: the slope keeps it decreasing beyond the margin."""
    return torch.relu(1 - t).square() - _SLOPE * t


SHAPINGS: dict[str, Shaping] = {
    "linear": linear,
    "log_sigmoid": log_sigmoid,
    "exponential": exponential,
    "hinge": hinge,
    "squared_hinge": squared_hinge,
}
"""The cost-shaping functions that have a name."""


def resolve(shaping: str | Shaping) -> Shaping:
    """The function of a name, or the callable itself."""
    if isinstance(shaping, str):
        if shaping not in SHAPINGS:
            names = ", ".join(map(repr, SHAPINGS))
            raise ValueError(f"shaping must be one of {names} or a callable, got {shaping!r}")
        return SHAPINGS[shaping]
    if not callable(shaping):
        raise TypeError(f"shaping must be a name or a callable, got {type(shaping).__name__}")
    return shaping


def check_margins(shaping: Shaping, scores: Tensor) -> None:
    """Require a ψ that decreases on all differences of these scores s/τ, of any shape.

    Autograd must know its derivative, with respect to the margins alone: plans give no gradient to
    anything else.
    """
    lowest, highest = (float(end) for end in torch.aminmax(scores.detach()))
    reach = max(highest - lowest, 1e-3)
    check_decreasing(shaping, -reach, reach, scores)
    with torch.inference_mode(False), torch.enable_grad():
        margins = torch.zeros(1, dtype=scores.dtype, device=scores.device)
        if shaping(margins).requires_grad:
            raise ValueError(
                f"shaping {_name(shaping)} has parameters of its own that ask for a gradient, but "
                "would receive none here: freeze them with requires_grad_(False)"
            )
        if not shaping(margins.requires_grad_()).requires_grad:
            raise ValueError(
                f"shaping {_name(shaping)} must be differentiable by autograd: write it with torch "
                "functions of the margins"
            )


def check_decreasing(shaping: Shaping, lowest: float, highest: float, like: Tensor) -> None:
    """Require finite values of the right shape that never rise on the range in use, and fall."""
    if isinstance(shaping, Hinge):  # never rises, but may be flat everywhere
        return
    grid = torch.linspace(lowest, highest, 257, dtype=torch.float64, device="cpu")
    grid = grid.to(like.device, torch.float32 if like.device.type == "mps" else torch.float64)
    with torch.no_grad():
        values = shaping(grid)
    name = _name(shaping)
    if not isinstance(values, Tensor) or values.shape != grid.shape:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"shaping {name} must return one value for each margin, shape {tuple(grid.shape)}, "
            f"got {found}"
        )
    if not bool(torch.isfinite(values).all()):
        where = float(grid[~torch.isfinite(values)][0])
        raise ValueError(
            f"shaping {name} must be finite on the margins in use, [{lowest:.3g}, {highest:.3g}], "
            f"found {float(values[~torch.isfinite(values)][0])} at {where:.3g}"
        )
    rises = values.diff() > 0
    if bool(rises.any()) or bool(values[0] == values[-1]):
        fault = f"rises at {float(grid[:-1][rises][0]):.3g}" if bool(rises.any()) else "is constant"
        raise ValueError(
            f"shaping {name} must be strictly decreasing, but for flat parts, on the margins in "
            f"use, [{lowest:.3g}, {highest:.3g}], but {fault}: a larger margin must cost less"
        )


def _name(shaping: Shaping) -> str:
    return getattr(shaping, "__name__", repr(shaping))
