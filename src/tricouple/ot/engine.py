"""The one place that decides how a coupling is computed.

By which solver, in matrices or in tiles, in whole matrices or in halves, in C or in PyTorch.
A loss says what it wants: a problem (``Pairs``, or triplets with their cost) and how to solve it
(``Sweeps``). The engine answers with couplings, the fastest first, and takes the first solution
that can be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from tricouple import checks
from tricouple.distributed import Shard
from tricouple.memory import (
    CACHED,
    DEFAULT_BUDGET,
    IN_MATRICES,
    MEMORY_MODES,
    Storage,
    choose_storage,
)
from tricouple.numeric import Patch, on_host, row_blocks, uniform, wide_dtype
from tricouple.ot.gradients import GRADIENTS
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.contract import Coupling, Masses, Solution
from tricouple.ot.sweeps.halves import SymmetricKernels
from tricouple.ot.sweeps.hinge import HingeTriplet
from tricouple.ot.sweeps.hinge_native import COLUMNS, NativeHinge
from tricouple.ot.sweeps.kernels import Kernels, LinearKernels, Matrix, Products, Similarities
from tricouple.ot.sweeps.linear_logs import LogLinearTriplet, LogPair
from tricouple.ot.sweeps.log_sigmoid import (
    Blocks,
    LogSigmoidTerms,
    log_sigmoid_terms,
    pair_costs,
    rule_of,
    splits_of,
    terms_on_device,
)
from tricouple.ot.sweeps.log_sigmoid_apart import ApartTriplet
from tricouple.ot.sweeps.log_sigmoid_kernels import (
    LogSigmoidTriplet,
    NativeTermKernels,
    TermKernels,
)
from tricouple.ot.sweeps.pair import MatrixPair, ScaledPair
from tricouple.ot.sweeps.triplet import CANCELLATION, ScaledTriplet
from tricouple.ot.sweeps.triplet_any import AnchorTriplet
from tricouple.ot.sweeps.triplet_both import BothTriplet, InTurn, both_ways
from tricouple.ot.sweeps.triplet_log import LinearTerms, LogDomainTriplet, LogTriplet
from tricouple.shaping import Hinge, Shaping, anchor_bytes, log_sigmoid

# Above this many entries PyTorch's products on all cores win over one core in the compiled module.
LARGEST = 1024 * 1024

# How many times what is left may have been subtracted in float64 where float32 was asked for: of
# sixteen digits, nine may go.
WIDE_CANCELLATION = 1e9

# How many times as long as a linear cost another takes: so much earlier it is worth sharing.
_DEAR = 16

# Entries of a tile of costs: a few matrices of them in float64 stay in the cache.
_COSTS = 1 << 17

# Bytes for the costs of a few anchors, in logarithms.
_ANCHORS = 2**28


def compiled() -> bool:
    """Whether the compiled module is in use, which is faster; results are the same to rounding.

    It is not where no C compiler was found when the package was installed, and not with the
    environment variable ``TRICOUPLE_NATIVE=0``.

    Example:
        >>> compiled() in (True, False)
        True
    """
    return native.compiled is not None


@dataclass(frozen=True)
class Sweeps:
    """How a coupling is solved, differentiated and stored."""

    n_iters: int  # Sinkhorn sweeps, at most
    tol: float | None  # stop sweeping when the marginal error (L1) is below this
    gradient: str  # ``"unrolled"``, ``"implicit"`` or ``"envelope"``
    marginals: str = "uniform"  # ``"uniform"``, ``"target"`` or ``"classes"``
    memory: str = "auto"  # ``"auto"``, ``"matrices"`` or ``"streamed"``
    memory_budget: float = DEFAULT_BUDGET  # bytes
    shard: Shard | None = None  # processes that share the kernels, if there are several

    def __post_init__(self) -> None:
        checks.sweeps(self.n_iters, self.tol)
        checks.one_of("gradient", self.gradient, GRADIENTS)
        checks.one_of("marginals", self.marginals, ("uniform", "target", "classes"))
        checks.one_of("memory", self.memory, MEMORY_MODES)
        checks.positive_number("memory_budget", self.memory_budget)

    def imposed(self, target: Tensor, sizes: Sequence[int]) -> Tensor:
        """The marginals to impose, of all axes in one vector, where the target has these."""
        return uniform(sizes, target) if self.marginals == "uniform" else target

    def __str__(self) -> str:
        return (
            f"n_iters={self.n_iters}, gradient={self.gradient!r}, marginals={self.marginals!r}, "
            f"memory={self.memory!r}"
        )


class Problem(Protocol):
    """What is to be coupled: similarities, times a factor, and a cost made of them."""

    def sizes(self, shape: tuple[int, int]) -> tuple[int, ...]:
        """Lengths of the axes for N×M similarities."""

    def couplings(self, source: Similarities, factor: float, how: Sweeps) -> Iterator[Coupling]:
        """Couplings to try, the fastest first, the last one of which should never give up."""

    def in_logarithms(self, source: Similarities, factor: float | Tensor, how: Sweeps) -> Coupling:
        """The one that never gives up, and is never asked: nothing is read from its device."""


def solve(
    problem: Problem, source: Similarities, factor: float | Tensor, marginals: Tensor, how: Sweeps
) -> Solution:
    """The answer of the first coupling that can be trusted, or of the one that always can."""
    sizes = problem.sizes(source.shape)
    couplings: Iterable[Coupling]
    if on_host(source.like):
        couplings = problem.couplings(source, float(factor), how)
    else:
        couplings = [problem.in_logarithms(source, factor, how)]
    for coupling in couplings:
        masses = Masses(marginals, sizes, coupling.dtype)
        solution = coupling.solve(masses, how.n_iters, how.tol)
        if solution is not None:
            return solution
        coupling.release()
    raise AssertionError(f"{problem} has no coupling that always answers")


@dataclass(frozen=True)
class Pairs:
    """Pairs with kernel ``exp(factor · s)``; within one set i ≠ j (mathematics §5)."""

    within: bool

    def sizes(self, shape: tuple[int, int]) -> tuple[int, ...]:
        """Rows and columns."""
        return shape

    def couplings(self, source: Similarities, factor: float, how: Sweeps) -> Iterator[Coupling]:
        """By scaling, then by logarithms."""
        shard = shared(source, how)
        storage = _storage(source, self.within, how, shard, matrices=1)
        for kernels in _kernels(source, [factor], self.within, storage, shard):
            small = isinstance(kernels, native.NativeKernels)
            yield native.NativePair(kernels) if small else ScaledPair(kernels)
        yield LogPair(source, factor, within=self.within, storage=storage, shard=shard)

    def in_logarithms(self, source: Similarities, factor: float | Tensor, how: Sweeps) -> Coupling:
        """By logarithms."""
        shard = shared(source, how)
        if shard is None and _fits(source, how, matrices=6):
            return MatrixPair(source.scaled(factor).matrix(), within=self.within)
        storage = _storage(source, self.within, how, shard, matrices=1)
        settings: dict[str, Any] = {"storage": storage, "shard": shard, "digits": source.like.dtype}
        return LogPair(source.scaled(factor), 1.0, within=self.within, **settings)


@dataclass(frozen=True)
class _Triplets:
    """Triplets of an anchor i and two references j ≠ k; within one set all three distinct."""

    within: bool

    def sizes(self, shape: tuple[int, int]) -> tuple[int, ...]:
        """Anchors, positives, negatives."""
        return (*shape, shape[1])

    def careful(self, source: Similarities, factor: Any) -> LogDomainTriplet:
        """In logarithms, which are right for any sharpness."""
        raise NotImplementedError

    def in_logarithms(self, source: Similarities, factor: float | Tensor, how: Sweeps) -> Coupling:
        """The same; every process for itself."""
        return self.careful(source, factor)


@dataclass(frozen=True)
class LinearTriplets(_Triplets):
    """``C_ijk = −(s_ij − s_ik)/τ``; the factor is c = 1/(τε) (mathematics §2)."""

    def couplings(self, source: Similarities, factor: float, how: Sweeps) -> Iterator[Coupling]:
        """By scaling, then by logarithms."""
        shard = shared(source, how)
        storage = _storage(source, self.within, how, shard, matrices=2)
        kinds = _kernels(source, [factor, -factor], self.within, storage, shard)
        for kernels in kinds:
            lost = CANCELLATION if kernels.like.dtype == source.like.dtype else WIDE_CANCELLATION
            small = isinstance(kernels, native.NativeKernels)
            scaled = native.NativeTriplet if small else ScaledTriplet
            yield scaled(kernels, within=self.within, cancellation=lost)
        yield LogLinearTriplet(source, factor, within=self.within, storage=storage, shard=shard)

    def in_logarithms(self, source: Similarities, factor: float | Tensor, how: Sweeps) -> Coupling:
        """By logarithms."""
        shard = shared(source, how)
        if shard is None and _fits(source, how, matrices=12):
            scores = source.scaled(factor).matrix()
            return LogTriplet(scores, LinearTerms(), within=self.within)
        storage = _storage(source, self.within, how, shard, matrices=2)
        settings: dict[str, Any] = {"storage": storage, "shard": shard, "digits": source.like.dtype}
        return LogLinearTriplet(source.scaled(factor), 1.0, within=self.within, **settings)

    def careful(self, source: Similarities, factor: float) -> LogDomainTriplet:
        """In logarithms, which are right for any sharpness."""
        return LogTriplet(source.widened().matrix() * factor, LinearTerms(), within=self.within)


@dataclass(frozen=True)
class BothWays:
    """Linear triplets across two sets, both ways, of samples of the first and then the second."""

    first: int  # how many samples the first set has

    def sizes(self, shape: tuple[int, int]) -> tuple[int, ...]:
        """Anchors, positives, negatives: all samples are all of them."""
        return (shape[0],) * 3

    def couplings(self, source: Similarities, factor: float, how: Sweeps) -> Iterator[Coupling]:
        """By scaling both at once, then each by logarithms."""
        assert isinstance(source, Products)
        ahead, behind = source.anchors[: self.first], source.anchors[self.first :]
        there = Products(ahead, behind)
        shard = shared(there, how)
        entries = 2 * there.shape[0] * there.shape[1] / (shard.size if shard else 1)
        budget, number = (how.memory, how.memory_budget), entries / source.shape[0] ** 2
        storage = choose_storage(*budget, source.shape, source.like, matrices=number)
        for digits in _digits(source):
            assert isinstance(digits, Products)
            kernels = SymmetricKernels(digits, [factor, -factor], storage, shard, self.first)
            lost = CANCELLATION if digits is source else WIDE_CANCELLATION
            yield BothTriplet(kernels, self.first, lost)
        logs: dict[str, Any] = {"within": False, "storage": storage}
        back = None if shard is None else shard.mirrored()
        yield InTurn(
            LogLinearTriplet(there, factor, **logs, shard=shard),
            LogLinearTriplet(there.mirrored(), factor, **logs, shard=back),
            self.first,
        )

    def in_logarithms(self, source: Similarities, factor: float | Tensor, how: Sweeps) -> Coupling:
        """Not where a device would be asked: there each way is a loss of its own."""
        raise NotImplementedError

    @staticmethod
    def joined(there: Sequence[Tensor], back: Sequence[Tensor]) -> Tensor:
        """Vectors of all axes of both ways in one."""
        return torch.cat(both_ways(there, back))


def goes_both_ways(anchors: Tensor, references: Tensor) -> bool:
    """Whether two sets are large enough for ``BothWays``, and there is compiled code for it."""
    return compiled() and on_host(anchors) and len(anchors) * len(references) > LARGEST


@dataclass(frozen=True)
class LogSigmoidTriplets(_Triplets):
    """``C_ijk = log(1 + e^{−(s_ij − s_ik)/τ})``; the factor is 1/τ (mathematics §3)."""

    epsilon: float  # ε
    tolerance: float  # relative error of the kernel, from which its quadrature is chosen
    # What no score may exceed in size, where a device would have to be asked for what they do.
    reach: float | None = None

    def couplings(self, source: Similarities, factor: float, how: Sweeps) -> Iterator[Coupling]:
        """By scaling, in float32, in float64 and with what is excluded apart; by logarithms."""
        shard = self.shard(source.shape, how)
        storage = _storage(source, self.within, how, shard, matrices=1)
        rule = rule_of(1 / self.epsilon, self.tolerance)
        settings: dict[str, Any] = {"within": self.within, "storage": storage}
        kind = NativeTermKernels if _in_c(source) else TermKernels
        for digits in _digits(source):
            dtype = digits.like.dtype
            blocks = Blocks.of(rule, self.tolerance, dtype, source.shape[1])
            if blocks is not None:
                kernels = kind(digits, factor, rule, blocks, **settings, shard=shard)
                yield LogSigmoidTriplet(kernels, within=self.within)
                wide = dtype == wide_dtype(source.like.device)
                if wide and isinstance(kernels, NativeTermKernels):
                    if shard is not None:  # every process for itself
                        kernels = NativeTermKernels(digits, factor, rule, blocks, **settings)
                    yield ApartTriplet(kernels, *self._terms(source, factor))
        yield self.careful(source, factor)

    def shard(self, shape: tuple[int, int], how: Sweeps) -> Shard | None:
        """The processes that share it, each with its own anchors."""
        return _shard(shape, how, LARGEST // _DEAR)

    def _terms(
        self, source: Similarities, factor: float | Tensor
    ) -> tuple[Tensor, LogSigmoidTerms]:
        """The scores, and terms for all of them."""
        scores = source.scaled(factor).matrix()
        if self.reach is not None:
            wide = scores.to(wide_dtype(scores.device))
            terms = terms_on_device(1 / self.epsilon, wide, self.reach, self.tolerance)
        else:
            lowest, highest = (float(end) for end in torch.aminmax(scores))
            terms = log_sigmoid_terms(1 / self.epsilon, lowest, highest, self.tolerance)
        return scores, terms

    def careful(self, source: Similarities, factor: float | Tensor) -> LogDomainTriplet:
        """In logarithms, which are right for any sharpness."""
        scores, terms = self._terms(source, factor)
        # Of few references all pairs are cheaper than all terms, and exact.
        if source.shape[1] <= 4 * len(terms.nodes) and anchor_bytes(scores) <= _ANCHORS:
            return AnchorTriplet(
                scores, log_sigmoid, self.epsilon, within=self.within, memory_budget=_ANCHORS
            )
        return LogTriplet(scores, terms, within=self.within)

    def costs(
        self,
        anchors: Tensor,
        references: Tensor,
        factor: float | Tensor,
        weights: Callable[[slice], tuple[Tensor, Tensor]],
        own: slice,
    ) -> Iterator[tuple[Tensor, Patch]]:
        """Sums of costs over the pairs of each anchor, with their gradient, a tile at a time.

        Args:
            anchors: Shape (N, d).
            references: Shape (M, d).
            factor: 1/τ.
            weights: Of the positives and of the negatives of some anchors, in the wide dtype.
            own: Which anchors.
        """
        splits, source = splits_of(self.epsilon, self.tolerance), Products(anchors, references)
        spread = None if self.reach is None else 2 * self.reach
        entries = _COSTS if self.reach is None else 32 * CACHED
        blocks = row_blocks(own.stop - own.start, source.shape[1], entries)
        buffer = source.like.new_empty(blocks[0].stop if blocks else 0, source.shape[1])
        for block in blocks:
            rows = slice(own.start + block.start, own.start + block.stop)
            positives, negatives = weights(rows)
            tile = source.tile(rows, buffer[: rows.stop - rows.start])
            scores = tile.to(positives.dtype, copy=True).mul_(factor)
            sums, slopes = pair_costs(scores, positives, negatives, splits, spread)
            yield sums, Patch(rows, slopes)


@dataclass(frozen=True)
class HingeTriplets(_Triplets):
    """``C_ijk = ψ((s_ij − s_ik)/τ)``, ψ a hinge; the factor is c = 1/(τε) (mathematics §9)."""

    hinge: Hinge  # ψ/ε as a function of t/ε

    def couplings(self, source: Similarities, factor: float, how: Sweeps) -> Iterator[Coupling]:
        """By scaling, then by logarithms."""
        # Scores, three places of two bytes, a gradient.
        storage, shard = IN_MATRICES, _shard(source.shape, how, LARGEST // _DEAR)
        if not isinstance(source, Matrix):
            budget, number = (how.memory, how.memory_budget), 3.5 / (shard.size if shard else 1)
            storage = choose_storage(*budget, source.shape, source.like, matrices=number)
        if _in_c(source) and source.shape[1] <= COLUMNS:
            kernel = source, factor, self.hinge, self.within
            for dtype in dict.fromkeys((source.like.dtype, torch.float64)):
                yield NativeHinge(*kernel, storage=storage, dtype=dtype, shard=shard)
        yield self.careful(source, factor, storage.tile_entries, shard)

    def in_logarithms(self, source: Similarities, factor: float | Tensor, how: Sweeps) -> Coupling:
        """By logarithms."""
        shard = _shard(source.shape, how, LARGEST // _DEAR)
        return self.careful(source.scaled(factor), 1.0, 8 * CACHED, shard)

    def careful(
        self, source: Similarities, factor: float, entries: int = CACHED, shard: Shard | None = None
    ) -> HingeTriplet:
        """In logarithms, which are right for any sharpness."""
        kernel = source.widened(), factor, self.hinge, self.within
        return HingeTriplet(*kernel, tile_entries=entries, shard=shard)


@dataclass(frozen=True)
class ShapedTriplets(_Triplets):
    """``C_ijk = ψ((s_ij − s_ik)/τ)`` for any ψ; the factor is 1/τ (mathematics §3)."""

    epsilon: float  # ε
    psi: Shaping  # ψ
    memory_budget: float  # bytes for the costs

    def couplings(self, source: Similarities, factor: float, how: Sweeps) -> Iterator[Coupling]:
        """Exact, over a few anchors at a time."""
        yield self.careful(source, factor)

    def careful(self, source: Similarities, factor: float | Tensor) -> LogDomainTriplet:
        """The same."""
        scores = source.scaled(factor).matrix()
        return AnchorTriplet(
            scores, self.psi, self.epsilon, within=self.within, memory_budget=self.memory_budget
        )


def shared(source: Similarities, how: Sweeps) -> Shard | None:
    """The processes that share a coupling; of a small one each does all, and waits for nobody."""
    return _shard(source.shape, how, LARGEST) if isinstance(source, Products) else None


def _shard(shape: tuple[int, int], how: Sweeps, smallest: int) -> Shard | None:
    return how.shard if shape[0] * shape[1] > smallest else None


def _fits(source: Similarities, how: Sweeps, *, matrices: int) -> bool:
    """Whether an accelerator may have so many N×M matrices, and does all with whole ones."""
    if how.memory != "auto" or isinstance(source, Matrix):
        return how.memory != "streamed"
    size = wide_dtype(source.like.device).itemsize
    return matrices * source.shape[0] * source.shape[1] * size <= how.memory_budget


def _storage(
    source: Similarities, within: bool, how: Sweeps, shard: Shard | None = None, *, matrices: int
) -> Storage:
    """Whether so many N×M matrices, or halves of them, are stored or streamed."""
    if isinstance(source, Matrix):  # not worth streaming what is there
        return IN_MATRICES
    needed = matrices / 2 if _can_be_halved(source, within) else matrices
    if shard is not None:
        needed /= shard.size
    return choose_storage(how.memory, how.memory_budget, source.shape, source.like, matrices=needed)


def _kernels(
    source: Similarities,
    factors: Sequence[float],
    within: bool,
    storage: Storage,
    shard: Shard | None = None,
) -> Iterator[Kernels]:
    """``exp(factor · s)`` for each factor, in the source's digits and then in more."""
    n, m = source.shape
    for digits in _digits(source):
        if _in_c(source) and n * m <= LARGEST and not storage.streamed:
            yield native.NativeKernels(digits, factors, within=within)
        elif _can_be_halved(digits, within):
            yield SymmetricKernels(digits, factors, storage, shard)
        else:
            yield LinearKernels(digits, factors, within=within, storage=storage, shard=shard)


def _can_be_halved(source: Similarities, within: bool) -> TypeGuard[Products]:
    """Whether they are those of one set with itself, and there is compiled code for halves."""
    one_set = isinstance(source, Products) and source.anchors is source.references
    return within and one_set and _in_c(source)


def _in_c(source: Similarities) -> bool:
    """Whether there is compiled code for them where they are."""
    return compiled() and on_host(source.like)


def _digits(source: Similarities) -> Iterator[Similarities]:
    """The similarities as they are, then with more digits if there are more."""
    yield source
    if source.like.dtype != wide_dtype(source.like.device):
        yield source.widened()
