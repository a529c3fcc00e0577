"""The plan of three modalities by matrix products, without its N³ tensor.

With scores S = c·cosine of the three pairs and potentials f it is, with uniform marginals m,

    P_ijk = exp(S_ij + S_ik + S_jk + f_i + f_j + f_k).

Summing one modality z out leaves pairs of the other two, x and y,

    L = S_xy + log( exp(S_xz + f_z) exp(S_zy) ),                                    (1)
    f_x = log m_x − lse_y(L + f_y),      f_y = log m_y − lse_x(L + f_x),            (2)

one product of N×N matrices for two updates. In the order (x, y) = 01, 20, 12, 01, … the updates are
0 1 2 0 1 2 …, those of the dense algorithm: three products for two sweeps, and three in the adjoint
of two updates, which stores three N×N matrices at a time. The updates themselves are those of a
plan of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tricouple import batch, checks
from tricouple.numeric import (
    blocks,
    final,
    full_precision,
    ieee_products,
    never_compiled,
    on_host,
    wide_dtype,
)
from tricouple.ot.forms import Linear
from tricouple.ot.plans import PairPlan, Plan
from tricouple.ot.scores import Scores
from tricouple.ot.solver import Sweeps

EDGES = ((0, 1), (0, 2), (1, 2))  # edge x + y − 1 is between x and y

_SINGLE = 35.0  # up to this c entries of the product, at least exp(−2c), are normal in float32
_HEIGHT = 64  # rows of a tile
_ALL = slice(None)
_Update = tuple[int, list[Tensor]]  # of x, 0, or y, 1; f_x and f_y after it, for the base of a pair


@dataclass(frozen=True, eq=False, repr=False)
class MultiModalPlan(Plan):
    """The entropic plan of three modalities, ``P_ijk = exp(Σ_edges c s + f_i + f_j + f_k)``.

    Never stored as a tensor: it is its potentials and the embeddings. ε is 1: the cost is −Σ c s.

    Attributes:
        names: Of the modalities; all else is in their order.
        units: Unit vectors, (N, d) each.
        sharpness: c of the edges 01, 02, 12, (3,).
        potentials: f, (N,) each; differentiable in embeddings and sharpness.
        imposed, n_iters, tol: The uniform marginals; sweeps done; tolerance asked for, if any.
    """

    names: tuple[str, ...]
    units: tuple[Tensor, ...]
    sharpness: Tensor

    def pair_marginal(self, first: str, second: str) -> Tensor:
        """The plan summed over the third modality, (N, M): one product.

        The third gallery is a bridge: a pair has mass if both are near the same third samples.
        """
        (x, y, z), scores, f = self._of(first, second)
        with torch.no_grad(), ieee_products(self.sharpness.device):
            pair = _Pair(scores, x, y, f[z])
            found, imposed = tuple(pair.shifted(f[x], f[y])), (self.imposed[x], self.imposed[y])
            return PairPlan(1.0, found, imposed, self.n_iters, self.tol, pair.base, True).dense()

    def conditional(
        self, given: tuple[str, str], target: str, pairs: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """P(k | i, j) of samples k of the target, the third modality, shape (queries, N).

        It is the softmax of two scores and a potential, ``S_ik + S_jk + f_k``: no N³ product.
        Queries are the ``pairs`` (i, j) of indices in the ``given``, or row i with row i.
        """
        (x, y, z), scores, f = self._of(*given)
        if target != self.names[z]:
            raise ValueError(f"the target beside {given} is {self.names[z]!r}, got {target!r}")
        if pairs is None and len(f[x]) != len(f[y]):
            raise ValueError(f"{given} have unequal numbers of samples: pass pairs=(i, j)")
        i, j = (_ALL, _ALL) if pairs is None else pairs
        with torch.no_grad(), ieee_products(self.sharpness.device):
            logs = torch.mm(*scores.factors(x, z, i)).addmm_(*scores.factors(y, z, j))
            return logs.add_(f[z] - f[z].amax()).softmax(1)

    def marginals(self) -> tuple[Tensor, ...]:
        """The plan's own."""
        pair = self.pair_marginal(*self.names[:2])
        return pair.sum(1), pair.sum(0), self.pair_marginal(*self.names[::2]).sum(0)

    def _of(self, *given: str) -> tuple[tuple[int, int, int], _Scores, list[Tensor]]:
        if len({*given}) != 2 or not {*given} <= {*self.names}:
            raise ValueError(f"expected two different modalities of {self.names}, got {given}")
        x, y = map(self.names.index, given)
        scores = _Scores(self.sharpness.detach(), [unit.detach() for unit in self.units])
        return (x, y, 3 - x - y), scores, [f.detach() for f in self.potentials]


@never_compiled
def multimodal_sinkhorn(
    embeddings: Mapping[str, Tensor],
    sharpness: float | Tensor = 10.0,
    *,
    n_iters: int = 100,
    tol: float | None = None,
    inner: int = 5,
    gradient: Literal["unrolled", "envelope"] = "unrolled",
) -> MultiModalPlan:
    """Solve ``max Σ_ijk P_ijk Σ_edges c s + H(P)`` over plans with uniform marginals.

    Args:
        embeddings: Three matrices by name, (N, d), of one width; they need not be normalised, and
            numbers of rows may differ.
        sharpness: c ≥ 0; a number, or a tensor of one or three elements, which receives its
            gradient; edges are 01, 02 and 12 in the order of the modalities.
        n_iters: Sweeps over the three modalities, at most.
        tol: Stop when the marginal error (L1) is below this.
        inner: Pairs of updates per product of matrices: N² time each, where a product takes N³.
        gradient: Of the potentials: ``"unrolled"`` or ``"envelope"``.

    Example:
        >>> rows = {name: torch.randn(6, 3) for name in ("image", "text", "audio")}
        >>> plan = multimodal_sinkhorn(rows, sharpness=5)
        >>> plan.pair_marginal("image", "audio").shape, plan.converged
        (torch.Size([6, 6]), True)
    """
    how = ProductSweeps(n_iters, tol, gradient, inner=inner)
    if len(names := check_modalities(embeddings)) != 3:
        raise ValueError(f"a plan takes three modalities, got {names}")
    c = edge_sharpness(sharpness, 3, embeddings[names[0]])
    units = unit_vectors(embeddings, c)
    c = c.to(units[0].device)
    *f, done = potentials(c, *units, how)
    imposed = tuple(torch.full_like(each, 1 / len(each)) for each in f)
    return MultiModalPlan(1.0, tuple(f), imposed, int(done), tol, tuple(names), tuple(units), c)


# --- arguments ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProductSweeps(Sweeps):
    """How a plan of three modalities is solved."""

    inner: int = 1  # pairs of updates per product

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("gradient", self.gradient, ("unrolled", "envelope"))
        checks.count("inner", self.inner)


def check_modalities(embeddings: Mapping[str, Tensor]) -> list[str]:
    """The names of two matrices or more, of one width, on one device."""
    names = [*embeddings] if isinstance(embeddings, Mapping) else [type(embeddings).__name__]
    if len(names) < 2:
        raise ValueError(f"embeddings must be a dict of two modalities or more, got {names}")
    for name, values in embeddings.items():
        checks.matrix(f"embeddings[{name!r}]", values)
    spaces = {name: (e.shape[1], str(e.device)) for name, e in embeddings.items()}
    if len({*spaces.values()}) > 1:
        raise ValueError(f"embeddings must have one width and one device, got {spaces}")
    return names


def edge_sharpness(sharpness: float | Tensor, edges: int, like: Tensor) -> Tensor:
    """C of each edge, (edges,), differentiable in a sharpness that is a tensor; where that is."""
    if not isinstance(sharpness, Tensor):
        sharpness = torch.tensor(float(sharpness), dtype=torch.float64, device="cpu")
    c = sharpness.to(wide_dtype(like.device))
    if c.numel() not in (1, edges):
        raise ValueError(f"sharpness must have 1 or {edges} elements, one per edge: {c.numel()}")
    if on_host(c) and not bool(((c >= 0) & (c < torch.inf)).all()):
        raise ValueError(f"sharpness must be finite and >= 0, got {c.tolist()}")
    return c.reshape(-1).expand(edges)


def unit_vectors(embeddings: Mapping[str, Tensor], c: Tensor) -> list[Tensor]:
    """Unit rows, in float64 where c is known to be too large for float32."""
    rows, wide = [*embeddings.values()], on_host(c) and float(c.detach().amax()) > _SINGLE
    wide = wide or any(values.dtype == torch.float64 for values in rows)
    work = wide_dtype(rows[0].device) if wide else torch.float32
    later, pairs = checks.Deferred(full=on_host(rows[0])), embeddings.items()
    return [batch.unit_vectors(f"embeddings[{name!r}]", e.to(work), later) for name, e in pairs]


# --- sweeps and their adjoint ---------------------------------------------------------------------


class _Scores(NamedTuple):
    """S = c u_x·u_y of every pair x, y."""

    sharpness: Tensor  # c of each edge
    units: list[Tensor]  # u
    gradient: Sequence[Tensor] = ()  # of c and of each u, in the backward pass

    def factors(self, x: int, y: int, rows: Any = _ALL) -> tuple[Tensor, Tensor]:
        """The matrices whose product is S of some rows of x with all of y."""
        left = self.units[x][rows]
        return left * self.sharpness[x + y - 1].to(left.dtype), self.units[y].T

    def pull(self, x: int, y: int, rows: slice, dS: Tensor) -> None:
        """Add to the gradient what some rows of ∂/∂S give."""
        (scaled, there), edge = self.factors(x, y, rows), x + y - 1
        pulled, (dc, *du) = torch.mm(dS, there.T), self.gradient
        dc[edge] += (pulled * self.units[x][rows]).sum(dtype=dc.dtype)
        du[x][rows] += pulled.mul_(self.sharpness[edge].to(dS.dtype))
        du[y].addmm_(dS.T, scaled)


class _Pair:
    """L of (1) as a plan of pairs, L = base + a number per row + one per column.

    The factors of its product are scaled by row and column maxima: the largest term of an entry is
    then at least exp(−2c), whatever the potentials. The numbers are float64: large parts cancel.
    """

    def __init__(self, scores: _Scores, x: int, y: int, f_z: Tensor) -> None:
        self.scores, self.axes, highest = scores, (x, y, 3 - x - y), f_z.amax()
        right = torch.mm(*scores.factors(3 - x - y, y))
        columns = right.amax(0)
        self.right, self.f_z = right.sub_(columns).exp_(), (f_z - highest).to(right.dtype)
        n, m = len(scores.units[x]), len(columns)
        self.base, heights = right.new_empty(n, m), f_z.new_empty(n)
        for rows, left, tops in self._left():
            torch.mm(left, right, out=self.base[rows])
            heights[rows] = tops.to(f_z.dtype)
        # Beyond the guarantee terms are small, but not zero.
        self.base.clamp_min_(1e6 * torch.finfo(right.dtype).tiny).log_()
        self.base.addmm_(*scores.factors(x, y))
        self.shifts = heights, columns.to(f_z.dtype) + highest
        own, entries = torch.full((n,), -1, device=right.device), _HEIGHT * m
        kept = Scores(self.base, None, own, right.dtype, keep=False, tile_entries=entries)
        self.form = Linear(kept, 1.0, 2)

    def _left(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows of the first factor of the product, and the logarithms of their maxima."""
        x, _, z = self.axes
        for rows in blocks(len(self.scores.units[x]), _HEIGHT):
            left = torch.mm(*self.scores.factors(x, z, rows)).add_(self.f_z)
            tops = left.amax(1)
            yield rows, left.sub_(tops[:, None]).exp_(), tops

    def shifted(self, *f: Tensor) -> list[Tensor]:
        """Potentials for the base."""
        return [potential + shift for potential, shift in zip(f, self.shifts, strict=True)]

    def adjoint(self, updates: Sequence[_Update], df: list[Tensor]) -> None:
        """Walk the updates backwards: the adjoint of (2), in ``df``, then of (1)."""
        (x, y, z), scores, dL = self.axes, self.scores, torch.zeros_like(self.base)
        for axis, after in reversed(updates):
            here, there = (x, y) if axis == 0 else (y, x)
            w = -len(df[here]) * df[here]  # dL is the plan after the update times w
            pushed = self.form.push(after, (w, None) if axis == 0 else (None, w), dL)
            df[here], df[there] = torch.zeros_like(w), df[there] + pushed[1 - axis]
        scores.pull(x, y, _ALL, dL)
        ratio = self.base.neg_().addmm_(*scores.factors(x, y)).exp_().mul_(dL)  # dL over product
        del dL
        d_right = torch.zeros_like(self.right)
        for rows, left, _ in self._left():
            d_right.addmm_(left.T, ratio[rows])
            d_left = torch.mm(ratio[rows], self.right.T).mul_(left)
            df[z] = df[z] + d_left.sum(0)
            scores.pull(x, z, rows, d_left)
        scores.pull(z, y, _ALL, d_right.mul_(self.right))


def _solve(scores: _Scores, how: ProductSweeps) -> tuple[list[Tensor], list[Any]]:
    """The potentials, and of each product x, y, f_z and the updates that it served."""
    wide, steps = scores.sharpness.dtype, list[Any]()
    f = [unit.new_zeros(len(unit), dtype=wide) for unit in scores.units]
    for update in range(0, 3 * how.n_iters, 2):
        x, y = update % 3, (update + 1) % 3
        pair, updates, moved = _Pair(scores, x, y, f[3 - x - y]), list[_Update](), list[Any]()
        before = pair.shifted(f[x], f[y])
        for _ in range(how.inner):
            logs = [torch.full_like(each, -math.log(len(each))) for each in before]
            after, error = pair.form.sweep(before, logs, watch=True)
            updates += [(0, [after[0], before[1]]), (1, after)]
            # How much mass the updates move: z was right before, no marginal is off by more now.
            moved += [error, torch.expm1(before[1] - after[1]).abs().mean()]
            before = after
        if update + 1 == 3 * how.n_iters:  # the last update is one of x alone
            updates.pop()
        steps.append((x, y, f[3 - x - y], updates))
        f[x], f[y] = (new - shift for new, shift in zip(updates[-1][1], pair.shifts, strict=True))
        del pair  # before the next one is made
        if update and how.tol is not None and float(sum(moved)) <= how.tol:
            break
    return f, steps


class _Potentials(torch.autograd.Function):
    @staticmethod
    @never_compiled
    def forward(ctx: Any, sharpness: Tensor, *rest: Any) -> tuple[Any, ...]:
        *units, how = rest
        with ieee_products(sharpness.device):
            f, steps = _solve(_Scores(sharpness, units), how)
        ctx.save_for_backward(sharpness, *units)
        ctx.steps, ctx.rule = steps, how.gradient
        return *f, min(how.n_iters, math.ceil(len(steps) * 2 / 3))

    @staticmethod
    @full_precision
    @never_compiled
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        sharpness, *units = ctx.saved_tensors
        gradient = [torch.zeros_like(values) for values in ctx.saved_tensors]
        scores, df, steps = _Scores(sharpness, units, gradient), [*cotangents[:3]], ctx.steps
        with torch.no_grad():
            if ctx.rule == "envelope":
                # Danskin's rule, where cotangents are the plan's marginals times their total: the
                # adjoint of the last update alone, with weights −total.
                *pair, updates = steps[-1]
                steps, last, total = [(*pair, updates[-1:])], pair[updates[-1][0]], df[0].sum()
                df = [torch.zeros_like(part) for part in df]
                df[last] += total / len(df[last])
            for x, y, f_z, updates in reversed(steps):
                _Pair(scores, x, y, f_z).adjoint(updates, df)
        return *final(gradient, [*cotangents[:3], sharpness, *units]), None


potentials: Any = _Potentials.apply
"""Of sharpness (3,), three matrices of unit vectors and ``how``: f of each, and the sweeps done."""
