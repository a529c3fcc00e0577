"""Functions that a surrounding ``torch.compile`` must call as they are.

How many sweeps are done, and by which kernel, depends on the data, and the compiled module works on
addresses: neither can be traced. ``torch.compiler.disable`` says so, but asking for it at import
time would load the whole compiler for everybody.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def never_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Keep a function out of compiled graphs, at no cost where nobody compiles."""

    @functools.cache
    def disabled() -> Callable[P, R]:
        return torch.compiler.disable(function)  # type: ignore[no-any-return]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" in sys.modules:
            return disabled()(*args, **kwargs)
        return function(*args, **kwargs)

    return call
