"""KL of a target to entropic plans: the value of a loss and its gradient, from one product.

    KL(P̃‖P) = −H(P̃) + ⟨P̃, C⟩/ε − Σ_axes ⟨p̃, potentials⟩   (mathematics §2);

InfoNCE is the same after half a sweep of pairs. A loss is one number, so its gradient is computed
with it: the parts of a loss (plans, directions) share one similarity product, all that they know of
∂L/∂s is added, and that meets the embeddings once. Nothing of size N×N outlives the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import Batch, Sharpness
from tricouple.numeric import final, full_precision, never_compiled
from tricouple.ot import native, rows, solver
from tricouple.ot.forms import Form, Linear, Term
from tricouple.ot.half_sweep import HalfSweep
from tricouple.ot.rows import Vectors
from tricouple.ot.scaling import CACHED, RANGE, Kernel, Scaling
from tricouple.ot.scores import TILE, Scores, Tiles
from tricouple.ot.solver import DEFAULT_BUDGET
from tricouple.relations import PairTarget

MEMORY_MODES = ("auto", "matrices", "streamed")


@dataclass(frozen=True)
class Sweeps(solver.Settings):
    """How the plans of a loss are solved, differentiated and stored."""

    marginals: str = "uniform"  # or "target" or "classes"
    memory: str = "auto"  # or "matrices" or "streamed"
    memory_budget: float = DEFAULT_BUDGET  # bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("marginals", self.marginals, ("uniform", "target", "classes"))
        checks.one_of("memory", self.memory, MEMORY_MODES)
        checks.positive_number("memory_budget", self.memory_budget)

    def imposed(self, target: Sequence[Tensor]) -> Vectors:
        """The marginals to impose, one vector per axis, where the target has these."""
        if self.marginals != "uniform":
            return list(target)
        return [torch.full_like(mass, 1 / max(1, len(mass))) for mass in target]

    def __str__(self) -> str:
        return (
            f"n_iters={self.n_iters}, gradient={self.gradient!r}, marginals={self.marginals!r}, "
            f"memory={self.memory!r}"
        )


_ONE = Sharpness(1.0, 1.0)


@dataclass
class Part:
    """One plan and its target: what a loss is a sum of."""

    target: Sequence[Tensor]  # p̃, the target's marginals, one vector per axis
    entropy: float | Tensor = 0.0  # H(P̃)
    # The kernel of some scores, and the plan's marginals; None for half a sweep of pairs.
    form: Callable[[Scores], Any] | None = None
    imposed: Sequence[Tensor] = ()
    sharpness: Sharpness = _ONE  # c, positive
    linear: PairTarget | None = None  # c Σ_ij linear_ij s_ij is subtracted
    # Of another ψ than the linear one: weights of the positives and of the negatives of some
    # anchors, whose product is P̃, (R, M) each.
    weights: Callable[[slice], tuple[Tensor, Tensor]] | None = None
    matrices: float = 1.0  # N×M matrices that the form stores


Parts = Callable[[Batch], Sequence[Part]]


def loss(batch: Batch, how: Sweeps, parts: Parts, *, both: bool = False) -> Tensor:
    """The sum of some parts, differentiable in the embeddings and in the temperature.

    Args:
        batch: A checked batch.
        how: How plans are solved.
        parts: Gives the parts of the loss of a batch.
        both: The mean of that and of the same with anchors for references.
    """
    learnt = batch.temperature if isinstance(batch.temperature, Tensor) else None
    sides = batch.anchors, batch.references
    value: Tensor = _Loss.apply(*sides, learnt, batch, how, parts, both)  # type: ignore[no-untyped-call]
    return value.to(batch.dtype)


class _Loss(torch.autograd.Function):
    """A loss of unit vectors (or of a given matrix) whose gradient is there with its value."""

    @staticmethod
    @never_compiled
    def forward(
        ctx: Any,
        anchors: Tensor,
        references: Tensor | None,
        temperature: Tensor | None,
        batch: Batch,
        how: Sweeps,
        parts: Parts,
        both: bool,
    ) -> Tensor:
        wanted = any(ctx.needs_input_grad[:3])
        value, to, slope = _evaluate(batch, how, parts, both, wanted)
        if not wanted:
            return value
        to_temperature = None
        if temperature is not None:
            # L depends on τ through s/τ alone.
            found = -slope / temperature.detach().reshape(()).to(slope.dtype)
            to_temperature = found.reshape(temperature.shape).to(temperature.dtype)
        ctx.save_for_backward(*to, to_temperature, anchors, temperature)
        return value

    @staticmethod
    @full_precision
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (outer,) = cotangents
        *gradients, anchors, temperature = ctx.saved_tensors
        causes = [cause for cause in (outer, anchors, temperature) if cause is not None]
        found = [None if part is None else part * outer.to(part.dtype) for part in gradients]
        return *final(found, causes), None, None, None, None


def _evaluate(
    batch: Batch, how: Sweeps, parts: Parts, both: bool, wanted: bool
) -> tuple[Tensor, tuple[Tensor, Tensor | None], Tensor]:
    """The value, the gradients of anchors and references, and the derivative by log(1/τ)."""
    there = Sum(batch, how, wanted, both)
    there.add(parts(batch), 0.5 if both else 1.0)
    if not both:
        return there.finish()
    mirrored = batch.mirrored()
    if batch.gathered is None:
        back = Sum(mirrored, how, wanted, both, there)
        back.add(parts(mirrored), 0.5)
        more, found = back.finish(), there.finish()
    else:  # each process has other rows on the way back
        found = there.finish()
        del there
        back = Sum(mirrored, how, wanted, both)
        back.add(parts(mirrored), 0.5)
        more = back.finish()
    first, second = found[1], more[1][::-1]
    assert first[1] is not None
    assert second[0] is not None
    sides = first[0] + second[0], first[1] + second[1]
    return found[0] + more[0], sides, found[2] + more[2]


class Sum:
    """Parts of a loss that share their scores: their values and what is known of ∂L/∂s.

    The way back of two sets is a sum of its own. It shares the product of the way there: its
    kernels are those transposed, and what they know of the gradient is added there.
    """

    scores: Scores

    def __init__(
        self, batch: Batch, how: Sweeps, wanted: bool, both: bool = False, there: Sum | None = None
    ) -> None:
        self.batch, self.how, self.wanted, self.both, self.there = batch, how, wanted, both, there
        self.scores = scores = batch.scores() if there is None else there.scores.transposed
        self.value = rows.vector(scores, 0).sum()
        sides = scores.anchors, scores.references
        self.to = [torch.zeros_like(x, dtype=scores.dtype) for x in sides if x is not None]
        self.stored = True
        self.kernels: dict[float, Kernel | None] = {}  # by c
        self.half: list[Tensor | None] = [None, None]  # weights of rows and columns
        self.later: list[Callable[[], Tensor]] = []  # values that are complete with the tiles
        self.forces: Tensor | None = None  # ∂L/∂s beside that of kernels, if there is room for it
        self.terms: list[Term] = []  # else terms of it, and
        self.tiles: list[Tiles] = []  # tiles to come

    def add(self, parts: Sequence[Part], weight: float) -> None:
        """Solve the plans; leave their gradients with kernels, in a matrix, or as tiles to come."""
        if self.there is None:
            self._choose_storage(parts)
        for part in parts:
            self._add(part, weight)

    def _add(self, part: Part, weight: float) -> None:
        own, first = self.batch.rows, self.batch.counts_columns
        if part.linear is not None:
            self._linear(part.linear, weight * part.sharpness.value)
        if first:
            self.value = self.value - weight * part.entropy
        target = [part.target[0][own], *part.target[1:]]
        if part.form is None:
            self.sharpness = part.sharpness
            self.half[0] = weight * target[0]
            if self.there is not None:  # one pass over the tiles does both
                self.there.half[1], self.half[0] = self.half[0], None
            return
        form: Form = part.form(self.scores)
        if part.weights is not None:
            self._costs(form, part.weights, weight)
        imposed = [part.imposed[0][own], *part.imposed[1:]]
        fast = self._fast(form, part) if self.batch.fast else None
        run = solver.solve(form, imposed, self.how.n_iters, self.how.tol, fast)
        cotangents = [-weight * mass for mass in target]
        for axis, (cotangent, potential) in enumerate(zip(cotangents, run.potentials, strict=True)):
            if axis == 0 or first:
                inside = torch.where(cotangent == 0, 0.0, cotangent * potential)
                self.value = self.value + inside.sum()
        if not self.wanted:
            return
        solver.differentiate(run, self.how.gradient, cotangents, self)
        if self.terms or getattr(form, "kept", None):
            self.tiles.append(form.gradient(self.terms))
            self.terms = []

    def matrix(self) -> Tensor | None:
        """The N×M matrix of forces that ``push`` adds to; None where there is no room for it."""
        if self.scores.keep and self.forces is None:
            like, dtype = self.scores.anchors, self.scores.dtype
            self.forces = native.empty_matrix(like, *self.scores.shape, dtype=dtype).zero_()
        return self.forces

    def keep(self, term: Term) -> None:
        """Remember a term, where there is no matrix."""
        self.terms.append(term)

    def _fast(self, form: Form, part: Part) -> Any:
        """The fast run of a form; linear ones of one sharpness share a kernel."""
        if not isinstance(form, Linear):
            return form.fast() if hasattr(form, "fast") else None
        c = part.sharpness
        if c.most not in self.kernels:
            if self.there is None:
                kernel = Kernel.of(self.scores, *c, stored=self.stored, wanted=self.wanted)
            else:
                ahead = self.there.kernels[c.most]
                kernel = None if ahead is None else ahead.transposed()
            self.kernels[c.most] = kernel
        kernel = self.kernels[c.most]
        return None if kernel is None else Scaling(kernel, form)

    def _linear(self, target: PairTarget, factor: float | Tensor) -> None:
        """−c ⟨P̃, s⟩ from products of P̃ with the embeddings, O(N·d); added up in float64.

        It nearly cancels against the potentials.
        """
        scores, wide = self.scores, self.value.dtype
        if self.batch.gathered is not None:
            target = target.of_rows(self.batch.rows)
        if scores.references is None:
            here, moved, received = scores.anchors.to(wide), target.dense(), None
        elif scores.symmetric:  # one sum has the gradient of both sides
            here, received = scores.anchors, None
            moved = target.symmetric_times(here)
        else:
            here, moved = scores.anchors, target.times(scores.references)
            received = target.transposed_times(here) if self.wanted else None
        half = 0.5 if scores.symmetric else 1.0
        self.value = self.value - (here * moved).sum(dtype=wide) * (factor * half)
        for to, found in zip(self.to, (moved, received), strict=False):
            if found is not None:
                to -= (found * factor).to(to.dtype)

    def _costs(self, form: Any, weights: Any, weight: float) -> None:
        """⟨P̃, C⟩/ε with its gradient, tile by tile."""
        total = torch.zeros_like(self.value)
        start = self.batch.rows.start

        def of_rows(block: slice) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = weights(slice(start + block.start, start + block.stop))
            return found

        def tiles() -> Iterator[tuple[slice, Tensor]]:
            for block, sums, tile in form.costs(of_rows):
                total.add_(sums.sum(), alpha=weight)
                yield block, tile * weight

        self._take(tiles())
        self.later.append(lambda: total)

    def _take(self, tiles: Tiles) -> None:
        """Tiles of ∂L/∂s: add them to the matrix, or keep them for the end; or only look."""
        matrix = self.matrix() if self.wanted else None
        if self.wanted and matrix is None:
            self.tiles.append(tiles)
            return
        for block, tile in tiles:
            if matrix is not None:
                matrix[block] += tile

    def finish(self) -> tuple[Tensor, tuple[Tensor, Tensor | None], Tensor]:
        """Let all that is known of ∂L/∂s meet the embeddings."""
        if any(weights is not None for weights in self.half):  # InfoNCE
            half = HalfSweep(self.scores, *self.sharpness, *self.half)
            self._take(half.gradient())
            self.later.append(lambda: half.value)
        if self.wanted:
            self._pull()
        for later in self.later:
            self.value = self.value + later()
        if self.scores.group is not None:
            self.scores.group.sum_(self.value)
        flags = [k.kept for k in self.kernels.values() if k is not None and k.kept is not None]
        if flags:  # on a device: never a number without its digits
            kept = torch.stack(flags).all()
            self.batch.flags.append(~kept)
            self.value = torch.where(kept, self.value, torch.nan)
            self.to = [torch.where(kept, to, torch.nan) for to in self.to]
        learnt = self.wanted and isinstance(self.batch.temperature, Tensor)
        return self.value, self._sides(), self._slope() if learnt else torch.zeros_like(self.value)

    def _pull(self) -> None:
        """Two gradient products, or one within one set."""
        scores, matrix, tiles = self.scores, self.forces, list(self.tiles)
        one_product = scores.symmetric and not tiles
        if self.there is None:
            kernels = [k for k in self.kernels.values() if k is not None and any(k.lefts.values())]
            tiles += [kernel.gradient(both=one_product) for kernel in kernels]
        if matrix is not None and one_product:
            matrix = matrix + matrix.T
        if tiles or matrix is not None:
            found = scores.pull(_summed(tiles, matrix), both=one_product)
            for to, part in zip(self.to, found, strict=False):
                to += part
        if scores.group is not None:
            scores.group.sum_(self.to[1])

    def _sides(self) -> tuple[Tensor, Tensor | None]:
        """Gradients of the batch's anchors and references; of several processes, own rows."""
        batch = self.batch
        if batch.references is None:
            return self.to[0], None
        anchors, references = self.to
        if batch.gathered is not None:
            whole = torch.zeros_like(batch.anchors, dtype=anchors.dtype)
            whole[batch.rows] = anchors
            anchors = whole
        if batch.anchors is batch.references:
            return (anchors + references).to(batch.anchors.dtype), None
        return anchors.to(batch.anchors.dtype), references.to(batch.anchors.dtype)

    def _slope(self) -> Tensor:
        """∂L/∂log(1/τ) = Σ_ij s_ij ∂L/∂s_ij, from the gradients of the embeddings."""
        scores, wide = self.scores, self.value.dtype
        anchors, to = scores.anchors.to(wide), self.to[0].to(wide)
        if scores.references is None:
            return (to * anchors).nan_to_num().sum()
        if scores.symmetric:
            return (anchors * (to + self.to[1])).sum() / 2
        found = (anchors * to).sum()
        return found if scores.group is None else scores.group.sum_(found)

    def _choose_storage(self, parts: Sequence[Part]) -> None:
        """Whether kernels are stored, and whether similarities and forces may be as well."""
        scores, how = self.scores, self.how
        if scores.references is None:
            return
        n, m = scores.shape
        least = 8 * m * scores.dtype.itemsize
        if how.memory != "matrices" and how.memory_budget < least:
            raise ValueError(
                f"memory_budget={how.memory_budget:.0f} bytes is too small: tiles of one row of "
                f"{m} references take {least}"
            )
        scores.tile_entries = max(
            m, int(min(TILE, how.memory_budget / (8 * scores.dtype.itemsize)))
        )
        if any(part.form is None for part in parts):  # half a sweep stores nothing
            scores.keep = False
            scores.room = how.memory_budget if how.memory == "auto" else 0.0
            return
        kernels = {part.sharpness.most: part for part in parts}
        number = sum(part.matrices for part in kernels.values()) * (2 if self.both else 1)
        size = n * m * scores.dtype.itemsize
        if any(1.01 * part.sharpness.most > RANGE[scores.dtype] for part in parts):
            number *= 2  # E may be float64
        # Beside matrices: histories and factors of the sweeps, embeddings and tiles.
        width = 60 * how.n_iters * 8 + 10 * scores.anchors.shape[1] * scores.dtype.itemsize
        budget = how.memory_budget - (n + m) / 2 * width - 3 * CACHED * scores.dtype.itemsize
        if how.memory == "streamed":
            self.stored = scores.keep = False
        elif how.memory == "auto":
            self.stored = number * size <= budget
            scores.keep = (number + 2) * size <= budget
            scores.room = 0.0 if self.stored else max(budget, 1.0)
        if self.stored:
            scores.tile_entries = min(scores.tile_entries, CACHED)


def _summed(tiles: Sequence[Tiles], matrix: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Tiles of equal heights, and those of a matrix, as one."""
    if not tiles:
        assert matrix is not None
        yield slice(0, len(matrix)), matrix
        return
    for parts in zip(*tiles, strict=True):
        rows, total = parts[0]
        for _, more in parts[1:]:
            total = total + more
        yield rows, total if matrix is None else total + matrix[rows]
