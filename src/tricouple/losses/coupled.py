"""KL of a target to entropic plans: the value of a loss and its gradient, from one product.

    KL(P̃‖P) = −H(P̃) + ⟨P̃, C⟩/ε − Σ_axes ⟨p̃, potentials⟩   (mathematics §2);

InfoNCE is the same after half a sweep of pairs. The gradient is computed with the value: the parts
of a loss (plans, directions) share one similarity product, their ∂L/∂s are added, and the sum is
multiplied by the embeddings once. Nothing of size N×N outlives the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tricouple.batch import Batch, Sharpness, choose_storage
from tricouple.numeric import final, full_precision, never_compiled, wide_dtype
from tricouple.ot import solver
from tricouple.ot.forms import Forces, Form, Linear
from tricouple.ot.half_sweep import HalfSweep
from tricouple.ot.scaling import Kernel, Scaling
from tricouple.ot.scores import Scores, Tiles
from tricouple.ot.solver import Sweeps
from tricouple.relations import PairTarget


@dataclass
class Part:
    """One plan and its target: what a loss is a sum of."""

    target: Sequence[Tensor]  # p̃, the target's marginals, one vector per axis
    sharpness: Sharpness  # c, positive
    entropy: float | Tensor = 0.0  # H(P̃)
    form: Callable[[Scores], Any] | None = None  # the kernel; None for half a sweep of pairs
    linear: PairTarget | None = None  # c Σ_ij linear_ij s_ij is subtracted
    joint: Tensor | None = None  # of half a sweep: groups of anchors that share their log-sum
    # Of another ψ than the linear one: weights of the positives and of the negatives of some
    # anchors, whose product is P̃, (R, M) each.
    weights: Callable[[slice], tuple[Tensor, Tensor]] | None = None
    matrices: float = 1.0  # N×M matrices that the form stores


Parts = Callable[[Batch], Sequence[Part]]


def loss(batch: Batch, how: Sweeps, parts: Parts, *, both: bool = False) -> Tensor:
    """The sum of some parts, differentiable in the embeddings and in the temperature.

    Or, of ``both`` ways, the mean of that and of the same with anchors for references.
    """
    learnt = batch.temperature if isinstance(batch.temperature, Tensor) else None

    def evaluate(wanted: bool) -> tuple[Tensor, Sequence[Tensor | None]]:
        value, to, slope = _evaluate(batch, how, parts, both, wanted)
        return value, (*to, to_temperature(learnt, slope))

    return with_gradient(evaluate, batch.anchors, batch.references, learnt).to(batch.dtype)


def to_temperature(temperature: Tensor | None, slope: Tensor) -> Tensor | None:
    """∂L/∂τ from ∂L/∂log(1/τ), if τ learns."""
    if temperature is None:
        return None
    found = -slope / temperature.detach().reshape(()).to(slope.dtype)
    return found.reshape(temperature.shape).to(temperature.dtype)


Evaluate = Callable[[bool], tuple[Tensor, Sequence[Tensor | None]]]


def with_gradient(evaluate: Evaluate, *leaves: Tensor | None) -> Tensor:
    """A value whose gradient by each leaf is computed with it, if that is wanted."""
    return _Loss.apply(evaluate, *leaves)  # type: ignore[no-any-return, no-untyped-call]


class _Loss(torch.autograd.Function):
    """A loss of unit vectors, or of a given matrix s, and of settings that learn."""

    @staticmethod
    @never_compiled
    def forward(ctx: Any, evaluate: Evaluate, *leaves: Tensor | None) -> Tensor:
        wanted = any(ctx.needs_input_grad)
        value, gradients = evaluate(wanted)
        if wanted:
            ctx.save_for_backward(*gradients, *leaves)
        return value

    @staticmethod
    @full_precision
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (outer,), saved = cotangents, ctx.saved_tensors
        gradients, leaves = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        causes = [cause for cause in (outer, *leaves) if cause is not None]
        found = [None if part is None else part * outer.to(part.dtype) for part in gradients]
        return None, *final(found, causes)


_Found = tuple[Tensor, tuple[Tensor, Tensor | None], Tensor]


def _evaluate(batch: Batch, how: Sweeps, parts: Parts, both: bool, wanted: bool) -> _Found:
    """The value, the gradients of anchors and references, and the derivative by log(1/τ)."""
    if not both:
        return Sum(batch, how, parts(batch), 1.0, wanted).result()
    back, there = batch.mirrored(), Sum(batch, how, parts(batch), 0.5, wanted)
    if batch.gathered is None:
        Sum(back, how, parts(back), 0.5, wanted, there).finish()
        return there.result()
    # Each process has other rows of the second direction.
    value, to, slope = there.result()
    more, to_back, slope_back = Sum(back, how, parts(back), 0.5, wanted).result()
    assert to[1] is not None
    assert to_back[1] is not None
    return value + more, (to[0] + to_back[1], to[1] + to_back[0]), slope + slope_back


@dataclass
class Sum:
    """Parts of a loss that share their scores: their values, and their ∂L/∂s.

    The second direction of two sets has the scores and kernels of the first, ``there``, transposed,
    and adds its value and gradient there.
    """

    batch: Batch
    how: Sweeps
    parts: Sequence[Part]
    weight: float
    wanted: bool  # whether gradients are
    there: Sum | None = None
    scores: Scores = field(init=False)

    def __post_init__(self) -> None:
        ahead = self.there
        self.scores = scores = self.batch.scores() if ahead is None else ahead.scores.transposed
        self.value = scores.anchors.new_zeros((), dtype=wide_dtype(scores.anchors.device))
        self.flags: list[Tensor] = []  # of a device: whether kernels kept their digits
        self.kernels: dict[float, Kernel | None] = {}  # by c
        self.half: list[Tensor | None] = [None, None]  # weights of rows and columns, of InfoNCE
        self.forces = Forces(scores)  # ∂L/∂s beside that of kernels,
        self.tiles: list[Tiles] = []  # and tiles of it, computed in ``finish``
        # Gradients of anchors and references: one tensor within one set.
        sides = [scores.anchors] if scores.symmetric else [scores.anchors, scores.references]
        self.to: list[Tensor] = [] if ahead is None else ahead.to[::-1]
        if ahead is None:
            self.to += [torch.zeros_like(x, dtype=scores.dtype) for x in sides if x is not None]
            self.to *= 1 + scores.symmetric
        if ahead is None and scores.references is not None:
            ways = 1 if self.weight == 1.0 else 2
            kernels = {part.sharpness.most: part.matrices * ways for part in self.parts}
            linear = any(part.linear is not None for part in self.parts)  # E is turned, not s
            scores.users = len(kernels) if linear else ways
            half = any(part.form is None for part in self.parts)  # of a sweep: stores nothing
            choose_storage(scores, self.how, kernels, stores=not half)
        for part in self.parts:
            self._add(part)

    def _add(self, part: Part) -> None:
        """Solve a plan; keep its gradient in a kernel, in a matrix, or as tiles."""
        own, gathered, weight = self.batch.rows, self.batch.gathered, self.weight
        first = gathered is None or gathered.processes.rank == 0  # counts what all have alike
        if first:
            self.value = self.value - weight * part.entropy
        cotangents = [-weight * mass for mass in part.target]
        cotangents[0] = cotangents[0][own]
        if part.form is None:  # one pass over the tiles does both ways
            half, axis = (self.half, 0) if self.there is None else (self.there.half, 1)
            half[axis], self.sharpness = -cotangents[0], part.sharpness
            self.joint = None if part.joint is None else part.joint[own]
            return
        form: Form = part.form(self.scores)
        if part.weights is not None:
            self._take(self._costs(form, part.weights))
        imposed = self.how.imposed(part.target)
        imposed[0] = imposed[0][own]
        fast = self._fast(form, part.sharpness) if self.batch.fast else None
        run = solver.solve(form, imposed, self.how, fast)
        axes = len(cotangents) if first else 1
        weights, potentials = torch.cat(cotangents[:axes]), torch.cat(run.potentials[:axes])
        self.value = self.value + torch.where(weights == 0, 0.0, weights * potentials).sum()
        if not self.wanted:
            return
        solver.differentiate(run, self.how.gradient, cotangents, self.forces)
        if self.forces.terms:
            self.tiles.append(form.gradient(self.forces.terms))
            self.forces.terms = []

    def _fast(self, form: Any, c: Sharpness) -> Any:
        """The fast run of a form; linear ones of one sharpness share a kernel."""
        if not isinstance(form, Linear):
            return form.fast() if hasattr(form, "fast") else None
        if c.most not in self.kernels:
            if self.there is None:
                kernel = Kernel.of(self.scores, *c)
            else:
                ahead = self.there.kernels[c.most]
                kernel = None if ahead is None else ahead.transposed()
            self.kernels[c.most] = kernel
        found = self.kernels[c.most]
        return None if found is None else Scaling(found, form)

    def _linear(self, target: PairTarget) -> None:
        """⟨target, s⟩ from products of the target with the embeddings, O(N·d).

        Added up in float64, as it nearly cancels against the potentials.
        """
        scores, wide, received = self.scores, self.value.dtype, None
        if self.batch.gathered is not None:
            target = target.of_rows(self.batch.rows)
        if scores.references is None:
            here, moved = scores.anchors.to(wide), target.dense()
        else:
            here = scores.anchors
            moved, received = target.products(scores.references, here)
        self.value = self.value + (here * moved).sum(dtype=wide)
        for to, found in zip(self.to, (moved, received), strict=False):
            if found is not None:
                to += found.to(to.dtype)

    def _costs(self, form: Any, weights: Any) -> Tiles:
        """⟨P̃, C⟩/ε, added to the value, and its gradient, tile by tile."""
        start = self.batch.rows.start
        for block, part in form.parts():
            rows = slice(start + block.start, start + block.stop)
            sums, slopes = form.cost_rows(part, *weights(rows))
            self.value = self.value + sums.sum() * self.weight
            yield block, slopes.to(self.scores.dtype) * self.weight

    def _take(self, tiles: Tiles) -> None:
        """Add tiles of ∂L/∂s to the matrix, or keep them; without a gradient only run them."""
        matrix = self.forces.matrix() if self.wanted else None
        if self.wanted and matrix is None:
            self.tiles.append(tiles)
            return
        for block, tile in tiles:
            if matrix is not None:
                matrix[block] += tile

    def finish(self) -> None:
        """Complete the value, and the gradients from ∂L/∂s."""
        self.flags += [k.kept for k in self.kernels.values() if k and k.kept is not None]
        half = None
        if any(weights is not None for weights in self.half):
            rows, columns = self.half
            half = HalfSweep(self.scores, *self.sharpness, rows, columns, self.joint)
            self._take(half.gradient())
        if self.wanted:
            self._pull()
        for part in self.parts:  # when E is gone
            if part.linear is not None:
                self._linear(part.linear.scaled(-self.weight * part.sharpness.value))
        if self.wanted and self.scores.group is not None:
            self.scores.group.sum_(self.to[1])
        if half is not None:  # complete when its tiles have come
            self.value = self.value + half.value
        if self.there is not None:
            self.there.value = self.there.value + self.value
            self.there.flags += self.flags

    def result(self) -> _Found:
        """The value, the gradients of the batch's embeddings, and the derivative by log(1/τ)."""
        self.finish()
        self.scores.shared(self.value)
        if self.flags:  # never a number without its digits
            kept = torch.stack(self.flags).all()
            self.batch.flags.append(~kept)
            self.value = torch.where(kept, self.value, torch.nan)
            for to in self.to:
                to += torch.where(kept, 0.0, torch.nan)
        learnt = self.wanted and isinstance(self.batch.temperature, Tensor)
        slope = self._slope() if learnt else torch.zeros_like(self.value)
        return self.value, sides(self.batch, self.to), slope

    def _pull(self) -> None:
        """Two gradient products, or one within one set."""
        scores, matrix, tiles = self.scores, self.forces.values, self.tiles
        if matrix is not None and self.there is not None:
            ahead = self.there.forces.matrix()
            assert ahead is not None
            ahead += matrix.T
            matrix = None
        one_product = scores.symmetric and not tiles
        kernels = [k for k in self.kernels.values() if k is not None and k.factors]
        tiles = [*tiles, *(kernel.gradient(both=one_product) for kernel in kernels)]
        if matrix is not None:
            turned = matrix.T if one_product else matrix.new_zeros(()).expand(scores.shape)
            firsts = ((rows, rows.start * one_product) for rows in scores.blocks())
            tiles.append((r, matrix[r, first:] + turned[r, first:]) for r, first in firsts)
        if tiles:
            scores.pull(_summed(tiles), self.to, both=one_product)
        kernels.clear()  # E is as large as all else: its memory is needed no more
        self.kernels.clear()

    def _slope(self) -> Tensor:
        """∂L/∂log(1/τ) = Σ_ij s_ij ∂L/∂s_ij, from the gradients of the embeddings."""
        scores, wide = self.scores, self.value.dtype
        found = (scores.anchors.to(wide) * self.to[0].to(wide)).sum()
        if scores.symmetric:
            return found / 2
        return found if scores.group is None else scores.group.sum_(found)


def sides(batch: Batch, to: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Gradients of the batch's anchors and references; of several processes, own rows."""
    here, dtype = to[0], batch.anchors.dtype
    if batch.references is None:
        return here, None
    if batch.within:
        if to[1] is not here:
            to[1][batch.rows] += here
        return to[1].to(dtype), None
    if batch.gathered is not None:
        here = torch.zeros_like(batch.anchors, dtype=here.dtype)
        here[batch.rows] = to[0]
    return here.to(dtype), to[1].to(dtype)


def _summed(tiles: Sequence[Tiles]) -> Iterator[tuple[slice, Tensor]]:
    """The sums of tiles of equal heights."""
    for parts in zip(*tiles, strict=True):
        rows, total = parts[0]
        for _, more in parts[1:]:
            total = total + more
        yield rows, total
