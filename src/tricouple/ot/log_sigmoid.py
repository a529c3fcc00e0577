"""Log-sigmoid triplets: K_ijk = σ(x_ij − x_ik)^{1/ε} as a sum over nodes of products.

At each node q of the quadrature the kernel is a product, A_q(x_ij) B_q(x_ik), and what j ≠ k
excludes there is that node's own term j = k. So each node has a softmax of positives and one of
negatives with their largest terms apart, and the formulas of rows.py hold node by node: a sum over
nodes, at any sharpness, without a difference that loses digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import fill_own, on_host, wide_dtype
from tricouple.ot import native, rows
from tricouple.ot.forms import Term, log_scaling
from tricouple.ot.log_sigmoid_fast import Factors, FastLogSigmoid
from tricouple.ot.quadrature import (
    HEAD,
    LOG2,
    TAIL,
    Rule,
    cost_splits,
    nodes_of,
    pair_costs,
    rule_of,
)
from tricouple.ot.rows import Vectors, Weights
from tricouple.ot.scores import Scores

# Entries of the matrices of some rows and nodes that PyTorch has at once, on the CPU and elsewhere.
_CACHED, _AT_ONCE = 1 << 18, 1 << 26

# Beyond this ε the quadrature has too long a tail: pairs of references are taken one by one.
LARGEST_EPSILON = 4.0

TargetWeights = Callable[[slice], tuple[Tensor, Tensor]]


@dataclass
class LogSigmoid:
    """K_ijk = σ(x_ij − x_ik)^{1/ε}, x = factor·s, j ≠ k; never own_i. To a relative tolerance."""

    scores: Scores
    factor: float | Tensor  # 1/τ; a tensor without dimensions on a device
    epsilon: float
    tolerance: float  # on the relative error of K
    reach: float | None = None  # where the factor is a tensor: what |x| is taken to be at most
    kept: list[Factors] = field(default_factory=list)  # of streamed batches, for ``gradient``

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        n, m = self.scores.shape
        return n, m, m

    @property
    def rule(self) -> Rule:
        """Step and ends of the quadrature."""
        return rule_of(1 / self.epsilon, self.tolerance)

    def most(self) -> float:
        """What |x| is at most, for a device; unit vectors have cosines of 1, but for rounding."""
        return self.reach if self.reach is not None else 1.01 * float(self.factor)

    def sweep(
        self, potentials: Vectors, log_masses: Vectors, *, watch: bool = False
    ) -> tuple[Vectors, Tensor | None]:
        """Anchors and positives in one pass over the tiles, then negatives in another (§2, §3)."""
        phi, f, g = potentials
        phi, columns, error = self._pass(1, phi, f, g, log_masses[0], watch)  # marginals 1, 2
        f = log_scaling(log_masses[1], columns)
        _, columns, _ = self._pass(-1, phi, f, g, None, False)  # marginal 3
        return [phi, f, log_scaling(log_masses[2], columns)], error

    def _pass(
        self, sign: int, phi: Tensor, f: Tensor, g: Tensor, log_mass: Tensor | None, watch: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Set φ where masses are given; the columns of positives (sign 1) or of negatives (−1)."""
        phi, columns = phi.clone(), torch.full_like(f, -torch.inf)
        error = phi.new_zeros(()) if watch else None
        for block, tile in self._parts():
            mass = None if log_mass is None else log_mass[block]
            terms = _Terms(self, tile, self.scores.own[block])
            phi[block], found, before = terms.update(sign, phi[block], f, g, mass)
            columns = torch.logaddexp(columns, found)
            if error is not None and before is not None and mass is not None:
                error += (before.exp() - mass.exp()).abs().sum()
        if self.scores.group is not None:
            self.scores.group.log_sum_(columns)
            if error is not None:
                self.scores.group.sum_(error)
        return phi, columns, error

    def fast(self) -> FastLogSigmoid | None:
        """Sweeps by scaling, in C; None elsewhere, and for scores that are no numbers."""
        if not native.in_c(self.scores.anchors):
            return None
        none = float((self.nodes.counts < 0).any())
        if self.scores.group is not None:
            none = self.scores.group.largest(none)
        return None if none else FastLogSigmoid(self)

    def push(self, potentials: Vectors, weights: Weights, into: Tensor | None = None) -> Vectors:
        """For each axis the weights of the other axes, carried through the plan (rows.push)."""
        outs = [torch.zeros_like(potential) for potential in potentials]
        for block, tile in self.scores.tiles():
            self._push(
                block, tile, potentials, weights, None if into is None else into[block], outs
            )
        if self.scores.group is not None:
            outs[1:] = self.scores.group.sum_(torch.stack(outs[1:]))
        return outs

    def _push(
        self,
        block: slice,
        tile: Tensor,
        potentials: Vectors,
        weights: Weights,
        into: Tensor | None,
        outs: Vectors,
    ) -> None:
        """``push`` of some rows, added to ``outs``: in C at once, in PyTorch a few at a time."""
        compiled = native.in_c(tile)
        for part in [slice(0, len(tile))] if compiled else _parts(tile):
            inside = slice(block.start + part.start, block.start + part.stop)
            there = [potentials[0][inside], *potentials[1:]]
            mine = [None if weights[0] is None else weights[0][inside], *weights[1:]]
            target = None if into is None else into[part]
            if compiled:
                found = self._push_in_c(inside, tile, there, mine, target)
            else:
                found = _Terms(self, tile[part], self.scores.own[inside]).push(there, mine, target)
            outs[0][inside] = found[0]
            outs[1] += found[1]
            outs[2] += found[2]

    def _push_in_c(
        self,
        block: slice,
        tile: Tensor,
        potentials: Vectors,
        weights: Weights,
        into: Tensor | None,
    ) -> Vectors:
        """``_Terms.push`` in C."""
        nodes, (n, m), threads = self.nodes, tile.shape, native.threads(16 * tile.numel())
        out0, outs = torch.empty_like(potentials[0]), potentials[1].new_zeros(2, threads, m)
        work = outs.new_empty(threads, 3, m), tile.new_empty(threads, 7, m)
        own = self.scores.own[block], nodes.counts[block], nodes.lists[block]
        ends = *potentials, *weights, out0, outs[0], outs[1], into, *work
        native.call("term_push", tile, n, m, nodes.width, threads, nodes.table, tile, *own, *ends)
        return [out0, *outs.sum(1)]

    @cached_property
    def nodes(self) -> Nodes:
        """The nodes of each row, for the compiled module."""
        return Nodes.of(self)

    def gradient(self, terms: Sequence[Term]) -> Iterator[tuple[slice, Tensor]]:
        """The sum of the terms, and of what streamed fast runs left, in tiles."""
        for block, tile in self.scores.tiles():
            total = torch.zeros_like(tile)
            for factors in self.kept:
                factors.add_to(block, tile, total)
            for potentials, weights in terms:
                outs = [torch.zeros_like(potential) for potential in potentials]
                self._push(block, tile, potentials, weights, total, outs)
            yield block, total

    def costs(self, weights: TargetWeights) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Σ_jk plus_ij minus_ik C_ijk/ε of each row, and its derivative with respect to s."""
        splits = cost_splits(self.epsilon, self.tolerance)
        compiled = native.in_c(self.scores.anchors)
        for block, tile in self.scores.tiles() if compiled else self._parts():
            plus, minus = weights(block)
            wide = tile.to(plus.dtype)
            if compiled:
                totals, slopes = self._compiled_costs(wide, plus, minus, splits)
            else:
                spread = None if on_host(tile) else 2 * self.most()
                totals, slopes = pair_costs(wide * self.factor, plus, minus, splits, spread)
                slopes = slopes * self.factor
            yield block, totals / self.epsilon, (slopes / self.epsilon).to(tile.dtype)

    def _compiled_costs(
        self, tile: Tensor, plus: Tensor, minus: Tensor, splits: int
    ) -> tuple[Tensor, Tensor]:
        """``pair_costs`` in C, with the gradient with respect to s."""
        (n, m), threads = tile.shape, native.threads(16 * tile.numel())
        numbers = float(self.factor), 0.0, LOG2 / splits, splits, TAIL, HEAD
        table = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        totals, slopes = tile.new_empty(n), torch.empty_like(tile)
        work = tile.new_empty(threads * 10 * (m + 16))
        arrays = table, tile, plus.contiguous(), minus.contiguous(), totals, slopes, work
        native.call("pair_costs", tile, n, m, threads, *arrays)
        return totals, slopes

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Tiles of s in parts of a few rows."""
        for block, tile in self.scores.tiles():
            for part in _parts(tile):
                yield slice(block.start + part.start, block.start + part.stop), tile[part]


def _parts(tile: Tensor) -> list[slice]:
    """Rows that PyTorch has at once: so many that 16 nodes of them fit."""
    n, m = tile.shape
    step = max(1, (_CACHED if on_host(tile) else _AT_ONCE) // 16 // max(1, m))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


class _Terms:
    """Some rows of the kernel, node by node, in PyTorch.

    Rows and nodes are one axis of the matrices here, R·q long, some nodes at a time.
    """

    def __init__(self, form: LogSigmoid, tile: Tensor, own: Tensor) -> None:
        self.rule, self.factor, self.dtype, self.own = form.rule, form.factor, tile.dtype, own
        self.x = tile.to(wide_dtype(tile.device)) * form.factor
        nodes = nodes_of(self.rule, self.x, own, form.most() if not on_host(tile) else 0.0)
        entries = _CACHED if on_host(tile) else _AT_ONCE
        self.nodes = nodes.split(max(1, entries // max(1, tile.numel())))
        # Rates beyond every potential: their terms vanish. Larger ones would lose the potentials.
        self.most = (1e4 + 200 * self.rule.power * (1 + self.x.abs().amax())).log()

    def _logs(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logarithms of A_q(x) and B_q(x), −∞ at own, and rates e^{x + v_q}; shape (R·q, M)."""
        heights = (self.x[:, None] + nodes[:, None]).clamp(max=self.most).flatten(0, 1)
        rates, own = heights.exp(), self.own.repeat_interleave(len(nodes))
        near = heights.mul_(self.rule.power).add_(self.rule.constant).sub_(rates)
        return fill_own(near, own, -torch.inf), fill_own(-rates, own, -torch.inf), rates

    def update(
        self, sign: int, phi: Tensor, f: Tensor, g: Tensor, log_mass: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """rows.update node by node: φ, logarithms of the columns, and of the row masses before."""
        if log_mass is None:
            return phi, self._columns(sign, phi, f, g), None
        sums = self._row_sums(f, g)
        before, phi = phi + sums, log_scaling(log_mass, sums)
        return phi, self._columns(sign, phi, f, g), before

    def _row_sums(self, f: Tensor, g: Tensor) -> Tensor:
        """Logarithm of Σ_{j≠k} K_jk exp(f_j + g_k), shape (R,): marginal 1 without φ."""
        total = torch.full_like(self.x[:, 0], -torch.inf)
        for nodes in self.nodes:
            near, far, _ = self._logs(nodes)
            p, q = rows.soft(near.add_(f), self.dtype), rows.soft(far.add_(g), self.dtype)
            sums = (p.total + q.total + rows.log_distinct(p, q)).view(-1, len(nodes))
            total = torch.logaddexp(total, torch.logsumexp(sums, 1))
        return total

    def _columns(self, sign: int, phi: Tensor, f: Tensor, g: Tensor) -> Tensor:
        """Logarithm of Σ_i exp(φ_i) Σ_{k≠j} K_ijk exp(g_k), (M,) (marginal 2); or 3, with f."""
        total = torch.full_like(f, -torch.inf)
        for nodes in self.nodes:
            near, far, _ = self._logs(nodes)
            mine, other = (near, far.add_(g)) if sign > 0 else (far, near.add_(f))
            q = rows.soft(other, self.dtype)
            weights = phi.repeat_interleave(len(nodes))[:, None] + q.total
            total = torch.logaddexp(total, torch.logsumexp(mine + weights + rows.all_but(q), 0))
        return total

    def push(self, potentials: Vectors, weights: Weights, into: Tensor | None) -> Vectors:
        """rows.push node by node; slopes m − e^{x+v} of A and −e^{x+v} of B for ``into``."""
        phi, f, g = potentials
        out0, out1, out2 = torch.zeros_like(phi), torch.zeros_like(f), torch.zeros_like(g)
        forces = torch.zeros_like(self.x)
        for nodes in self.nodes:
            size = len(nodes)
            w0, w1, w2 = (0.0 if w is None else w for w in weights)
            w0 = w0.repeat_interleave(size)[:, None] if isinstance(w0, Tensor) else w0
            start = phi.repeat_interleave(size)[:, None]
            near, far, rates = self._logs(nodes)
            near.add_(f)
            far.add_(g)
            p, q = rows.soft(near.clone(), self.dtype), rows.soft(far.clone(), self.dtype)
            mean_p, mean_q = rows.means(p, w1), rows.means(q, w2)  # over all but j
            near = near.add_(start + q.total).add_(rows.all_but(q)).exp_()  # P¹²
            far = far.add_(start + p.total).add_(rows.all_but(p)).exp_()  # P¹³
            out0 += (near * w1 + far * w2).sum(1).view(-1, size).sum(1)
            if into is not None:
                slopes = near * (w0 + w1 + mean_q) * (self.rule.power - rates)
                slopes -= far * (w0 + w2 + mean_p) * rates
                forces += slopes.view(-1, size, slopes.shape[1]).sum(1)
            out1 += (near * (w0 + mean_q)).sum(0)
            out2 += (far * (w0 + mean_p)).sum(0)
        if into is not None:
            into.add_((forces * self.factor).to(into.dtype))
        return [out0, out1, out2]


@dataclass
class Nodes:
    """The nodes of the rows of a batch, and what the compiled module works with."""

    table: Tensor  # the rule, as c/log_sigmoid.h reads it
    width: int  # the largest number of nodes of a row
    counts: Tensor  # (N,), −1 for rows that hold a NaN
    lists: Tensor  # (N, width), int32: q of the nodes v_q
    lows: Tensor  # (N,): where the smallest score of a row is
    tops: Tensor  # (N,): the largest x
    met: Tensor  # (N,): log Σ_q A_q B_q of the smallest score; 2^{−m} for every other one
    slopes: Tensor  # (N,): its derivative with respect to x

    @classmethod
    def of(cls, form: LogSigmoid) -> Nodes:
        """From two visits of the tiles: how many nodes there are, and which."""
        rule, factor, scores = form.rule, float(form.factor), form.scores
        n, own = scores.shape[0], scores.own
        reach, longest = 0.0, 1
        numbers = factor, rule.power, rule.step, rule.splits, rule.left, rule.right, rule.constant
        table = torch.tensor([*numbers, 0.0], dtype=torch.float64, device="cpu")
        tops, met, slopes = table.new_zeros(3, n)
        counts, lows = torch.zeros(2, n, dtype=torch.int64, device="cpu")
        lists: Tensor | None = None
        for visit in range(2):
            for block, tile in scores.tiles():
                if visit == 0:  # NaN and infinities are no numbers of nodes
                    size = tile.abs().nan_to_num_(0.0, 0.0, 0.0).amax()
                    reach = max(reach, factor * float(size))
                room, threads = int(2 * reach / rule.step) + 8, native.threads(tile.numel())
                sizes = *tile.shape, longest, room, threads
                ends = lows[block], tops[block], met[block], slopes[block]
                marks = torch.empty(threads * room, dtype=torch.uint8, device="cpu")
                some = None if lists is None else lists[block]
                arrays = table, tile, own[block], counts[block], some, *ends, marks
                native.call("term_nodes", tile, *sizes, *arrays)
            if visit == 0:
                longest = max(1, int(counts.max())) if n else 1
                lists = torch.zeros(n, longest, dtype=torch.int32, device="cpu")
        assert lists is not None
        # Rates beyond every potential: their terms vanish.
        table[-1] = math.log(1e4 + 200 * rule.power * (1 + reach))
        return cls(table, longest, counts, lists, lows, tops, met, slopes)
