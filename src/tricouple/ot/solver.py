"""One Sinkhorn loop and three gradients, for every form.

A sweep sets each potential in turn, u_k = log p_k − log Σ_others K exp(Σ other potentials). Right
after an update the plan has that marginal, so the derivatives of the log-sum are the plan's
conditional probabilities: everything that a gradient needs is ``form.push`` (mathematics §4).

Sweeps are done at once by a fast run where there is one (scaling.py), and by rows where that would
lose digits. Both are segments of a run: they have the ``number`` of sweeps, the ``potentials``
after them and an ``adjoint``, which takes cotangents of these to those of the potentials before,
and leaves the score gradient with a kernel or with ``Forces``.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tricouple import checks
from tricouple.numeric import divide_or_zero, on_host
from tricouple.ot.forms import Forces, Form
from tricouple.ot.implicit import implicit_weights
from tricouple.ot.rows import Vectors

DEFAULT_BUDGET = 2**31  # bytes of memory
MEMORY_MODES = ("auto", "matrices", "streamed")

_AT_ONCE = 64  # sweeps of a fast run that may end early


@dataclass(frozen=True)
class Sweeps:
    """How the plans of a loss are solved, differentiated and stored."""

    n_iters: int  # Sinkhorn sweeps, at most
    tol: float | None = None  # stop sweeping when the marginal error (L1) is below this
    gradient: str = "unrolled"  # or "implicit" or "envelope"
    marginals: str = "uniform"  # or "target" or "classes"
    memory: str = "auto"  # or "matrices" or "streamed"
    memory_budget: float = DEFAULT_BUDGET  # bytes

    def __post_init__(self) -> None:
        checks.count("n_iters", self.n_iters)
        if self.tol is not None:
            checks.positive_number("tol", self.tol)
        checks.one_of("gradient", self.gradient, ("unrolled", "implicit", "envelope"))
        checks.one_of("marginals", self.marginals, ("uniform", "target", "classes"))
        checks.one_of("memory", self.memory, MEMORY_MODES)
        checks.positive_number("memory_budget", self.memory_budget)

    def imposed(self, target: Sequence[Tensor]) -> Vectors:
        """The marginals to impose, one vector per axis, where the target has these."""
        if self.marginals != "uniform":
            return list(target)
        return [torch.full_like(mass, 1 / max(1, len(mass))) for mass in target]

    def __str__(self) -> str:
        names = "n_iters", "gradient", "marginals", "memory"
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


watched: ContextVar[list[tuple[int, float]] | None] = ContextVar("watched", default=None)
"""A list to which each plan solved in this context adds its sweeps and its marginal error (L1)."""


@dataclass
class Sweep:
    """A sweep done by rows."""

    form: Form
    masses: Vectors
    before: Vectors
    potentials: Vectors  # after it
    number: int = 1

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """Walk its updates backwards (mathematics §4, unrolled)."""
        gradients, axes = list(cotangents), range(len(self.masses))
        for axis in reversed(axes):
            # The update overwrote this potential: nothing flows to its old value.
            weights = divide_or_zero(-gradients[axis], self.masses[axis])
            gradients[axis] = torch.zeros_like(weights)
            state = self.potentials[: axis + 1] + self.before[axis + 1 :]
            weighted = [weights if k == axis else None for k in axes]
            for other, pushed in enumerate(forces.push(self.form, state, weighted)):
                if other != axis:
                    gradients[other] = gradients[other] + pushed
        return gradients


@dataclass
class Run:
    """Sweeps that were done, in segments."""

    form: Form
    masses: Vectors  # imposed marginals, one vector per axis
    potentials: Vectors
    segments: list[Any] = field(default_factory=list)

    @property
    def n_iters(self) -> int:
        """How many sweeps were done."""
        return sum(segment.number for segment in self.segments)

    def pushed_ones(self, axis: int) -> Vectors:
        """Pair marginals of an axis, summed over it: the marginals of the other axes."""
        ones = torch.ones_like(self.masses[axis])
        weights = [ones if k == axis else None for k in range(len(self.masses))]
        return self.form.push(self.potentials, weights)

    def marginals(self) -> Vectors:
        """The plan's own."""
        return [self.pushed_ones(1)[0], *self.pushed_ones(0)[1:]]

    def marginal_error(self) -> Tensor:
        """The largest L1 distance between the plan's marginals and those imposed on it."""
        pairs = zip(self.marginals(), self.masses, strict=True)
        errors = [(found - mass).abs().sum() for found, mass in pairs]
        errors[0] = self.form.scores.shared(errors[0])
        lost = torch.isnan(torch.cat(self.potentials)).any()  # of embeddings that hold NaN
        return torch.where(lost, torch.nan, torch.stack(errors).amax())


def solve(form: Form, masses: Vectors, how: Sweeps, fast: Any = None) -> Run:
    """Sweep until the marginals that can be off are within ``tol`` (L1); a device is not asked.

    ``fast`` is the fast run of the form, if it has one, such as ``scaling.Scaling``.
    """
    n_iters, tol, done = how.n_iters, how.tol if on_host(masses[0]) else None, 0
    run = Run(form, masses, [torch.zeros_like(mass) for mass in masses])
    while done < n_iters:
        if fast is not None:
            # With a tolerance some sweeps at a time: there is no memory for needless ones.
            most = n_iters - done if tol is None else min(_AT_ONCE, n_iters - done)
            some, ended = fast.sweeps(masses, run.potentials, most, tol, done > 0)
            if some is not None:
                run.segments.append(some)
                run.potentials = some.potentials
                done += some.number
            if ended and (some is None or some.number < most):
                break
            if ended:
                continue
        logs = [mass.log() for mass in masses]
        after, error = form.sweep(run.potentials, logs, watch=tol is not None and done > 0)
        if tol is not None and error is not None and bool(error <= tol):
            if len(masses) == 2:
                break  # the sweep was not needed
            if bool((run.pushed_ones(0)[1] - masses[1]).abs().sum() <= tol):  # 3 is right
                break
        run.segments.append(Sweep(form, masses, run.potentials, after))
        run.potentials, done = after, done + 1
    seen = watched.get()
    if seen is not None:
        seen.append((run.n_iters, float(run.marginal_error())))
    return run


def differentiate(run: Run, rule: str, cotangents: Vectors, forces: Forces) -> None:
    """Add ∂/∂s of Σ cotangents · potentials to the forces (mathematics §4).

    ``"unrolled"`` is exact for the sweeps that were done: their adjoints, the last first. The other
    two are −∂/∂s of Σ w · marginals. ``"implicit"``, exact at convergence, solves
    J w = cotangents. ``"envelope"`` is Danskin's rule, ∂g/∂C = (P̃ − P)/ε: where the cotangents
    are the plan's own marginals times their total, w is (total, 0, …).
    """
    if rule == "unrolled":
        for segment in reversed(run.segments):
            cotangents = segment.adjoint(cotangents, forces)
        return
    weights: list[Tensor | None] = [None for _ in cotangents]
    if rule == "implicit":
        weights[:] = [-part for part in implicit_weights(run, cotangents)]
    else:
        total = run.form.scores.shared(cotangents[0].sum())
        if run.segments and hasattr(run.segments[-1], "envelope"):
            run.segments[-1].envelope(total)
            return
        weights[0] = torch.ones_like(cotangents[0]) * -total
    forces.push(run.form, run.potentials, weights)
