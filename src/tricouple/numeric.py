"""Small numerical helpers shared by the couplings and the losses."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from tricouple.distributed import Shard
from tricouple.memory import CACHED, empty_matrix

P = ParamSpec("P")
R = TypeVar("R")


# Devices whose numbers can be read at once. Reading from any other makes the host wait for all
# that the device still has to do: what runs there decides nothing by values.
_HOSTS = frozenset({"cpu"})


def on_host(tensor: Tensor) -> bool:
    """Whether a branch may depend on the numbers of this tensor (docs/accelerators.md)."""
    return tensor.device.type in _HOSTS


def told(number: Tensor) -> float | Tensor:
    """A number for the host, unless that would have to wait for it."""
    return float(number) if on_host(number) else number


def logarithm(number: float | Tensor) -> float | Tensor:
    """Of a number, or of one that a device keeps."""
    return number.log() if isinstance(number, Tensor) else math.log(number)


def wide_dtype(device: torch.device) -> torch.dtype:
    """The dtype of O(N) vectors whose large parts cancel: float64 wherever the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def exponential_(logs: Tensor) -> Tensor:
    """``exp`` in place, and exactly 0 for what is hardly above the smallest normal number.

    The vectorised exponential takes ten times as long where its result underflows.
    """
    tiny = torch.finfo(logs.dtype).tiny
    logs.clamp_(min=math.log(2 * tiny)).exp_()
    return torch.threshold_(logs, 3 * tiny, 0.0)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of N×N work: half-precision inputs are computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def inverse_product(
    temperature: float | Tensor, epsilon: float, dtype: torch.dtype = torch.float64
) -> float | Tensor:
    """The sharpness c = 1/(τε); a tensor τ of any one-element shape gives a scalar tensor.

    Of a τ in half precision too it is a float32: float16 ends at 65504, bfloat16 has two digits.

    Args:
        temperature: τ.
        epsilon: ε.
        dtype: What scores of that size, and sums of them, are computed in.

    Raises:
        ValueError: If it has no room for them, where that is known without asking a device.
    """
    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(()).to(compute_dtype(temperature.dtype))
        learnt = 1 / (temperature * epsilon)
        if not on_host(learnt):
            return learnt
        sharpness: float | Tensor = learnt
        number = float(learnt.detach())
    else:
        product = temperature * epsilon
        number = sharpness = 1 / product if product >= sys.float_info.min else math.inf
    info = torch.finfo(dtype)
    if not number <= info.max * info.eps:
        raise ValueError(
            f"temperature {float(temperature):g} times epsilon {epsilon:g} is too small: their "
            f"inverse is too large for {dtype}"
        )
    return sharpness


def divide_or_zero(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator / denominator``, and 0 where the denominator is 0 (a sample without mass)."""
    return torch.where(denominator > 0, numerator / denominator, numerator.new_zeros(()))


@contextmanager
def ieee_products(device: torch.device) -> Iterator[None]:
    """Matrix products in float32 with all their digits, whatever the user allows elsewhere.

    TF32 keeps ten bits: a cosine that is off by 1e-3 is off by c·1e-3 in the exponent of a kernel.
    """
    if device.type == "cpu":
        yield
        return
    products = torch.backends.cuda.matmul
    # PyTorch has two names for it from 2.9 on, and does not like to hear both.
    recent = hasattr(products, "fp32_precision")
    name, exact = ("fp32_precision", "ieee") if recent else ("allow_tf32", False)
    before = getattr(products, name)
    setattr(products, name, exact)
    try:
        yield
    finally:
        setattr(products, name, before)


def full_precision(backward: Callable[P, R]) -> Callable[P, R]:
    """A backward that gives inside ``torch.autocast`` what it gives outside, with IEEE products."""

    @functools.wraps(backward)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        gradient = args[1]  # after the context
        assert isinstance(gradient, Tensor)
        device = gradient.device.type
        if device == "cpu" and not torch.is_autocast_enabled(device):
            return backward(*args, **kwargs)
        with torch.autocast(device, enabled=False), ieee_products(gradient.device):
            return backward(*args, **kwargs)

    return call


def expectation(masses: Tensor, values: Tensor) -> Tensor:
    """``Σ masses · values`` with the convention ``0 · (±∞) = 0``; the masses are constants."""
    return _Expectation.apply(masses, values)  # type: ignore[no-any-return, no-untyped-call]


class _Expectation(torch.autograd.Function):
    """Small batches spend their time between operations: this has few."""

    @staticmethod
    def forward(ctx: Any, masses: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(masses)
        return torch.dot(masses, values.masked_fill(masses == 0, 0.0))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (masses,) = ctx.saved_tensors
        return None, gradients[0] * masses


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


def first_derivative_only(
    backward: Callable[..., tuple[Tensor | None, ...]],
) -> Callable[..., tuple[Tensor | None, ...]]:
    """A hand-written backward that refuses to be differentiated, whatever it was given.

    With ``create_graph=True`` its gradients are tied to all that they depend on, the incoming
    gradients and the saved tensors, by a node that raises. (PyTorch's ``once_differentiable`` looks
    at the incoming gradients alone, and that of a loss is a constant: it says nothing.)
    """

    @functools.wraps(backward)
    @full_precision
    def call(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        with torch.no_grad():
            results = backward(ctx, *gradients)
        places = [place for place, result in enumerate(results) if result is not None]
        causes = (cause for cause in (*gradients, *ctx.saved_tensors) if isinstance(cause, Tensor))
        found = [results[place] for place in places]
        tied = _Final.apply(len(places), *found, *causes)  # type: ignore[no-untyped-call]
        answer = dict(zip(places, tied, strict=True))
        return tuple(answer.get(place) for place in range(len(results)))

    return call


class _Final(torch.autograd.Function):
    """The first so many tensors, as functions of the others whose derivative nobody knows."""

    @staticmethod
    def forward(ctx: Any, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.detach() for tensor in tensors[:number])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise RuntimeError(NO_SECOND_DERIVATIVES)


def uniform(sizes: Sequence[int], like: Tensor) -> Tensor:
    """Uniform marginals of several axes, one after the other in one vector."""
    if len(set(sizes)) == 1:
        return like.new_full((sum(sizes),), 1 / sizes[0])
    return torch.cat([like.new_full((size,), 1 / size) for size in sizes])


# Up to this many samples it is cheaper to add a gradient to its transpose than to multiply twice.
_SMALL = 1024


def cosines(anchors: Tensor, references: Tensor) -> Tensor:
    """Inner products of all pairs, shape (N, M)."""
    product: Tensor = _Products.apply(anchors, references)  # type: ignore[no-untyped-call]
    return product


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchors: Tensor, references: Tensor) -> Tensor:
        ctx.save_for_backward(anchors, references)
        ctx.same = anchors is references
        out = empty_matrix(anchors, len(anchors), len(references))
        return torch.mm(anchors, references.T, out=out)

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        anchors, references = ctx.saved_tensors
        if ctx.same and len(anchors) <= _SMALL:
            # Both arguments are one tensor, which receives the sum of what is returned.
            return (gradient + gradient.T) @ anchors, None
        return gradient @ references, gradient.T @ anchors


def row_blocks(n_rows: int, n_columns: int, entries: int = CACHED) -> list[slice]:
    """Slices of rows that hold about ``entries`` numbers each."""
    step = max(1, entries // max(1, n_columns))
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


class Patch(NamedTuple):
    """Part of a gradient with respect to the N×M scores."""

    rows: slice  # its rows
    values: Tensor  # its entries. They may be overwritten by the next patch.
    columns: slice = slice(None)  # its columns


ScoreGradient = Iterable[Patch]
"""A gradient with respect to the N×M scores. Within one set, where s_ij and s_ji are one number,
each pair may come once, with both entries. Of several processes each may have some rows."""


@dataclass(frozen=True)
class OwnGradient(Iterable[Patch]):
    """Of a gradient with respect to the scores what a process's own samples get from it."""

    # Of its own anchors, with all references, whatever the order. Within one set they hold both
    # entries of a pair.
    anchors: Iterable[Patch]
    rows: Sequence[slice]  # its own anchors
    # Transposed: of its own references, with all anchors; None where the anchors have all.
    references: Iterable[Patch] | None = None

    def __iter__(self) -> Iterator[Patch]:
        """Those of the anchors."""
        return iter(self.anchors)


@dataclass(frozen=True)
class PulledGradient(Iterable[Patch]):
    """A gradient with respect to scores ⟨x_i, y_j⟩ whose products with x and y are there."""

    rows: Tensor  # ``Σ_j G_ij y_j``, shape (N, d)
    columns: Tensor  # ``Σ_i G_ij x_i``, shape (M, d)
    entries: Callable[[], Iterable[Patch]]  # G itself

    def __iter__(self) -> Iterator[Patch]:
        """Its entries."""
        return iter(self.entries())


def pull(
    gradient: ScoreGradient,
    factor: float | Tensor,
    anchors: Tensor,
    references: Tensor,
    *,
    slope: bool,
    shard: Shard | None = None,
) -> tuple[tuple[Tensor, Tensor | None], Tensor | None]:
    """Chain with ``score_ij = factor · ⟨anchors_i, references_j⟩``, a tile at a time.

    Args:
        gradient: With respect to the scores, shape (N, M).
        factor: The factor.
        anchors: Shape (N, d).
        references: Shape (M, d); the same tensor within one set.
        slope: Whether the gradient with respect to the factor is wanted.
        shard: The processes that have a share of the gradient, if there are several. Each gets the
            gradient of its own rows, and what is in the others is not to be used.

    Returns:
        The gradients with respect to anchors and references, and to the factor (wide dtype).
        Within one set the first may be the sum of both; then the second is None.
    """
    if isinstance(gradient, OwnGradient):
        assert shard is not None
        to_anchors, total = _pull_own(gradient, anchors, references, factor, gradient.rows)
        received = None
        if gradient.references is not None:
            patches = gradient.references
            received, more = _pull_own(patches, references, anchors, factor, [shard.columns])
            total = total + more
        # Σ_ij G_ij s_ij is in the gradients of both sides.
        return (to_anchors, received), shard.sum_(total / 2) if slope else None
    to_anchors, to_references = _zeros(anchors), None
    for rows, tile, columns in gradient:
        part = tile.to(anchors.dtype)
        whole = shard is None and anchors is references and part.shape == 2 * anchors.shape[:1]
        if whole:
            if len(anchors) <= _SMALL:
                torch.mm(part + part.T, anchors, out=to_anchors)
            else:
                torch.mm(part, anchors, out=to_anchors).addmm_(part.T, anchors)
            to_factor = _inner(anchors, to_anchors) / 2 if slope else None
            return (to_anchors.mul_(factor), None), to_factor
        to_references = _zeros(references) if to_references is None else to_references
        to_anchors[rows].addmm_(part, references[columns])
        to_references[columns].addmm_(part.T, anchors[rows])
    to_references = _zeros(references) if to_references is None else to_references
    to_factor = _inner(anchors, to_anchors) if slope else None
    if shard is not None:
        shard.sum_(to_references)
        if to_factor is not None:
            shard.sum_(to_factor)
    return (to_anchors.mul_(factor), to_references.mul_(factor)), to_factor


def _zeros(like: Tensor) -> Tensor:
    """What becomes somebody's gradient."""
    with torch.inference_mode(False):
        return torch.zeros_like(like)


def _pull_own(
    patches: Iterable[Patch],
    near: Tensor,
    far: Tensor,
    factor: float | Tensor,
    own: Sequence[slice],
) -> tuple[Tensor, Tensor]:
    """The gradient of own rows, zero in the others, and its inner product with them over c."""
    gradient = _zeros(near)  # memory that nobody touches is none
    for rows, tile, columns in patches:
        gradient[rows].addmm_(tile.to(near.dtype), far[columns])
    slope = torch.zeros((), dtype=wide_dtype(near.device), device=near.device)
    for rows in own:
        slope += _inner(near[rows], gradient[rows])
        gradient[rows].mul_(factor)
    return gradient, slope


def _inner(left: Tensor, right: Tensor) -> Tensor:
    wide = wide_dtype(left.device)
    return torch.dot(left.flatten().to(wide), right.flatten().to(wide))


def traced() -> bool:
    """Whether code is being compiled, exported or transformed."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def never_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Keep a function out of compiled graphs, at no cost where nobody compiles.

    How many sweeps are done, and by which coupling, depends on the data, and the compiled module
    works on addresses: neither can be traced. ``torch.compiler.disable`` says so, but asking for it
    at import time would load the whole compiler for everybody.
    """
    disabled: list[Callable[P, R]] = []  # made when the compiler has been loaded

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    # So the compiler does not look into this function either, and gives the reason.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    call._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "couplings cannot be traced; tricouple's losses can be part of one graph"
    )
    return call
