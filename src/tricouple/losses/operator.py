"""A loss as one operator, for compiled and exported graphs and for ``torch.func``.

A plan cannot be traced: how many sweeps are done, and how, depends on the data, and the compiled
module works on addresses. The operator runs the ordinary code of a loss and computes its gradients
with its value, where they are wanted; the backward pass multiplies.
"""

import secrets
from collections.abc import Sequence
from itertools import compress, count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from tricouple.batch import Call
from tricouple.numeric import NO_SECOND_DERIVATIVES, compute_dtype, never_compiled

Tensors = list[Tensor]

# The losses of this process, by the numbers that graphs hold. The first number is random, so that a
# graph exported by another process has none of them.
_living: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers = count(secrets.randbits(60))


def register(criterion: Any) -> int:
    """Give a loss its number."""
    number = next(_numbers)
    _living[number] = criterion
    return number


def apply(
    criterion: Any, number: int, call: Call, temperature: float | Tensor | None, both: bool
) -> Tensor:
    """A call of the loss that has this number, in both directions or in one."""
    given = call._asdict()
    for place, index in enumerate(given.pop("indices_tuple") or ()):
        given[f"{_INDICES}{place}"] = index
    if temperature is None and criterion.scale is not None:
        own = getattr(criterion, criterion.scale)
        temperature = own if isinstance(own, Tensor) else None
    fixed = None
    if isinstance(temperature, Tensor):
        given["temperature"] = temperature
    elif temperature is not None:
        fixed = float(temperature)
    for name, parameter in criterion.named_parameters():
        if name != criterion.scale:
            given[_PARAMETER + name] = parameter
    device = call.embeddings.device
    tensors = {
        name: value if isinstance(value, Tensor) else torch.as_tensor(value, device=device)
        for name, value in given.items()
        if value is not None
    }
    compiling = torch.compiler.is_compiling()
    # Inside ``vmap`` it is unknown whether a tensor requires a gradient.
    wanted = [
        torch.is_grad_enabled()
        and name not in ("pairs", "weights")
        and tensor.is_floating_point()
        and (tensor.requires_grad or not compiling)
        for name, tensor in tensors.items()
    ]
    settings = list(tensors), wanted, fixed, number, both
    if compiling:
        return torch.ops.tricouple.loss(*settings, list(tensors.values()))  # type: ignore[no-any-return]
    return _Loss.apply(*settings, *tensors.values())[0]  # type: ignore[no-any-return, no-untyped-call]


_INDICES, _PARAMETER = "indices ", "criterion."


@never_compiled
def _loss_and_gradients(
    names: list[str],
    wanted: list[bool],
    temperature: float | None,
    number: int,
    both: bool,
    values: Tensors,
) -> Tensors:
    """The value, and the gradient of each tensor for which it is wanted."""
    criterion = _living.get(number)
    if criterion is None:
        raise RuntimeError(
            "the loss of this graph is gone: a compiled or exported graph needs the loss it was "
            "made with, alive and in the same process"
        )
    # Operators run below autograd, which is enabled again here.
    with torch.inference_mode(False), torch.set_grad_enabled(any(wanted)):
        inner = [
            value.detach().to(compute_dtype(value.dtype), copy=True).requires_grad_()
            if want
            else value
            for value, want in zip(values, wanted, strict=True)
        ]
        leaves = list(compress(inner, wanted))
        value = _called(criterion, temperature, both, names, inner)
        gradients = tuple(map(torch.zeros_like, leaves))
        if value.requires_grad:
            gradients = torch.autograd.grad(value, leaves, materialize_grads=True)
    value = value.detach().to(_dtype(names, values), copy=True)
    return [value, *(gradient.contiguous() for gradient in gradients)]


def _called(
    criterion: Any, temperature: float | None, both: bool, names: list[str], values: list[Tensor]
) -> Tensor:
    """The ordinary call of a loss, whose parameters these may replace."""
    given: dict[str, Any] = dict(zip(names, values, strict=True))
    parameters = {name: given.pop(name) for name in names if name.startswith(_PARAMETER)}
    indices = tuple(given.pop(name) for name in names if name.startswith(_INDICES))
    temperature = given.pop("temperature", temperature)
    settings = Call(**given, indices_tuple=indices or None), temperature, both
    return torch.func.functional_call(_Module(criterion), parameters, settings)  # type: ignore[no-any-return]


class _Module(torch.nn.Module):
    """``of_call`` of a loss as the call of a module."""

    def __init__(self, criterion: torch.nn.Module) -> None:
        super().__init__()
        self.criterion: Any = criterion

    def forward(self, call: Call, temperature: float | Tensor | None, both: bool) -> Tensor:
        """The loss."""
        return self.criterion.of_call(call, temperature, both=both)  # type: ignore[no-any-return]


def _dtype(names: list[str], values: list[Tensor]) -> torch.dtype:
    """That of the loss."""
    pairs = zip(names, values, strict=True)
    embedded = [value.dtype for name, value in pairs if name in ("embeddings", "ref_emb")]
    return torch.float64 if torch.float64 in embedded else torch.float32


def _fake(names: list[str], wanted: list[bool], *others: Any) -> Tensors:
    """What the operator returns, without numbers."""
    values: Tensors = others[-1]
    gradients = (
        value.new_empty(value.shape, dtype=compute_dtype(value.dtype))
        for value in compress(values, wanted)
    )
    return [values[0].new_empty((), dtype=_dtype(names, values)), *gradients]


def _scaled(cotangent: Tensor, gradients: Sequence[Tensor], causes: Sequence[Tensor]) -> Tensors:
    """Gradients times the cotangent, rounded afterwards to the dtypes of their causes.

    In a compiled backward pass this is an operator, from which the compiler learns that gradients
    depend on their causes: it refuses second derivatives, and does not fold them as constants.
    """
    pairs = zip(gradients, causes, strict=True)
    return [(cotangent * gradient).to(cause.dtype) for gradient, cause in pairs]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        operator = torch.ops.tricouple.loss_and_gradients
        return tuple(operator(*arguments[:5], list(arguments[5:])))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, ctx.wanted, _, _, _, *values = inputs
        causes = compress(values, ctx.wanted)
        ctx.save_for_backward(*output[1:], *causes)
        ctx.set_materialize_grads(False)  # gradients get cotangents in second derivatives alone

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        cotangent, *second = cotangents
        if any(found is not None for found in second):
            raise RuntimeError(NO_SECOND_DERIVATIVES)
        saved, count = ctx.saved_tensors, sum(ctx.wanted)  # read once: checkpoints allow no more
        gradients, causes = saved[:count], saved[count:]
        scale = torch.ops.tricouple.scaled if torch.compiler.is_compiling() else _scaled
        results = iter([] if cotangent is None else scale(cotangent, gradients, causes))
        return *(None,) * 5, *(next(results, None) if want else None for want in ctx.wanted)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """One batch after the other."""
        results = []
        for batch in range(info.batch_size):
            own = (
                value if axis is None else value.select(axis, batch)
                for value, axis in zip(arguments[5:], in_dims[5:], strict=True)
            )
            results.append(_Loss.apply(*arguments[:5], *own))  # type: ignore[no-untyped-call]
        stacked = tuple(torch.stack(result) for result in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)


def _loss(*arguments: Any) -> Tensor:
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            "PyTorch's operators know no transforms of torch.func inside compiled code: transform "
            "the loss outside of torch.compile, or use torch.autograd"
        )
    *settings, values = arguments
    return _Loss.apply(*settings, *values)[0]  # type: ignore[no-any-return, no-untyped-call]


_ARGUMENTS = (
    "(str[] names, bool[] wanted, float? temperature, int number, bool both, Tensor[] values)"
)
_SCALED = "(Tensor cotangent, Tensor[] gradients, Tensor[] causes)"
_library = torch.library.Library("tricouple", "DEF")
for _schema, _kernel, _fake_kernel in (
    (f"loss_and_gradients{_ARGUMENTS} -> Tensor[]", _loss_and_gradients, _fake),
    (f"scaled{_SCALED} -> Tensor[]", _scaled, _scaled),
):
    _name = _library.define(_schema, tags=torch.Tag.pt2_compliant_tag)
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tricouple::{_name}", _fake_kernel, lib=_library)
_library.define(f"loss{_ARGUMENTS} -> Tensor", tags=torch.Tag.pt2_compliant_tag)
_library.impl("loss", _loss, "CompositeImplicitAutograd")
