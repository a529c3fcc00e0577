"""Checks of user input: each error names the argument, the value found and what would be right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from tricouple.groups import Processes
from tricouple.numeric import on_host, wide_dtype

Labels = Tensor | Sequence[int] | Any
"""Integer identities: a tensor, a list or a numpy array."""


class Deferred:
    """Flags that a device holds about a batch, and what to raise for them: one reading has all."""

    def __init__(self) -> None:
        self._flags: list[Tensor] = []
        self._answers: list[str | Callable[[], object]] = []

    def add(self, wrong: Tensor, answer: str | Callable[[], object]) -> None:
        """Something that may be wrong: what is missing then, or a function that raises."""
        self._flags.append(wrong.reshape(()))
        self._answers.append(answer)

    def raise_first(
        self, processes: Processes | None = None, *numbers: Tensor
    ) -> tuple[str | None, list[float]]:
        """Raise the first error, if there is one; or say what is missing, if anything is.

        Args:
            processes: All of which raise an error if one of them has found it.
            numbers: Of one element each, to be read with the flags.
        """
        if not self._flags and not numbers:
            return None, []
        wide = wide_dtype((*self._flags, *numbers)[0].device)
        flags = torch.stack([flag.to(wide) for flag in self._flags])
        if processes is not None:
            processes.max_(flags)
        read = [number.detach().reshape(1).to(wide) for number in numbers]
        found = torch.cat([flags, *read]).tolist()
        values = found[len(self._flags) :]
        for wrong, answer in zip(found, self._answers, strict=False):
            if wrong and isinstance(answer, str):
                return answer, values
            if wrong and callable(answer):
                answer()
                if processes is not None:
                    raise ValueError("another process of the group has found a bad value")
        return None, values


def unless(
    wrong: Tensor, answer: Callable[[], object], deferred: Deferred | None, *, read: bool = False
) -> None:
    """Call a function that raises if a flag is set: on the host, or if it may be read, at once.

    Args:
        wrong: The flag.
        answer: The function.
        deferred: Where a flag on a device goes; None to leave it out.
        read: Whether a flag on a device is read.
    """
    if read or on_host(wrong):
        if bool(wrong):
            answer()
    elif deferred is not None:
        deferred.add(wrong, answer)


def positive_number(
    name: str, value: float | Tensor, *, read: bool = True, deferred: Deferred | None = None
) -> None:
    """Require a finite number above zero (or a tensor holding one, if it may be read).

    Args:
        name: What it is.
        value: The number.
        read: Whether the value of a tensor may be read at all.
        deferred: Where the check of a tensor on a device goes.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise ValueError(
                f"{name} must be a single floating-point number, got a tensor of shape "
                f"{tuple(value.shape)} and dtype {value.dtype}"
            )
        if not read:
            return
        if deferred is not None and not on_host(value):
            held = value.detach()
            deferred.add(~((held > 0) & (held < torch.inf)), partial(positive_number, name, value))
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
            f"{name} must be a non-empty matrix (one row per sample), got shape "
            f"{tuple(value.shape)}"
        )


def embeddings(anchors: Tensor, references: Tensor | None, *, empty: bool = False) -> None:
    """Require one such matrix, or two on one device."""
    matrix("embeddings", anchors, empty=empty)
    if references is not None:
        matrix("ref_emb", references, empty=empty)
        if references.device != anchors.device:
            raise ValueError(f"ref_emb is on {references.device}, embeddings on {anchors.device}")


def labels(
    name: str,
    value: Labels,
    length: int,
    device: torch.device,
    deferred: Deferred | None = None,
) -> Tensor:
    """Require one integer label per sample; lists, arrays and whole floats become integers."""
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
    if value.is_complex():
        raise TypeError(f"{name} must be integers, got {value.dtype}; call .long()")
    if value.shape != (length,):
        raise ValueError(
            f"{name} must hold one label per sample, shape ({length},), got {tuple(value.shape)}"
        )
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}, the embeddings on {device}: move one")
    if not value.is_floating_point():
        return value
    fractional = ~(value == value.round())  # also NaN
    unless(fractional.any(), partial(_not_whole, name, value), deferred)
    return value.long()


def _not_whole(name: str, value: Tensor) -> None:
    found = float(value[~(value == value.round())][0])
    raise TypeError(f"{name} must be integers or whole numbers, got {found} in {value.dtype}")


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
