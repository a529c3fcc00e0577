"""One Sinkhorn loop and three gradients, for every form.

A sweep sets each potential in turn, u_k = log p_k − log Σ_others K exp(Σ other potentials). Right
after an update the plan has that marginal, so the derivatives of the log-sum are the plan's
conditional probabilities: everything that a gradient needs is ``form.push`` (mathematics §4).

Sweeps are done at once by a fast run where there is one (scaling.py), and by rows (``form.sweep``)
where a fast sweep would lose digits. Both are segments of a run: they have the potentials after
them and an adjoint.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tricouple import checks
from tricouple.numeric import divide_or_zero, on_host
from tricouple.ot.forms import Form, Term
from tricouple.ot.rows import Vectors

DEFAULT_BUDGET = 2**31  # bytes of memory

# Above this marginal error (L1) a plan is not the one that the implicit gradient is about.
_CONVERGED = 1e-3

_AT_ONCE = 64  # sweeps of a fast run that may end early

# Steps of conjugate gradients on a device, which is not asked how far it is.
_STEPS = 100


@dataclass(frozen=True)
class Settings:
    """How a plan is solved and differentiated."""

    n_iters: int  # Sinkhorn sweeps, at most
    tol: float | None = None  # stop sweeping when the marginal error (L1) is below this
    gradient: str = "unrolled"  # or "implicit" or "envelope"

    def __post_init__(self) -> None:
        checks.sweeps(self.n_iters, self.tol)
        checks.one_of("gradient", self.gradient, GRADIENTS)


class Watched(NamedTuple):
    """How a plan was solved."""

    n_iters: int
    marginal_error: float  # L1, of the worst axis


watched: ContextVar[list[Watched] | None] = ContextVar("watched", default=None)
"""A list to which every plan solved in this context is added (``diagnostics``)."""


class Forces(Protocol):
    """Where parts of ∂L/∂s go (losses/coupled.py)."""

    def matrix(self) -> Tensor | None:
        """The N×M matrix that ``push`` adds to; None where terms are kept instead."""

    def keep(self, term: Term) -> None:
        """Remember a term, where there is no matrix."""


class Segment(Protocol):
    """Some sweeps that were done."""

    @property
    def potentials(self) -> Vectors:
        """After them."""

    @property
    def number(self) -> int | Tensor:
        """How many they are."""

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """Cotangents of the potentials before them; the score gradient goes to ``forces``."""


class FastRun(Protocol):
    """Sweeps of a form by scaling, as many as keep their digits."""

    def sweeps(
        self, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
    ) -> tuple[Segment | None, bool]:
        """At most so many; and whether no more are needed.

        Args:
            masses: Imposed marginals.
            start: Potentials before the first sweep.
            most: How many sweeps, at most.
            tol: Stop when the marginal error (L1) is below this.
            later: Whether there were sweeps before.
        """


@dataclass
class Sweep:
    """A sweep done by rows."""

    form: Form
    masses: Vectors
    before: Vectors
    potentials: Vectors  # after it
    later: bool  # whether there was a sweep before
    # On a device: whether the run had ended before, so that this sweep does not count.
    late: Tensor | None = None
    number: int | Tensor = 1

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """Walk its updates backwards (mathematics §4, unrolled)."""
        gradients, axes = list(cotangents), range(len(self.masses))
        for axis in reversed(axes):
            # The update overwrote this potential: nothing flows to its old value.
            weights = divide_or_zero(-gradients[axis], self.masses[axis])
            if self.late is not None:
                weights = torch.where(self.late, 0.0, weights)
            gradients[axis] = torch.zeros_like(weights)
            state = self.potentials[: axis + 1] + self.before[axis + 1 :]
            term = Term(state, [weights if k == axis else None for k in axes])
            into = forces.matrix()
            if into is None:
                forces.keep(term)
                if axis == 0 and not self.later:
                    break  # nothing depends on the start
            for other, pushed in enumerate(self.form.push(*term, into)):
                if other != axis:
                    gradients[other] = gradients[other] + pushed
        if self.late is None:
            return gradients
        pairs = zip(cotangents, gradients, strict=True)
        return [torch.where(self.late, before, after) for before, after in pairs]


@dataclass
class Run:
    """Sweeps that were done, in segments."""

    form: Form
    masses: Vectors  # imposed marginals, one vector per axis
    potentials: Vectors
    segments: list[Segment] = field(default_factory=list)

    @property
    def n_iters(self) -> int | Tensor:
        """How many sweeps were done."""
        return sum(segment.number for segment in self.segments)

    def term(self, axis: int, weights: Tensor) -> Term:
        """Weights on one axis."""
        axes = range(len(self.masses))
        return Term(self.potentials, [weights if k == axis else None for k in axes])

    def marginals(self) -> Vectors:
        """The plan's own: 1 on axis 0 gives all others, 1 on axis 1 gives the first."""
        first, second = (self.term(axis, torch.ones_like(self.masses[axis])) for axis in (0, 1))
        others = self.form.push(*first)
        return [self.form.push(*second)[0], *others[1:]]

    def marginal_error(self) -> Tensor:
        """The largest L1 distance between the plan's marginals and those imposed on it."""
        pairs = zip(self.marginals(), self.masses, strict=True)
        errors = [(found - mass).abs().sum() for found, mass in pairs]
        errors[0] = self.total(errors[0])
        lost = torch.isnan(torch.cat(self.potentials)).any()  # of embeddings that hold NaN
        return torch.where(lost, torch.nan, torch.stack(errors).amax())

    def total(self, value: Tensor) -> Tensor:
        """The sum over processes of what each has of its own rows."""
        group = self.form.scores.group
        return value if group is None else group.sum_(value.clone())


def solve(
    form: Form,
    masses: Vectors,
    n_iters: int,
    tol: float | None = None,
    fast: FastRun | None = None,
) -> Run:
    """Sweep until the marginals that can be off are within ``tol`` (L1).

    Args:
        form: The kernel.
        masses: Imposed marginals.
        n_iters: Sweeps, at most.
        tol: Tolerance; None for all sweeps.
        fast: The fast run of the form, if it has one.
    """
    logs = [mass.log() for mass in masses]
    run = Run(form, masses, [torch.zeros_like(log) for log in logs])
    host, done, late = on_host(masses[0]), 0, None
    while done < n_iters:
        if fast is not None:
            # With a tolerance some sweeps at a time: there is no memory for needless ones.
            most = n_iters - done if tol is None else min(_AT_ONCE, n_iters - done)
            some, ended = fast.sweeps(masses, run.potentials, most, tol, done > 0)
            swept = 0
            if some is not None:
                run.segments.append(some)
                swept = int(some.number) if host else n_iters
                run.potentials, done = some.potentials, done + swept
            if ended and swept != most:
                break
            if ended:
                continue
        after, error = form.sweep(run.potentials, logs, watch=tol is not None and done > 0)
        if error is not None and tol is not None:
            if host and float(error) <= tol and float(_second_error(run)) <= tol:
                break  # the sweep was not needed
            if not host:  # no look: sweeps after the end do not count
                ended_here = (error <= tol) & (_second_error(run) <= tol)
                late = ended_here if late is None else late | ended_here
                pairs = zip(run.potentials, after, strict=True)
                after = [torch.where(late, old, new) for old, new in pairs]
        number = 1 if late is None else 1 - late.long()
        segment = Sweep(form, masses, run.potentials, after, done > 0, late, number)
        run.segments.append(segment)
        run.potentials, done = after, done + 1
    seen = watched.get()
    if seen is not None:
        seen.append(Watched(int(run.n_iters), float(run.marginal_error())))
    return run


def _second_error(run: Run) -> Tensor:
    """L1 error of the second marginal of triplets; the last axis is right after every sweep."""
    if len(run.masses) == 2:
        return run.masses[0].new_zeros(())
    pushed = run.form.push(*run.term(0, torch.ones_like(run.masses[0])))
    return (pushed[1] - run.masses[1]).abs().sum()


def unrolled(run: Run, cotangents: Vectors, forces: Forces) -> None:
    """The exact gradient of the sweeps that were done: their adjoints, the last first."""
    for segment in reversed(run.segments):
        cotangents = segment.adjoint(cotangents, forces)


def envelope(run: Run, cotangents: Vectors, forces: Forces) -> None:
    """Danskin's rule, ∂g/∂C = (P̃ − P)/ε (mathematics §4).

    Where the cotangents are the plan's own marginals times their total, the implicit system has the
    solution w = (total, 0, …).
    """
    total = run.total(cotangents[0].sum())
    _add(forces, run, run.term(0, -total * torch.ones_like(cotangents[0])))


def implicit(run: Run, cotangents: Vectors, forces: Forces) -> None:
    """Exact at convergence: J w = cotangents, then minus that of Σ w · marginals (§4)."""
    error = run.marginal_error()
    if on_host(error) and float(error) > _CONVERGED:
        warnings.warn(
            f'gradient="implicit" is that of a converged plan, but the marginals of this one are '
            f"{float(error):.2g} off: use more n_iters (with a tol), a larger epsilon, or "
            'gradient="unrolled"',
            stacklevel=2,
        )
    weights = _conjugate_gradients(run, cotangents)
    _add(forces, run, Term(run.potentials, [-part for part in weights]))


GRADIENTS: dict[str, Callable[[Run, Vectors, Forces], None]] = {
    "unrolled": unrolled,
    "implicit": implicit,
    "envelope": envelope,
}


def _add(forces: Forces, run: Run, term: Term) -> None:
    into = forces.matrix()
    if into is None:
        forces.keep(term)
    else:
        run.form.push(*term, into)


def _conjugate_gradients(run: Run, right: Sequence[Tensor]) -> list[Tensor]:
    """J w = right, with a diagonal preconditioner.

    J = diag(marginals) + pair marginals is positive semi-definite. Its null space (a constant moved
    from one axis to another) is kept out of every residual, so that rounding cannot grow along it.
    A sharp plan that is not converged may have fallen into parts that no mass connects: then there
    is no solution, and the iterate with the smallest residual is the answer.
    """
    sizes = [len(part) for part in right]
    diagonal = torch.cat(run.marginals())
    host, first = on_host(diagonal), sizes[0]

    def totals(flat: Tensor) -> Tensor:
        sums = torch.stack([part.sum() for part in flat.split(sizes)])
        return torch.cat([run.total(sums[:1]), sums[1:]])

    def inner(left: Tensor, other: Tensor) -> Tensor:
        own = run.total(left[:first] @ other[:first])
        return own + left[first:] @ other[first:]

    def apply(flat: Tensor) -> Tensor:
        """J w: diag p on the diagonal, pair marginals off it."""
        pushed = run.form.push(run.potentials, list(flat.split(sizes)))
        return diagonal * flat + torch.cat(pushed)

    def consistent(flat: Tensor) -> Tensor:
        """All axes must receive the same total."""
        found = totals(flat)
        excess = ((found - found.mean()) / masses).split(1)
        moved = zip(diagonal.split(sizes), excess, strict=True)
        return flat - torch.cat([part * amount for part, amount in moved])

    masses = totals(diagonal)
    residual = consistent(torch.cat(list(right)))
    scaled = divide_or_zero(residual, diagonal)
    solution = best = torch.zeros_like(residual)
    direction, energy = scaled, inner(residual, scaled)
    smallest, rounding = energy, torch.finfo(residual.dtype).eps
    goal, ended = energy * rounding**2, torch.zeros_like(energy, dtype=torch.bool)
    # The same number on all processes, whichever rows they have.
    size = 2 * int(run.total(residual.new_tensor(float(first)))) + 4 * sizes[1] if host else 0
    for _ in range(size + _STEPS):
        image = apply(direction)
        curvature = inner(direction, image)
        # At the end, or in the null space but for rounding.
        flat = curvature <= 100 * rounding * inner(direction, diagonal * direction)
        ended = ended | (energy <= goal) | flat
        if host and bool(ended):
            break
        step = energy / curvature
        solution = solution + step * direction
        residual = consistent(residual - step * image)
        scaled = divide_or_zero(residual, diagonal)
        previous, energy = energy, inner(residual, scaled)
        better = (energy < smallest) & ~ended
        smallest, best = torch.where(better, energy, smallest), torch.where(better, solution, best)
        direction = scaled + (energy / previous) * direction
    return list(best.split(sizes))
