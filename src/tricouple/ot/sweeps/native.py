"""The door to the compiled module, and the couplings of small batches that go through it.

A sweep of 256 samples is twenty PyTorch calls for a few microseconds of arithmetic; the compiled
module makes it one call for all sweeps, and one for their adjoint. The formulas and names are those
of ``triplet`` and ``pair``, which say why they hold. The module is optional: built where there is a
C compiler, and used only where it pays, which ``engine`` decides. With the environment variable
``TRICOUPLE_NATIVE=0`` it is left alone; ``native.compiled`` is the module in use, or None.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tricouple.memory import Loan
from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.contract import Masses, Solution
from tricouple.ot.sweeps.kernels import Factors, LinearKernels, underflow_limit
from tricouple.ot.sweeps.pair import ScaledPair, ScaledPairHistory
from tricouple.ot.sweeps.threads import in_threads
from tricouple.ot.sweeps.triplet import ScaledTriplet
from tricouple.ot.sweeps.triplet_adjoint import ATTRACT, REPEL, ScaledTripletPlan

# The calls of the compiled module; to be raised here and in _native.c whenever one changes.
CALLS = 15


def load() -> Any:
    """The compiled module; None where it is not wanted, not built, or from other sources."""
    if os.environ.get("TRICOUPLE_NATIVE") == "0":
        return None
    try:
        module = importlib.import_module("tricouple.ot.sweeps._native")
    except ImportError:  # built without a compiler
        return None
    if getattr(module, "CALLS", 0) != CALLS:
        warnings.warn(
            f"{module.__file__} was built from another version of tricouple and is not used, which "
            "costs speed: delete it and install the package again (pip install -e .)",
            stacklevel=2,
        )
        return None
    return module


compiled = load()


def _parallel() -> int:
    """Where PyTorch's OpenMP starts a team of threads; 0 if it is not GNU's."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        found = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0


team = _parallel() if compiled is not None else 0


def _use(address: int) -> None:
    global team
    team = address
    compiled.use_team(address)


if team:
    _use(team)
    os.register_at_fork(after_in_child=lambda: _use(0))  # where OpenMP has none of its threads


def shared(function: Any, calls: Sequence[tuple[float, ...]], in_turn: int = 1) -> None:
    """Calls of a compiled function, so many of them in turn by each of several threads."""
    if team or len(calls) <= in_turn:
        function(calls, in_turn)
    else:
        shares = [calls[k : k + in_turn] for k in range(0, len(calls), in_turn)]
        in_threads(lambda share: [function(*call) for call in share], shares)


def address(array: Tensor) -> int:
    """Where a contiguous array starts; an error unless it is memory that C may touch."""
    if not array.is_cpu:
        raise RuntimeError(f"compiled sweeps work in the memory of the CPU, got {array.device}")
    return array.data_ptr()


def addresses(*arrays: Tensor) -> list[int]:
    """Where contiguous arrays start."""
    return [address(array) for array in arrays]


def _tolerance(tol: float | None) -> float:
    """The C side takes a negative tolerance for "none"."""
    return -1.0 if tol is None else float(tol)


def _rooms(n_iters: int, tol: float | None) -> Iterator[int]:
    """For how many sweeps there is to be room, more and more of it unless all will be done."""
    room = n_iters if tol is None else 64
    while room < n_iters:
        yield room
        room *= 4
    yield n_iters


class NativeKernels(LinearKernels):
    """Kernels that the compiled module fills, all in one piece of memory, as are their tops."""

    def _build(self) -> list[tuple[Tensor, Tensor]]:
        similarity = self.similarities.matrix()
        n, m = self.shape
        self.loan = Loan(1, similarity, len(self.factors), n, m)
        (matrices,) = self.loan.matrices
        tops = similarity.new_empty(len(self.factors), n + m)
        for kernel, top, factor in zip(matrices, tops, self.factors, strict=True):
            arrays = addresses(similarity, kernel, top, top[n:])
            compiled.balance(kernel.element_size(), n, m, int(self.within), factor, *arrays)
        self.matrices = list(matrices)
        return [(top[:n], top[n:]) for top in tops]


class NativePair(ScaledPair):
    """Entropic transport of small batches; each direction is one call."""

    kernels: NativeKernels

    def _sweep(
        self, v: Tensor, masses: Masses, n_iters: int, tol: float | None
    ) -> NativePairHistory:
        matrix = self.kernels.whole(0)
        n, m = matrix.shape
        # Row 0 belongs to the start, where there is no u.
        u, all_v, r = matrix.new_empty(1, n), v[None], matrix.new_empty(1, n)
        done = 0
        for room in _rooms(n_iters, tol):
            more = room - done
            u, all_v, r = (torch.cat([x, x.new_empty(more, x.shape[1])]) for x in (u, all_v, r))
            arrays = (matrix, *masses.values, u, all_v, r, matrix.new_empty(m))
            numbers = (n, m, done, room, _tolerance(tol))
            done = compiled.pair_sweeps(matrix.element_size(), *numbers, *addresses(*arrays))
            if done < room:
                break
        scalings = u[1 : done + 1], all_v[: done + 1], r[:done]
        return NativePairHistory(self.kernels, masses, *scalings)


class NativePairHistory(ScaledPairHistory):
    """The same history; its adjoint is one call."""

    kernels: NativeKernels

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Two rank-one terms a sweep."""
        matrix = self.kernels.whole(0)
        n, m = matrix.shape
        sweeps = len(self.u)
        left, right = matrix.new_empty(2 * sweeps, n), matrix.new_empty(2 * sweeps, m)
        gradients = [cotangent.clone() for cotangent in cotangents]
        work = matrix.new_empty(max(n, m))
        first = address(self.u) - n * matrix.element_size()  # the start's row, before the view
        compiled.pair_adjoint(
            matrix.element_size(),
            n,
            m,
            sweeps,
            *addresses(matrix, *self.masses.inverses),
            first,
            *addresses(self.v, *gradients, left, right, work),
        )
        return self.kernels.score_gradient([Factors(left[:, None], right)])


class NativeTriplet(ScaledTriplet):
    """Entropic three-marginal transport of small batches with linear ψ."""

    kernels: NativeKernels

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """All sweeps in one call; None when the result cannot be trusted."""
        n, m = self.kernels.shape
        potentials = masses.marginals.new_empty(n + 2 * m)
        info = torch.finfo(self.dtype)
        limits = info.eps, self.cancellation, underflow_limit(self.dtype, (n, m))
        run: NativeTripletHistory | None = None
        for room in _rooms(n_iters, tol):
            run = NativeTripletHistory(self, room, run)
            done = compiled.triplet_solve(
                info.bits // 8,
                n,
                m,
                int(self.within),
                run.sweeps,
                room,
                _tolerance(tol),
                self.kernels.factors[ATTRACT],
                *limits,
                # The second kernel lies behind the first, and so do their tops.
                *addresses(self.kernels.whole(ATTRACT), self.kernels.tops[ATTRACT][0]),
                *addresses(masses.marginals, *run.arrays, potentials, run.work),
            )
            if done < 0:
                return None
            run.sweeps = done
            if done < room:
                break
        assert run is not None
        return Solution(self, potentials, run.plan, run, run.sweeps)


class NativeTripletHistory:
    """Scalings and sums of every sweep, in one piece of memory.

    Arrays are stacks of vectors, one row for the start and one for each sweep that there may be;
    those done before are taken over.
    """

    def __init__(
        self, coupling: NativeTriplet, n_iters: int, before: NativeTripletHistory | None
    ) -> None:
        n, m = coupling.kernels.shape
        rows, columns = n * (n_iters + 1), m * (n_iters + 1)
        sizes = [2 * (n + 2 * m), n, m, rows, columns, columns, rows, rows]
        memory = coupling.kernels.like.new_empty(sum(sizes) + 2 * (n + m))
        *arrays, self.work = memory.split([*sizes, 2 * (n + m)])
        self.coupling = coupling
        self.arrays = arrays  # masses and inverses, exclusions, a, b, h, r⁺, r⁻
        self.sweeps = 0
        if before is not None:
            self.sweeps = before.sweeps
            for room, array in zip(arrays, before.arrays, strict=True):
                room[: len(array)] = array

    def plan(self) -> ScaledTripletPlan:
        """The plan after the last sweep."""
        n, m = self.coupling.kernels.shape
        sizes = (n, m, m, n, n)
        a, b, h, r_plus, r_minus = (
            array[self.sweeps * size : (self.sweeps + 1) * size]
            for array, size in zip(self.arrays[3:], sizes, strict=True)
        )
        kernels, exclusion = self.coupling.kernels, self.coupling.exclusion
        anchors = exclusion.anchors(a)
        return ScaledTripletPlan(kernels, exclusion, anchors, b, h, r_plus[None], r_minus[None])

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Terms that share a right factor are summed, so the rank is 2·sweeps + 1."""
        kernels = self.coupling.kernels
        n, m = kernels.shape
        rank, start = 2 * self.sweeps + 1, self.sweeps + 1
        left = kernels.like.new_zeros(2, rank, n)
        right = kernels.like.new_empty(2, rank, m)
        masses, row, column, a, b, h, r_plus, r_minus = self.arrays
        right[0, :start], right[1, :start] = b[: start * m].view(-1, m), h[: start * m].view(-1, m)
        gradients = torch.cat(list(cotangents))
        inverses = masses[n + 2 * m :]
        compiled.triplet_adjoint(
            kernels.like.element_size(),
            n,
            m,
            int(self.coupling.within),
            self.sweeps,
            *addresses(kernels.whole(ATTRACT), kernels.whole(REPEL), row, column),
            *addresses(inverses, inverses[n:], inverses[n + m :], a, b, h, r_plus, r_minus),
            *addresses(gradients, gradients[n:], gradients[n + m :]),
            *addresses(left[0], right[0, start:], left[1], right[1, start:], self.work),
        )
        return kernels.score_gradient(
            [Factors(side[:, None], weights) for side, weights in zip(left, right, strict=True)]
        )
