"""Small numerical helpers shared by the solver and the losses."""

import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def on_host(tensor: Tensor) -> bool:
    """Whether this tensor is read without waiting for a device (docs/accelerators.md)."""
    return tensor.device.type == HOST


HOST = "cpu"  # another word here makes the CPU take the path of a device, for tests


def wide_dtype(device: torch.device) -> torch.dtype:
    """The dtype of O(N) vectors whose large parts cancel: float64 wherever the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of N×N work: half-precision inputs are computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def number_of(setting: float | Tensor) -> float:
    """The value of a setting, a number or a tensor, which may require a gradient."""
    return float(setting.detach() if isinstance(setting, Tensor) else setting)


def divide_or_zero(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator / denominator``, and 0 where the denominator is 0 (a sample without mass)."""
    return torch.where(denominator > 0, numerator / denominator, 0.0)


def blocks(n: int, step: int) -> Iterator[slice]:
    """Rows in parts of at most so many, at least one."""
    step = max(1, step)
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def fill_own(values: Tensor, own: Tensor, number: float) -> Tensor:
    """Overwrite entry (i, own_i) of each row, −1 for none, without reading ``own``."""
    at = own.clamp(min=0)[:, None]
    kept = torch.where(own[:, None] >= 0, number, values.gather(1, at))
    return values.scatter_(1, at, kept)


def inverse_product(
    temperature: float | Tensor, epsilon: float, dtype: torch.dtype = torch.float64
) -> float | Tensor:
    """The sharpness c = 1/(τε); of a tensor τ a scalar tensor, float32 at least.

    On the host raises a ValueError if sums of scores of that size overflow in the dtype.
    """
    sharpness: float | Tensor
    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(()).to(compute_dtype(temperature.dtype))
        sharpness = 1 / (temperature * epsilon)
        if not on_host(sharpness):
            return sharpness
    else:
        product = temperature * epsilon
        sharpness = 1 / product if product >= sys.float_info.min else math.inf
    info = torch.finfo(dtype)
    if not number_of(sharpness) <= info.max * info.eps:
        raise ValueError(
            f"temperature {float(temperature):g} times epsilon {epsilon:g} is too small: their "
            f"inverse is too large for {dtype}"
        )
    return sharpness


@contextmanager
def ieee_products(device: torch.device) -> Iterator[None]:
    """Without autocast and TF32: an error of 1e-3 in s is one of c·1e-3 in an exponent."""
    if device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
        yield
        return
    products = torch.backends.cuda.matmul
    # From PyTorch 2.9 on the first name; using both is an error.
    recent = hasattr(products, "fp32_precision")
    name, exact = ("fp32_precision", "ieee") if recent else ("allow_tf32", False)
    before = getattr(products, name)
    setattr(products, name, exact)
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        setattr(products, name, before)


def full_precision(backward: Callable[P, R]) -> Callable[P, R]:
    """A backward without autocast, with IEEE products."""

    @functools.wraps(backward)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        gradient = args[1]  # after the context
        assert isinstance(gradient, Tensor)
        with ieee_products(gradient.device):
            return backward(*args, **kwargs)

    return call


def unit_rows(values: Tensor, norms: Tensor) -> Tensor:
    """``values / norms``, where ``norms`` are the rows' norms, shape (N, 1)."""
    return _UnitRows.apply(values, norms)  # type: ignore[no-any-return, no-untyped-call]


class _UnitRows(torch.autograd.Function):
    """The gradient in three operations: what is orthogonal to the row, divided by its norm."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, norms: Tensor) -> Tensor:
        unit = values / norms
        ctx.save_for_backward(values, unit, norms)
        return unit

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        values, unit, norms = ctx.saved_tensors
        along = torch.linalg.vecdot(unit, gradient).unsqueeze(1)
        across = torch.addcmul(gradient, unit, along, value=-1)
        if torch.is_grad_enabled():  # a second derivative moves the norms too
            return across / torch.linalg.vector_norm(values, dim=1, keepdim=True), None
        return across.div_(norms), None


NO_SECOND_DERIVATIVES = (
    "tricouple has no second derivatives of couplings and of InfoNCE: their gradient is computed "
    "by hand, once. Use first derivatives (create_graph=False), finite differences of gradients, "
    "or a loss that has them, DBOT, InvaSpread or VICReg, with torch.autograd and uncompiled"
)


def final(gradients: Sequence[Tensor | None], causes: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients that raise an error if they are differentiated by one of their causes.

    PyTorch's ``once_differentiable`` checks the incoming gradient alone, a constant for a loss.
    """
    if not torch.is_grad_enabled():
        return list(gradients)
    found = [gradient for gradient in gradients if gradient is not None]
    tied = iter(_Final.apply(len(found), *found, *causes))  # type: ignore[no-untyped-call]
    return [None if gradient is None else next(tied) for gradient in gradients]


class _Final(torch.autograd.Function):
    """The first so many tensors, as functions of the others without a known derivative."""

    @staticmethod
    def forward(ctx: Any, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.detach() for tensor in tensors[:number])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise RuntimeError(NO_SECOND_DERIVATIVES)


def cosines(anchors: Tensor, references: Tensor) -> Tensor:
    """Inner products of all pairs, shape (N, M)."""
    product: Tensor = _Products.apply(anchors, references)  # type: ignore[no-untyped-call]
    return product


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchors: Tensor, references: Tensor) -> Tensor:
        ctx.save_for_backward(anchors, references)
        ctx.same = anchors is references
        return torch.mm(anchors, references.T)

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        anchors, references = ctx.saved_tensors
        if ctx.same:
            # Both arguments are one tensor, which receives the sum of what is returned.
            return (gradient + gradient.T) @ anchors, None
        return gradient @ references, gradient.T @ anchors


def traced() -> bool:
    """Whether code is being compiled, exported or transformed."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def never_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """``torch.compiler.disable`` of a function, without loading the compiler at import time."""
    disabled: list[Callable[P, R]] = []  # made when the compiler has been loaded

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    # The compiler then skips this function too, and gives the reason.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    call._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "couplings cannot be traced; tricouple's losses can be part of one graph"
    )
    return call
