"""Passes over the factors of all nodes of the log-sigmoid kernel, in C (mathematics §10).

The factors of a node are those of an earlier node, squared, and are used as they are made: nothing
of size Q·N·M exists. Potentials are logarithms and part of every exponent, so that sums are parts
of the plan: they are neither large nor small.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tricouple.ot import native
from tricouple.ot.quadrature import quantile

if TYPE_CHECKING:
    from tricouple.ot.log_sigmoid import LogSigmoid

WORST = 0.1  # share that must be left after a subtraction
LEVELS = 12  # factors of a chain: each squaring doubles the error of rounding
# Of each type: log of its smallest number, and of what an underflow may lose of a row's mass.
_FLOOR = {torch.float32: 86.0, torch.float64: 706.0}
_MARGIN = {torch.float32: 24.0, torch.float64: 60.0}
CHANGE = {
    torch.float32: 40.0,
    torch.float64: 300.0,
}  # of log b within a segment
_BLOCK, _ALIVE, _GROWTH = 8, 9, 10  # places in the compiled module's table
NEITHER, REPEL, ATTRACT = -1, 0, 1  # which kernel a pass takes sums of: none, B or A


class Between(NamedTuple):
    """What a pass makes of row sums before it adds up columns (``term_pass``)."""

    mode: int = 0
    partner: Tensor | None = None  # (N, Q): total_i += Σ_q partner_q sums_q
    total: Tensor | None = None  # (N,)
    given: Tensor | None = None  # (N,): φ += log(given/total) (mode 1); times extra (mode 2)
    extra: Tensor | None = None  # (N, Q), added to the sums


_NOTHING = Between()


class Terms:
    """Passes over the factors of all nodes, in one floating-point type."""

    def __init__(self, form: LogSigmoid, dtype: torch.dtype) -> None:
        self.form, self.scores, self.nodes, self.dtype = form, form.scores, form.nodes, dtype
        rule, eps = form.rule, torch.finfo(dtype).eps
        # A slope weighs the tail beyond by its rate, so it needs more of it than a value.
        alive = quantile(rule.power, max(form.tolerance / 8000, eps / 64), upper=True)
        growth = rule.power * rule.step  # of log A from node to node
        spread = _FLOOR[dtype] - math.exp(alive) - _MARGIN[dtype]
        levels = int(math.log2(max(1.0, form.tolerance / 4 / eps))) + 1
        self.block = (
            min(int(spread // growth) + 1, rule.splits * min(levels, LEVELS)) if spread >= 0 else 0
        )
        factors = [math.exp(growth * node) for node in range(self.block)]
        ends = torch.tensor([self.block, alive, *factors], dtype=torch.float64, device="cpu")
        self.table = torch.cat([self.nodes.table[:_BLOCK], ends])
        self.least = (
            math.exp(-_MARGIN[dtype]) * 1e5
        )  # smallest column that no underflow has changed
        # Digits that squares have, against those that are wanted.
        rounding = eps * 2 ** (-(-self.block // rule.splits))
        wanted = max(form.tolerance, torch.finfo(self.scores.dtype).eps)
        self.worst = min(WORST, max(1e-6, 10 * rounding / wanted))
        self.log_meet = -rule.power * math.log(2)
        self.at = self.scores.own.clamp(min=0)
        self.has = self.scores.own >= 0

    @cached_property
    def empty(self) -> Tensor:
        """Columns that are own or smallest in every row: there 2^{−m} excludes nothing."""
        n, m = self.scores.shape
        count = torch.zeros(m + 1, dtype=torch.float64, device="cpu")
        count[:m] = n - torch.bincount(self.nodes.lows, minlength=m)
        count[:m] -= torch.bincount(self.at, self.has.double(), minlength=m)
        if self.scores.group is not None:
            self.scores.group.sum_(count)
        return count[:m] == 0

    def run(
        self,
        near: int,
        far: int,
        phi: Tensor,
        f: Tensor,
        weights: Tensor,
        columns: Tensor | None = None,
        between: Between = _NOTHING,
    ) -> Tensor:
        """``term_pass`` of c/log_sigmoid.h; sums over the rows of this process, shape (M,)."""
        m, nodes = self.scores.shape[1], self.nodes
        out = f.new_zeros(m)
        size = -(-m // (128 // self.dtype.itemsize)) * (128 // self.dtype.itemsize)
        for rows, tile in self.scores.tiles():
            threads = native.threads(tile.numel() * nodes.width)
            received = f.new_zeros(threads, m)
            work = f.new_empty(threads, 7 + nodes.width, size, dtype=self.dtype)
            own = (nodes.counts, nodes.lists, nodes.tops, phi)
            arrays: list[Tensor | None] = [self.table, tile.to(self.dtype), self.scores.own[rows]]
            arrays += [*(x[rows] for x in own), f, columns]
            arrays += [None if x is None else x[rows] for x in (*between[1:], weights)]
            numbers = len(tile), m, nodes.width, near, far, between.mode, threads
            native.call("term_pass", work, *numbers, *arrays, received, work)
            out += received.sum(0)
        return out

    def by_node(self) -> Tensor:
        """Room for one number per row and node."""
        return torch.zeros(
            self.scores.shape[0], self.nodes.width, dtype=torch.float64, device="cpu"
        )

    def lowest(self, phi: Tensor, both: Tensor) -> Tensor:
        """z_i = a b h Σ_q A_q B_q of the smallest score, for both = log(b h); shape (N,)."""
        return (self.nodes.met + phi + both[self.nodes.lows]).exp()

    def taken(
        self, phi: Tensor, both: Tensor, z: Tensor, w: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What j = k takes from each row, Σ_j a_i b_j h_j K_ijj w_j; and what it is taken from.

        The largest of all b h is kept apart: most rows have it for their smallest score.
        """
        lows, at, most = self.nodes.lows, self.at, int(both.argmax())
        rest = both.clone()
        rest[most] = -torch.inf
        high = rest.amax().clamp(min=-1e300)
        values = (rest - high).exp()
        peak = (phi + both[most] + self.log_meet).exp()
        scale, size = (phi + high + self.log_meet).exp(), values.sum()
        if w is not None:
            values, peak, z = values * w, peak * w[most], z * w[lows]
        sums = values.sum() - values[lows] - torch.where(self.has, values[at], 0.0)
        others = (lows == most) | (self.has & (at == most))
        return scale * sums + torch.where(others, 0.0, peak) + z, scale * size

    def outside(self, phi: Tensor, w: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """For each column Σ a_i (times w_i) of the rows where it is smallest, and own."""
        a = phi.exp() if w is None else phi.exp() * w
        mine = a.new_zeros(2, self.scores.shape[1])
        mine[0].index_add_(0, self.nodes.lows, a)
        mine[1].index_add_(0, self.at, torch.where(self.has, a, 0.0))
        return mine[0], mine[1]

    def excluded(self, mine: Tensor, own: Tensor, both: Tensor, z: Tensor) -> Tensor:
        """What j = k takes from each column, Σ_i a_i b_j h_j K_ijj; from sums over processes."""
        most = mine.abs().argmax()
        rest = mine.clone()
        rest[most] = 0.0
        others = mine.sum() - mine
        others[most] = rest.sum()
        others = torch.where(self.empty, 0.0, others - own)
        return others * (both + self.log_meet).clamp(max=700.0).exp() + z

    def summed(self, *vectors: Tensor) -> list[Tensor]:
        """Sums over processes, in one message."""
        if self.scores.group is None:
            return list(vectors)
        joined = self.scores.group.sum_(torch.cat(vectors))
        return list(joined.split([len(vector) for vector in vectors]))

    def at_lows(self, z: Tensor) -> Tensor:
        """Sums of z over the rows whose smallest score a column is."""
        return z.new_zeros(self.scores.shape[1]).index_add_(0, self.nodes.lows, z)
