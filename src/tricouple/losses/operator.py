"""A loss as one operator: how compiled and exported graphs and ``torch.func`` see it.

None of them can trace a plan: how many sweeps are done, and how, depends on the data, and the
compiled module works on addresses. The operator runs the ordinary code of a loss. As a loss is one
number, its gradients are computed with it, where they are wanted; the backward pass multiplies.
"""

from __future__ import annotations

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

# The losses of this process, by the numbers that graphs hold. They start anywhere, so that a graph
# that was exported by another process finds none.
living: WeakValueDictionary[int, Any] = WeakValueDictionary()
numbers = count(secrets.randbits(60))


def apply(criterion: Any, number: int, call: Call, temperature: float | Tensor | None) -> Tensor:
    """A call of the loss that has this number."""
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
    # Inside ``vmap`` a tensor does not say whether it requires a gradient.
    wanted = [
        torch.is_grad_enabled()
        and tensor.is_floating_point()
        and (tensor.requires_grad or not compiling)
        for tensor in tensors.values()
    ]
    settings = list(tensors), wanted, fixed, number
    if compiling:
        return torch.ops.tricouple.loss(*settings, list(tensors.values()))  # type: ignore[no-any-return]
    return _Loss.apply(*settings, *tensors.values())[0]  # type: ignore[no-any-return, no-untyped-call]


_INDICES, _PARAMETER = "indices ", "parameter "


@never_compiled
def _loss_and_gradients(
    names: list[str], wanted: list[bool], temperature: float | None, number: int, values: Tensors
) -> Tensors:
    """The value, and the gradient of each tensor for which it is wanted."""
    criterion = living.get(number)
    if criterion is None:
        raise RuntimeError(
            "the loss of this graph is gone: a compiled or exported graph needs the loss it was "
            "made with, alive and in the same process"
        )
    if not any(wanted):
        value = _called(criterion, temperature, names, values)
        return [value.detach().to(_dtype(names, values), copy=True)]
    # Operators run below autograd, and this is the way back up.
    with torch.inference_mode(False), torch.enable_grad():
        inner = [
            value.detach().to(compute_dtype(value.dtype), copy=True).requires_grad_()
            if want
            else value
            for value, want in zip(values, wanted, strict=True)
        ]
        leaves = list(compress(inner, wanted))
        value = _called(criterion, temperature, names, inner)
        gradients = tuple(map(torch.zeros_like, leaves))
        if value.requires_grad:
            gradients = torch.autograd.grad(value, leaves, materialize_grads=True)
    value = value.detach().to(_dtype(names, values), copy=True)
    return [value, *(gradient.contiguous() for gradient in gradients)]


def _called(
    criterion: Any, temperature: float | None, names: list[str], values: list[Tensor]
) -> Tensor:
    """The ordinary call of a loss."""
    given: dict[str, Any] = {"temperature": temperature, "indices_tuple": None}
    parameters = {}
    for name, value in zip(names, values, strict=True):
        if name.startswith(_PARAMETER):
            parameters[name.removeprefix(_PARAMETER)] = value
        elif name.startswith(_INDICES):
            given["indices_tuple"] = (*(given["indices_tuple"] or ()), value)
        else:
            given[name] = value
    if parameters:
        return torch.func.functional_call(criterion, parameters, (), given)  # type: ignore[no-any-return]
    return criterion.forward(**given)  # type: ignore[no-any-return]


def _dtype(names: list[str], values: list[Tensor]) -> torch.dtype:
    """That of the loss."""
    pairs = zip(names, values, strict=True)
    embedded = [value.dtype for name, value in pairs if name in ("embeddings", "ref_emb")]
    return torch.float64 if torch.float64 in embedded else torch.float32


def _fake(
    names: list[str], wanted: list[bool], temperature: float | None, number: int, values: Tensors
) -> Tensors:
    """What the operator returns, without numbers."""
    gradients = (
        value.new_empty(value.shape, dtype=compute_dtype(value.dtype))
        for value in compress(values, wanted)
    )
    return [values[0].new_empty((), dtype=_dtype(names, values)), *gradients]


def _scaled(cotangent: Tensor, gradients: Sequence[Tensor], causes: Sequence[Tensor]) -> Tensors:
    """Gradients times what comes in, in the dtypes of the tensors of which they are gradients.

    Multiplied before it is rounded to half precision, as a GradScaler needs it. In a compiled
    backward pass this is an operator, from which the compiler learns that gradients depend on their
    causes: so it refuses a second derivative, and does not take them for constants.
    """
    pairs = zip(gradients, causes, strict=True)
    return [(cotangent * gradient).to(cause.dtype) for gradient, cause in pairs]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        operator = torch.ops.tricouple.loss_and_gradients
        return tuple(operator(*arguments[:4], list(arguments[4:])))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, ctx.wanted, _, _, *values = inputs
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
        return *(None,) * 4, *(next(results, None) if want else None for want in ctx.wanted)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """One batch after the other."""
        results = []
        for batch in range(info.batch_size):
            own = (
                value if axis is None else value.select(axis, batch)
                for value, axis in zip(arguments[4:], in_dims[4:], strict=True)
            )
            results.append(_Loss.apply(*arguments[:4], *own))  # type: ignore[no-untyped-call]
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


_ARGUMENTS = "(str[] names, bool[] wanted, float? temperature, int number, Tensor[] values)"
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
