"""Log-sigmoid triplets: K_ijk = σ(x_ij − x_ik)^{1/ε} as a sum over nodes of products.

At each node q of the quadrature the kernel is a product, A_q(x_ij) B_q(x_ik), and what j ≠ k
excludes there is that node's own term j = k. So each node has a softmax of positives and one of
negatives with their largest terms apart, and the formulas of rows.py hold node by node: a sum over
nodes, at any sharpness, without a difference that loses digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from tricouple.numeric import fill_own, on_host, wide_dtype
from tricouple.ot import native, quadrature, rows
from tricouple.ot.any_shaping import parts_of, update_by_pairs
from tricouple.ot.forms import Form, Updated
from tricouple.ot.log_sigmoid_fast import Terms, TermSweeps
from tricouple.ot.quadrature import Rule, at_once, cost_splits, nodes_of, pair_costs, rule_of
from tricouple.ot.rows import Vectors, Weights

# Beyond this ε the quadrature has too long a tail: pairs of references are taken one by one.
LARGEST_EPSILON = 4.0


@dataclass
class LogSigmoid(Form):
    """K_ijk = σ(x_ij − x_ik)^{1/ε}, x = factor·s, j ≠ k; never own_i. To a relative tolerance."""

    factor: float | Tensor  # 1/τ; a tensor without dimensions on a device
    epsilon: float
    tolerance: float  # on the relative error of K
    reach: float | None = None  # where the factor is a tensor: what |x| is taken to be at most

    @property
    def rule(self) -> Rule:
        """Step and ends of the quadrature."""
        return rule_of(1 / self.epsilon, self.tolerance)

    def most(self) -> float:
        """What |x| is at most, for a device; unit vectors have cosines of 1, but for rounding."""
        return self.reach if self.reach is not None else 1.01 * float(self.factor)

    @cached_property
    def nodes(self) -> Nodes:
        """The nodes of each row, for the compiled module."""
        return Nodes(self)

    def fast(self) -> LogSigmoid | None:
        """What has ``sweeps``, in C; None elsewhere, and for scores that are no numbers."""
        if not native.in_c(self.scores.anchors):
            return None
        none = (self.nodes.counts < 0).any().double()
        if self.scores.group is not None:
            self.scores.group.max_(none)
        return None if none else self

    def sweeps(
        self, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
    ) -> tuple[TermSweeps | None, bool]:
        """In float32, or in float64 if that loses digits (``solver.FastRun``)."""
        done, ended = None, False
        for dtype in (torch.float32, torch.float64):
            terms = Terms(self, dtype)
            if not ended and terms.block > 0 and self.scores.dtype.itemsize <= dtype.itemsize:
                run = TermSweeps(terms, masses, start, later)
                ended = run.go_on(most, tol)
                done = run if run.number > 0 else None
        return done, ended

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of s, so many that a node of them fits."""
        step = at_once(self.scores.anchors) // max(1, self.scores.shape[1])
        return parts_of(self.scores.tiles(), max(1, step))

    def update(
        self, block: slice, part: Tensor, potentials: Vectors, log_mass: Tensor | None
    ) -> Updated:
        """rows.update node by node."""
        return update_by_pairs(_Terms(self, block, part).pairs, potentials, log_mass)

    def push_rows(
        self, block: slice, part: Tensor, potentials: Vectors, weights: Weights, into: Tensor | None
    ) -> Vectors:
        """rows.push node by node."""
        if not native.in_c(part):
            return _Terms(self, block, part).push(potentials, weights, into)
        nodes, (n, m), threads = self.nodes, part.shape, native.threads(16 * part.numel())
        out0, outs = torch.empty_like(potentials[0]), potentials[1].new_zeros(2, threads, m)
        work = outs.new_empty(threads, 3, m), part.new_empty(threads, 7, m)
        own = self.scores.own[block], nodes.counts[block], nodes.lists[block]
        ends = *potentials, *weights, out0, outs[0], outs[1], into, *work
        native.call("term_push", part, n, m, nodes.width, threads, nodes.table, part, *own, *ends)
        return [out0, *outs.sum(1)]

    def cost_rows(self, part: Tensor, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
        """By a quadrature of the cost, in C or in PyTorch."""
        splits, wide = cost_splits(self.epsilon, self.tolerance), part.to(plus.dtype)
        if native.in_c(part):
            (n, m), threads = part.shape, native.threads(16 * part.numel())
            ends = quadrature.TAIL, quadrature.HEAD
            numbers = float(self.factor), 0.0, math.log(2) / splits, splits, *ends
            table = torch.tensor(numbers, dtype=torch.float64, device="cpu")
            totals, slopes = wide.new_empty(n), torch.empty_like(wide)
            work = wide.new_empty(threads * 10 * (m + 16))
            arrays = table, wide, plus.contiguous(), minus.contiguous(), totals, slopes, work
            native.call("pair_costs", wide, n, m, threads, *arrays)
        else:
            spread = None if on_host(part) else 2 * self.most()
            totals, slopes = pair_costs(wide * self.factor, plus, minus, splits, spread)
            slopes = slopes * self.factor
        return totals / self.epsilon, slopes / self.epsilon


class _Terms:
    """Some rows of the kernel, node by node, in PyTorch.

    Rows and nodes are one axis of the matrices here, R·q long, some nodes at a time.
    """

    def __init__(self, form: LogSigmoid, block: slice, tile: Tensor) -> None:
        self.rule, self.factor, self.dtype = form.rule, form.factor, tile.dtype
        self.x, self.own = tile.to(wide_dtype(tile.device)) * form.factor, form.scores.own[block]
        if native.in_c(tile):
            nodes = form.nodes.lists[block].unique().double() * self.rule.step
        else:
            sizes = self.x.abs().nan_to_num_(0.0, 0.0, 0.0)  # no numbers of nodes
            reach = float(sizes.amax()) if on_host(tile) else form.most()
            nodes = nodes_of(self.rule, self.x, self.own, reach)
        self.nodes = nodes.split(max(1, at_once(tile) // max(1, tile.numel())))
        # Rates beyond every potential: their terms vanish. Larger ones would lose the potentials.
        self.most = (1e4 + 200 * self.rule.power * (1 + self.x.abs().amax())).log()

    def _logs(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logarithms of A_q(x) and B_q(x), −∞ at own, and rates e^{x + v_q}; shape (R·q, M)."""
        heights = (self.x[:, None] + nodes[:, None]).clamp(max=self.most).flatten(0, 1)
        rates, own = heights.exp(), self.own.repeat_interleave(len(nodes))
        near = heights.mul_(self.rule.power).add_(self.rule.constant).sub_(rates)
        return fill_own(near, own, -torch.inf), fill_own(-rates, own, -torch.inf), rates

    def pairs(self, v: Tensor, sign: int) -> Tensor:
        """Logarithm of Σ_{k≠j} K_ijk exp(v_k), shape (R, M); of Σ_{j≠k} for sign −1."""
        total = torch.full_like(self.x, -torch.inf)
        for nodes in self.nodes:
            mine, other = self._logs(nodes)[:2][::sign]
            q = rows.soft(other.add_(v), self.dtype)
            found = (mine + q.total + rows.all_but(q)).unflatten(0, (-1, len(nodes)))
            total = torch.logaddexp(total, torch.logsumexp(found, 1))
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


class Nodes:
    """The nodes of the rows of a batch, and what the compiled module works with."""

    def __init__(self, form: LogSigmoid) -> None:
        rule, factor, scores = form.rule, float(form.factor), form.scores
        n, own = scores.shape[0], scores.own
        numbers = factor, rule.power, rule.step, rule.splits, rule.left, rule.right, rule.constant
        self.table = torch.tensor([*numbers, 0.0], dtype=torch.float64, device="cpu")
        # Of each row: the number of nodes, −1 if it holds a NaN; where its smallest score is; the
        # largest x; log Σ_q A_q B_q of the smallest, log 2^{−m} for all others, and its slope.
        self.counts, self.lows = torch.zeros(2, n, dtype=torch.int64, device="cpu")
        self.tops, self.met, self.slopes = self.table.new_zeros(3, n)
        lists, reach = [torch.zeros(0, 1, dtype=torch.int32, device="cpu")], 0.0
        for block, tile in scores.tiles():
            size = factor * float(tile.abs().nan_to_num_(0.0, 0.0, 0.0).amax())
            room, threads = int(2 * size / rule.step) + 8, native.threads(tile.numel())
            marks = torch.empty(threads * room, dtype=torch.uint8, device="cpu")
            first = self.table, tile, own[block], self.counts[block]
            last = *(x[block] for x in (self.lows, self.tops, self.met, self.slopes)), marks
            sizes = room, threads, *first
            native.call("term_nodes", tile, *tile.shape, 0, *sizes, None, *last)  # how many
            found = lists[0].new_zeros(len(tile), max(1, int(self.counts[block].max())))
            native.call("term_nodes", tile, *tile.shape, found.shape[1], *sizes, found, *last)
            reach = max(reach, size)
            lists.append(found)
        self.width = max(part.shape[1] for part in lists)
        self.lists = torch.cat([pad(part, (0, self.width - part.shape[1])) for part in lists])
        # Rates beyond every potential: their terms vanish.
        self.table[-1] = math.log(1e4 + 200 * rule.power * (1 + reach))
