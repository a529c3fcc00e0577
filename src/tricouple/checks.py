"""Checks of user input: each error names the argument, the value found and what would be right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from tricouple.distributed import Team
from tricouple.numeric import on_host, wide_dtype

Labels = Tensor | Sequence[int] | Any
"""Integer identities: a tensor, a list or a numpy array."""


class Doubts:
    """Flags that a device holds about a batch: one reading settles all of them."""

    def __init__(self) -> None:
        self._flags: list[Tensor] = []
        self._answers: list[str | Callable[[], object]] = []
        self.number: Tensor | None = None  # a number to be read with them
        self.known: float | None = None  # that number, afterwards

    def add(self, wrong: Tensor, answer: str | Callable[[], object]) -> None:
        """Something that may be wrong: what is missing then, or who raises an error for it."""
        self._flags.append(wrong.reshape(()))
        self._answers.append(answer)

    def settle(self, team: Team | None = None) -> str | None:
        """Raise the first error, if there is one; or say what is missing, if anything is.

        Args:
            team: Processes, all of which raise an error if one of them has found it.
        """
        flags = torch.stack([flag.to(wide_dtype(flag.device)) for flag in self._flags])
        if team is not None:
            team.max_(flags)
        if self.number is not None:
            flags = torch.cat([flags, self.number.reshape(1).to(flags.dtype)])
        found = flags.tolist()
        if self.number is not None:
            self.known = found.pop()
        for wrong, answer in zip(found, self._answers, strict=True):
            if wrong and isinstance(answer, str):
                return answer
            if wrong and callable(answer):
                answer()
                if team is not None:
                    raise ValueError("another process of the group has found a bad value")
        return None


def positive_number(
    name: str, value: float | Tensor, *, read: bool = True, doubts: Doubts | None = None
) -> None:
    """Require a finite number above zero (or a tensor holding one, if it may be read).

    Args:
        name: What it is.
        value: The number.
        read: Whether the value of a tensor may be read at all.
        doubts: Where to leave the question about a tensor that is not on the host.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise ValueError(
                f"{name} must be a single floating-point number, got a tensor of shape "
                f"{tuple(value.shape)} and dtype {value.dtype}"
            )
        if not read:
            return
        if doubts is not None and not on_host(value):
            doubts.number = held = value.detach()
            doubts.add(~((held > 0) & (held < torch.inf)), partial(positive_number, name, value))
            return
        number = float(value.detach())
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")
    else:
        number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be finite and > 0, got {number}")


def non_negative_number(name: str, value: float) -> None:
    """Require a finite number that is zero or above."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and >= 0, got {value}")


def count(name: str, value: int) -> None:
    """Require a whole number, one or above."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}: {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def sweeps(n_iters: int, tol: float | None) -> None:
    """Require a sensible stopping rule: at least one sweep, and a positive tolerance if any."""
    count("n_iters", n_iters)
    if tol is not None:
        positive_number("tol", tol)


def one_of(name: str, value: object, choices: Iterable[str]) -> None:
    """Require one of a few option names."""
    allowed = tuple(choices)
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def matrix(name: str, value: Tensor, *, empty: bool = False) -> None:
    """Require a real floating-point matrix that is not empty, or may have no rows."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.is_complex() or not value.is_floating_point():
        raise TypeError(f"{name} must be real floating point, got {value.dtype}; call .float()")
    if value.ndim != 2 or 0 in value.shape[int(empty) :]:
        raise ValueError(
            f"{name} must be a non-empty matrix (one row a sample), got shape {tuple(value.shape)}"
        )


def embeddings(anchors: Tensor, references: Tensor | None, *, empty: bool = False) -> None:
    """Require one such matrix, or two on one device."""
    matrix("embeddings", anchors, empty=empty)
    if references is not None:
        matrix("ref_emb", references, empty=empty)
        if references.device != anchors.device:
            raise ValueError(f"ref_emb is on {references.device}, embeddings on {anchors.device}")


def identities(name: str, value: Labels, length: int, device: torch.device) -> Tensor:
    """Require one integer identity for each sample; lists and arrays become tensors."""
    if isinstance(value, list | tuple) or (
        hasattr(value, "__array__") and not isinstance(value, Tensor)
    ):
        try:
            value = torch.as_tensor(value, device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"{name} must be integers: {error}; texts become integers by "
                f"numpy.unique({name}, return_inverse=True)[1]"
            ) from error
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.is_floating_point() and value.ndim == 2 and value.shape[1] > 1:
        raise TypeError(
            f"{name} must be integers, got a matrix of {value.dtype}, shape {tuple(value.shape)}: "
            "for two views of the same instances call criterion(*pair_views(view0, view1))"
        )
    if value.is_floating_point() or value.is_complex():
        raise TypeError(f"{name} must be integers, got {value.dtype}; call .long()")
    if value.shape != (length,):
        raise ValueError(
            f"{name} must hold one identity a sample, shape ({length},), got {tuple(value.shape)}"
        )
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}, the embeddings on {device}: move one")
    return value


def probability(name: str, value: Tensor, length: int) -> None:
    """Require a vector of non-negative masses that sum to one."""
    if not isinstance(value, Tensor) or value.shape != (length,):
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a vector of {length} masses, got {found}")
    total = float(value.sum())
    if not bool((value >= 0).all()) or not abs(total - 1) < 1e-4:
        raise ValueError(
            f"{name} must be non-negative and sum to 1, got minimum {float(value.min())} "
            f"and sum {total}"
        )


def quadrature_tolerance(tolerance: float, dtype: torch.dtype) -> None:
    """Require a tolerance that sums in this dtype can reach."""
    reachable = 4 * torch.finfo(dtype).eps
    if tolerance < reachable or tolerance > 0.1:
        raise ValueError(
            f"kernel_tol must be between {reachable:.1e} (what {dtype} can resolve) and 0.1, "
            f"got {tolerance}"
        )
