"""Checks of user input: each error names the argument, the value found and what would be right."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from tricouple.groups import Processes
from tricouple.numeric import number_of, on_host, wide_dtype

Labels = Tensor | Sequence[int] | Any
"""Integer labels: a tensor, a list or a numpy array."""


@dataclass
class Deferred:
    """Flags about a batch and their errors: raised at once on the host, of a device together."""

    full: bool = True  # whether flags of a device are kept, to be read at the end
    read: bool = False  # whether they are read at once instead
    # Of a device: whether something is wrong, and what raises its error.
    flags: list[tuple[Tensor, Callable[[], object]]] = field(default_factory=list)
    spoilt: Tensor | None = None  # whether something is wrong, where flags are not kept

    def unless(self, wrong: Tensor, explain: Callable[[int], object]) -> None:
        """Raise an error about the first entry that is wrong; ``explain`` gives or raises it."""

        def fail() -> None:
            found = wrong.flatten().nonzero()  # nothing if it is another process that has it
            message = explain(int(found[0])) if len(found) else None
            if isinstance(message, str):
                raise ValueError(message)

        if self.read or on_host(wrong):
            if bool(wrong.any()):
                fail()
        elif self.full:
            self.flags.append((wrong.any(), fail))
        else:
            self.spoilt = wrong.any() if self.spoilt is None else self.spoilt | wrong.any()

    def raise_first(self, processes: Processes | None, *numbers: Tensor) -> list[float]:
        """Raise the first error, on all processes; else read numbers, tensors of one element."""
        wide = wide_dtype(numbers[0].device)
        flags = torch.stack([flag.to(wide).reshape(()) for flag, _ in self.flags])
        if processes is not None:
            processes.max_(flags)
        read = [number.detach().reshape(1).to(wide) for number in numbers]
        found: list[float] = torch.cat([flags, *read]).tolist()  # all of them at once
        for wrong, (_, fail) in zip(found, self.flags, strict=False):
            if wrong:
                fail()
                raise ValueError("another process of the group has found a bad value")
        return found[len(flags) :]


def positive_number(name: str, value: float | Tensor, later: Deferred | None = None) -> None:
    """Require a finite number above zero, or a tensor that holds one, read now or ``later``."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise ValueError(
                f"{name} must be a single floating-point number, got a tensor of shape "
                f"{tuple(value.shape)} and dtype {value.dtype}"
            )
        if later is not None:
            held = value.detach()
            if later.full:
                wrong = ~((held > 0) & (held < torch.inf))
                later.unless(wrong, lambda _: positive_number(name, held))
            return
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number or a tensor, got {value!r}")
    number = number_of(value)
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


def labels(
    name: str, value: Labels, length: int, device: torch.device, later: Deferred | None = None
) -> Tensor:
    """Require one integer label per sample; lists, arrays and whole floats become integers."""
    listed = isinstance(value, list | tuple) or hasattr(value, "__array__")
    if listed and not isinstance(value, Tensor):
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

    def not_whole(at: int) -> None:
        found = float(value[at])
        raise TypeError(f"{name} must be integers or whole numbers, got {found} in {value.dtype}")

    fractional = ~(value == value.round())  # also NaN
    (later or Deferred(full=False)).unless(fractional, not_whole)
    return value.long()


def weights(
    name: str, value: Any, like: Tensor, shape: tuple[int, ...], later: Deferred | None = None
) -> Tensor:
    """Require finite numbers that are zero or above, or bools; they get no gradient."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.shape != shape or value.device != like.device or value.is_complex():
        raise ValueError(
            f"{name} must be bool or non-negative numbers of shape {shape} on {like.device}, got "
            f"{value.dtype} of shape {tuple(value.shape)} on {value.device}"
        )
    held: Tensor = value.detach()
    if later is not None and later.full and held.dtype != torch.bool:

        def explain(at: int) -> str:
            found = f"{float(held.flatten()[at])} in row {at // math.prod(shape[1:])}"
            return f"{name} must be finite and non-negative, got {found}"

        later.unless(~((held >= 0) & (held < torch.inf)), explain)
    return held


def probability(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    """Require a vector of non-negative masses that sum to one, or a stack of them."""
    if not isinstance(value, Tensor) or value.shape != shape:
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be masses of shape {tuple(shape)}, got {found}")
    totals = value.detach().sum(-1).flatten()
    total = float(totals[(totals - 1).abs().argmax()])
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
