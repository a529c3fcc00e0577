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
from tricouple.numeric import final, full_precision, never_compiled, wide_dtype
from tricouple.ot import native, solver
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
    total = Sum(batch, how, wanted, both)
    total.add(parts(batch), 0.5 if both else 1.0)
    if not both:
        return total.finish()
    back = batch.mirrored()
    if batch.gathered is None:
        total.add(parts(back), 0.5, back=True)
        return total.finish()
    # Each process has the rows of its own anchors, and then those of its own references.
    value, (to_anchors, to_references), slope = total.finish()
    del total
    there = Sum(back, how, wanted, both)
    there.add(parts(back), 0.5)
    more, (second, first), steeper = there.finish()
    assert to_references is not None
    assert first is not None
    return value + more, (to_anchors + first, to_references + second), slope + steeper


class Sum:
    """Parts of a loss that share their scores: their values and what is known of ∂L/∂s."""

    def __init__(self, batch: Batch, how: Sweeps, wanted: bool, both: bool = False) -> None:
        self.batch, self.how, self.wanted, self.both = batch, how, wanted, both
        self.scores = scores = batch.scores()
        wide = wide_dtype(scores.anchors.device)
        self.value = torch.zeros((), dtype=wide, device=scores.anchors.device)
        sides = scores.anchors, scores.references
        self.to = [torch.zeros_like(x, dtype=scores.dtype) for x in sides if x is not None]
        self.stored = True
        self.kernels: dict[tuple[float, bool], Kernel | None] = {}  # by c and direction
        self.forces = {back: _Forces(scores, back) for back in (False, True)}
        self.halves: dict[bool, tuple[Sharpness, Tensor]] = {}
        self.later: list[Callable[[], Tensor]] = []  # values that are complete with the tiles

    def add(self, parts: Sequence[Part], weight: float, *, back: bool = False) -> None:
        """Add parts of one direction."""
        if not back:
            self._choose_storage(parts)
        for part in parts:
            self._add(part, weight, back)

    def _add(self, part: Part, weight: float, back: bool) -> None:
        """Solve a plan; leave its gradient with a kernel, in a matrix, or as tiles to come."""
        rows, first = self.batch.rows, self.batch.counts_columns
        if part.linear is not None:
            self._linear(part.linear, weight * part.sharpness.value, back)
        if first:
            self.value = self.value - weight * part.entropy
        target = [part.target[0][rows], *part.target[1:]]
        if part.form is None:
            self.halves[back] = part.sharpness, weight * target[0]
            return
        forces = self.forces[back]
        form: Form = part.form(forces.scores)
        if part.weights is not None:
            self._costs(form, part.weights, weight, forces)
        fast = self._fast(form, part, back) if self.batch.fast else None
        imposed = [part.imposed[0][rows], *part.imposed[1:]]
        run = solver.solve(form, imposed, self.how.n_iters, self.how.tol, fast)
        cotangents = [-weight * mass for mass in target]
        for axis, (cotangent, potential) in enumerate(zip(cotangents, run.potentials, strict=True)):
            if axis == 0 or first:
                inside = torch.where(cotangent == 0, 0.0, cotangent * potential)
                self.value = self.value + inside.sum()
        if not self.wanted:
            return
        solver.differentiate(run, self.how.gradient, cotangents, forces)
        forces.gather_terms(form)

    def _fast(self, form: Form, part: Part, back: bool) -> Any:
        """The fast run of a form; linear ones of one sharpness share a kernel."""
        if not isinstance(form, Linear):
            return form.fast() if hasattr(form, "fast") else None
        c = part.sharpness
        if (c.most, False) not in self.kernels:
            self.kernels[c.most, False] = Kernel.of(self.scores, *c, stored=self.stored)
        there = self.kernels[c.most, False]
        if there is not None:
            there.wanted = self.wanted
        if back and (c.most, True) not in self.kernels:
            self.kernels[c.most, True] = None if there is None else there.transposed()
        kernel = self.kernels[c.most, back]
        return None if kernel is None else Scaling(kernel, form)

    def _linear(self, target: PairTarget, factor: float | Tensor, back: bool) -> None:
        """−c ⟨P̃, s⟩ from products of P̃ with the embeddings, O(N·d); added up in float64.

        It nearly cancels against the potentials.
        """
        scores, wide = self.scores, self.value.dtype
        if self.batch.gathered is not None:
            target = target.of_rows(self.batch.rows)
        if scores.references is None:
            entries = target.dense()
            self.value = self.value - (entries * scores.anchors.to(wide)).sum() * factor
            self.to[0] -= (entries * factor).to(self.to[0].dtype)
            return
        if scores.symmetric:  # one sum has the gradient of both sides
            moved = target.symmetric_times(scores.anchors)
            self.value = self.value - (scores.anchors * moved).sum(dtype=wide) * (factor / 2)
            self.to[0] -= (moved * factor).to(self.to[0].dtype)
            return
        order = -1 if back else 1
        here, there = [scores.anchors, scores.references][::order]
        moved = target.times(there)
        self.value = self.value - (here * moved).sum(dtype=wide) * factor
        if self.wanted:
            received = target.transposed_times(here)
            for to, found in zip(self.to, [moved, received][::order], strict=True):
                to -= (found * factor).to(to.dtype)

    def _costs(self, form: Any, weights: Any, weight: float, forces: _Forces) -> None:
        """⟨P̃, C⟩/ε with its gradient, tile by tile."""
        total = torch.zeros_like(self.value)
        rows = self.batch.rows.start

        def of_rows(block: slice) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = weights(slice(rows + block.start, rows + block.stop))
            return found

        def tiles() -> Iterator[tuple[slice, Tensor]]:
            for block, sums, tile in form.costs(of_rows):
                total.add_(sums.sum(), alpha=weight)
                yield block, tile * weight

        if self.wanted:
            forces.take(tiles())
        else:
            for _ in tiles():
                pass
        self.later.append(lambda: total)

    def finish(self) -> tuple[Tensor, tuple[Tensor, Tensor | None], Tensor]:
        """Let all that is known of ∂L/∂s meet the embeddings."""
        scores = self.scores
        if self.halves:
            self._half_sweeps()
        if self.wanted:
            self._pull()
        for later in self.later:
            self.value = self.value + later()
        if scores.group is not None:
            scores.group.sum_(self.value)
        flags = [k.kept for k in self.kernels.values() if k is not None and k.kept is not None]
        if flags:  # on a device: never a number without its digits
            kept = torch.stack(flags).all()
            self.batch.flags.append(~kept)
            self.value = torch.where(kept, self.value, torch.nan)
            self.to = [torch.where(kept, to, torch.nan) for to in self.to]
        learnt = self.wanted and isinstance(self.batch.temperature, Tensor)
        return self.value, self._sides(), self._slope() if learnt else torch.zeros_like(self.value)

    def _half_sweeps(self) -> None:
        """InfoNCE, of one direction or of both."""
        weights = {back: masses for back, (_, masses) in self.halves.items()}
        c = next(c for c, _ in self.halves.values())
        half = HalfSweep(self.scores, *c, weights.get(False), weights.get(True))
        if self.wanted:
            self.forces[False].take(half.gradient())
        else:
            for _ in half.gradient():
                pass
        self.later.append(lambda: half.value)

    def _pull(self) -> None:
        """Two gradient products, or one within one set."""
        scores, ahead, behind = self.scores, self.forces[False], self.forces[True]
        kernels = [k for (_, back), k in self.kernels.items() if k is not None and not back]
        tiles: list[Tiles] = [k.gradient() for k in kernels if any(k.lefts.values())]
        matrix = ahead.joined(behind)
        both = scores.symmetric and not ahead.tiles
        if matrix is not None and both:
            matrix = matrix + matrix.T
        if ahead.tiles and scores.symmetric:
            for kernel in kernels:
                kernel.one_sided = True
        tiles += ahead.tiles
        if tiles or matrix is not None:
            self._add_gradient(scores.pull(_summed(tiles, matrix), both=both))
        if behind.tiles:
            self._add_gradient(scores.transposed.pull(_summed(behind.tiles, None))[::-1])
        if scores.group is not None:
            scores.group.sum_(self.to[1])

    def _add_gradient(self, found: Sequence[Tensor]) -> None:
        for to, part in zip(self.to, found, strict=False):
            to += part

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
        sides = scores.anchors.to(wide), scores.references
        if sides[1] is None:
            return (self.to[0].to(wide) * sides[0]).nan_to_num().sum()
        if scores.symmetric:
            return (sides[0] * (self.to[0] + self.to[1]).to(wide)).sum() / 2
        found = (sides[0] * self.to[0].to(wide)).sum()
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


class _Forces:
    """∂L/∂s beside that of kernels: a matrix if there is room for one, else tiles to come."""

    def __init__(self, scores: Scores, back: bool) -> None:
        self._scores, self._back = scores, back
        self.values: Tensor | None = None
        self.terms: list[Term] = []
        self.tiles: list[Tiles] = []

    @property
    def scores(self) -> Scores:
        """Those of its direction."""
        return self._scores.transposed if self._back else self._scores

    def matrix(self) -> Tensor | None:
        """The N×M matrix that ``push`` adds to."""
        if not self._scores.keep:
            return None
        if self.values is None:
            like, scores = self._scores.anchors, self.scores
            self.values = native.empty_matrix(like, *scores.shape, dtype=scores.dtype).zero_()
        return self.values

    def keep(self, term: Term) -> None:
        """Remember a term, where there is no matrix."""
        self.terms.append(term)

    def gather_terms(self, form: Form) -> None:
        """Turn what was remembered of a form into tiles to come."""
        if self.terms or getattr(form, "kept", None):
            self.tiles.append(form.gradient(self.terms))
            self.terms = []

    def take(self, tiles: Tiles) -> None:
        """Add tiles, now or with all others."""
        matrix = self.matrix()
        if matrix is None:
            self.tiles.append(tiles)
        else:
            for block, tile in tiles:
                matrix[block] += tile

    def joined(self, behind: _Forces) -> Tensor | None:
        """The matrices of both directions as one."""
        if behind.values is None:
            return self.values
        back = behind.values.T
        return back if self.values is None else self.values.add_(back)


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
