"""The plan of three modalities by matrix products, without its N³ tensor.

With scores S = c·cosine of the three pairs and potentials f it is, with uniform marginals m,

    P_ijk = exp(S_ij + S_ik + S_jk + f_i + f_j + f_k).

Summing one modality z out leaves pairs of the other two, x and y,

    L = S_xy + log( exp(S_xz + f_z) exp(S_zy) ),                                    (1)
    f_x = log m_x − lse_y(L + f_y),      f_y = log m_y − lse_x(L + f_x),            (2)

one product of N×N matrices for two updates. In the order (x, y) = 01, 20, 12, 01, … the updates are
0 1 2 0 1 2 …, those of the dense algorithm: three products for two sweeps, and three in the adjoint
of two updates. Two N×N matrices are stored at most, three if several updates share a product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tricouple import batch, checks
from tricouple.numeric import (
    final,
    full_precision,
    ieee_products,
    never_compiled,
    on_host,
    wide_dtype,
)
from tricouple.ot.plans import Plan
from tricouple.ot.scores import blocks
from tricouple.ot.solver import Sweeps

EDGES = ((0, 1), (0, 2), (1, 2))  # edge x + y − 1 is between x and y

_SINGLE = 35.0  # up to this c entries of the product, at least exp(−2c), are normal in float32
_HEIGHT = 64  # rows of a tile
_ALL = slice(None)


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
        (x, y, z), problem, f = self._of(first, second)
        with torch.no_grad(), ieee_products(self.sharpness.device):
            pair = _Pair(problem, x, y, f[z])
            return torch.cat([pair.logs(tile, f[x], f[y]).exp_() for tile in pair.tiles()])

    def conditional(
        self, given: tuple[str, str], target: str, pairs: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """P(k | i, j) of samples k of the target, the third modality, shape (queries, N).

        It is the softmax of two scores and a potential, ``S_ik + S_jk + f_k``: no N³ product.
        Queries are the ``pairs`` (i, j) of indices in the ``given``, or row i with row i.
        """
        (x, y, z), problem, f = self._of(*given)
        if target != self.names[z]:
            raise ValueError(f"the target beside {given} is {self.names[z]!r}, got {target!r}")
        if pairs is None and len(f[x]) != len(f[y]):
            raise ValueError(f"{given} have unequal numbers of samples: pass pairs=(i, j)")
        i, j = (_ALL, _ALL) if pairs is None else pairs
        with torch.no_grad(), ieee_products(self.sharpness.device):
            scores = problem.scores(x, z, i) + problem.scores(y, z, j)
            return scores.add_(f[z] - f[z].amax()).softmax(1)

    def marginals(self) -> tuple[Tensor, ...]:
        """The plan's own."""
        pair = self.pair_marginal(*self.names[:2])
        return pair.sum(1), pair.sum(0), self.pair_marginal(*self.names[::2]).sum(0)

    def _of(self, *given: str) -> tuple[tuple[int, int, int], _Problem, list[Tensor]]:
        if len({*given}) != 2 or not {*given} <= {*self.names}:
            raise ValueError(f"expected two different modalities of {self.names}, got {given}")
        x, y = map(self.names.index, given)
        problem = _Problem([unit.detach() for unit in self.units], self.sharpness.detach())
        return (x, y, 3 - x - y), problem, [f.detach() for f in self.potentials]


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
    if not isinstance(embeddings, Mapping) or len(embeddings) < 2:
        found = [*embeddings] if isinstance(embeddings, Mapping) else type(embeddings).__name__
        raise ValueError(f"embeddings must be a dict of two modalities or more, got {found}")
    for name, values in embeddings.items():
        checks.matrix(f"embeddings[{name!r}]", values)
    spaces = {name: (e.shape[1], str(e.device)) for name, e in embeddings.items()}
    if len({*spaces.values()}) > 1:
        raise ValueError(f"embeddings must have one width and one device, got {spaces}")
    return list(embeddings)


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


class _Problem(NamedTuple):
    units: list[Tensor]
    sharpness: Tensor

    def scores(self, x: int, y: int, rows: Any = _ALL) -> Tensor:
        """S of some rows of x with all of y."""
        left = self.units[x][rows]
        return torch.mm(left * self.sharpness[x + y - 1].to(left.dtype), self.units[y].T)


class _Tile(NamedTuple):
    """Rows of L: base + heights of its rows + widths of the pair, apart for the sake of digits."""

    rows: slice
    left: Tensor  # the first factor of the product
    product: Tensor
    base: Tensor
    heights: Tensor


class _Pair:
    """L of (1), in tiles of rows of x.

    The factors of its product are scaled by row and column maxima: the largest term of an entry is
    then at least exp(−2c), whatever the potentials.
    """

    def __init__(self, problem: _Problem, x: int, y: int, f_z: Tensor, keep: bool = False) -> None:
        self.problem, self.axes, highest = problem, (x, y, 3 - x - y), f_z.amax()
        right = problem.scores(3 - x - y, y)
        columns = right.amax(0)
        self.right, self.f_z = right.sub_(columns).exp_(), (f_z - highest).to(right.dtype)
        self.widths = columns.to(f_z.dtype) + highest
        self.keep, self.kept = keep, dict[int, Tensor]()  # products, by their first row

    def tiles(self) -> Iterator[_Tile]:
        problem, (x, y, z) = self.problem, self.axes
        for rows in blocks(len(problem.units[x]), _HEIGHT):
            left = problem.scores(x, z, rows).add_(self.f_z)
            highest = left.amax(1)
            left.sub_(highest[:, None]).exp_()
            if (product := self.kept.get(rows.start)) is None:
                product = torch.mm(left, self.right)  # beyond the guarantee small, but not zero
                product.clamp_min_(1e6 * torch.finfo(product.dtype).tiny)
            if self.keep:
                self.kept[rows.start] = product
            base = product.log().add_(problem.scores(x, y, rows))
            yield _Tile(rows, left, product, base, highest)

    def logs(self, tile: _Tile, f_x: Tensor, f_y: Tensor) -> Tensor:
        """L + f_x + f_y of some rows. Vectors are float64: large parts of them cancel."""
        widths, dtype = self.widths + f_y, tile.base.dtype
        highest = widths.amax()
        heights = (tile.heights + f_x[tile.rows] + highest).to(dtype)
        return (tile.base + (widths - highest).to(dtype)).add_(heights[:, None])

    def plan(self, tile: _Tile, f_x: Tensor, f_y: Tensor, factors: Tensor) -> Tensor:
        """Factors times exp(L + f_x + f_y)."""
        return self.logs(tile, f_x, f_y).exp_().mul_(factors.to(tile.base.dtype))


# Updates from one product: x, y, f_z, and of each turn f_x after, f_y before and after.
_Step = tuple[int, int, Tensor, list[tuple[Tensor, Tensor, Tensor]]]


def _solve(problem: _Problem, how: ProductSweeps) -> tuple[list[Tensor], list[_Step]]:
    wide, steps = problem.sharpness.dtype, list[_Step]()
    f = [unit.new_zeros(len(unit), dtype=wide) for unit in problem.units]
    for update in range(0, 3 * how.n_iters, 2):
        x, y = update % 3, (update + 1) % 3
        steps.append((x, y, f[3 - x - y], []))
        pair, moved = _Pair(problem, x, y, f[3 - x - y], how.inner > 1), f[x].new_zeros(())
        for turn in range(how.inner):
            new, sums = torch.empty_like(f[x]), torch.full_like(f[y], -torch.inf)
            for tile in pair.tiles():
                logs = pair.logs(tile, f[x], f[y])
                excess = logs.logsumexp(1) + math.log(len(new))
                new[tile.rows] = f[x][tile.rows] - excess
                sums = torch.logaddexp(sums, logs.sub_(excess[:, None]).logsumexp(0))
            # The last of 3·n_iters updates may be one of x alone.
            alone = update + 1 == 3 * how.n_iters and turn + 1 == how.inner
            after = f[y] if alone else f[y] - sums - math.log(len(sums))
            steps[-1][3].append((new, f[y], after))
            # How much mass the updates move: z was right before, no marginal is off by more now.
            moved += torch.expm1(f[x] - new).abs().mean() + torch.expm1(f[y] - after).abs().mean()
            f[x], f[y] = new, after
        del pair  # before the next one is made
        if update and how.tol is not None and float(moved) <= how.tol:
            break
    return f, steps


def _unrolled(problem: _Problem, steps: list[_Step], df: list[Tensor], to: _Gradient) -> None:
    """Walk the updates backwards: the adjoint of (2), then of (1)."""
    for x, y, f_z, turns in reversed(steps):
        pair, z = _Pair(problem, x, y, f_z, len(turns) > 1), 3 - x - y
        d_right, done = torch.zeros_like(pair.right), list[tuple[Tensor, ...]]()
        for turn, (f_x, before, f_y) in reversed([*enumerate(turns)]):
            # dL is the plan after each update times −df/m: b, of the update of y, and a, of x.
            alone = f_y is before
            b = torch.zeros_like(df[y]) if alone else -len(f_y) * df[y]
            a, d_before = torch.empty_like(df[x]), df[y] * alone
            for tile in pair.tiles():
                rows = tile.rows
                dL = pair.plan(tile, f_x, f_y, b)
                a[rows] = -len(f_x) * (df[x][rows] + dL.sum(1))
                of_x = pair.plan(tile, f_x, before, a[rows, None])
                d_before += of_x.sum(0)
                if turn > 0:
                    continue
                dL += of_x
                for g_x, g_before, g_y, g_a, g_b in done:
                    dL += pair.plan(tile, g_x, g_y, g_b)
                    dL += pair.plan(tile, g_x, g_before, g_a[rows, None])
                to.add(x, y, rows, dL)
                ratio = dL.div_(tile.product)
                d_right.addmm_(tile.left.T, ratio)
                d_left = torch.mm(ratio, pair.right.T).mul_(tile.left)
                df[z] = df[z] + d_left.sum(0)
                to.add(x, z, rows, d_left)
            done.append((f_x, before, f_y, a, b))
            df[x], df[y] = torch.zeros_like(df[x]), d_before
        to.add(z, y, _ALL, d_right.mul_(pair.right))
        del pair, d_right  # before the next ones are made


def _envelope(problem: _Problem, f: tuple[Tensor, ...], total: Tensor, to: _Gradient) -> None:
    """Danskin's rule, where cotangents are the plan's marginals times their total."""
    for x, y in EDGES:
        pair = _Pair(problem, x, y, f[3 - x - y])
        for tile in pair.tiles():
            to.add(x, y, tile.rows, pair.plan(tile, f[x], f[y], -total))


class _Gradient:
    """∂/∂ embeddings and ∂/∂c, from tiles of ∂/∂S."""

    def __init__(self, problem: _Problem) -> None:
        self.problem, self.units = problem, [torch.zeros_like(unit) for unit in problem.units]
        self.sharpness = torch.zeros_like(problem.sharpness)

    def add(self, x: int, y: int, rows: slice, tile: Tensor) -> None:
        here, there = self.problem.units[x][rows], self.problem.units[y]
        edge, pulled = x + y - 1, torch.mm(tile, there)
        c = self.problem.sharpness[edge].to(tile.dtype)
        self.sharpness[edge] += (pulled * here).sum(dtype=self.sharpness.dtype)
        self.units[x][rows] += pulled.mul_(c)
        self.units[y].addmm_(tile.T, here * c)


class _Potentials(torch.autograd.Function):
    @staticmethod
    @never_compiled
    def forward(ctx: Any, sharpness: Tensor, *rest: Any) -> tuple[Any, ...]:
        *units, how = rest
        with torch.autocast(sharpness.device.type, enabled=False), ieee_products(sharpness.device):
            f, steps = _solve(_Problem(units, sharpness), how)
        ctx.save_for_backward(sharpness, *units)
        ctx.found, ctx.steps, ctx.rule = tuple(f), steps, how.gradient
        return *f, min(how.n_iters, math.ceil(len(steps) * 2 / 3))

    @staticmethod
    @full_precision
    @never_compiled
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        sharpness, *units = ctx.saved_tensors
        problem, df = _Problem(units, sharpness), list(cotangents[:3])
        with torch.no_grad():
            to = _Gradient(problem)
            if ctx.rule == "envelope":
                _envelope(problem, ctx.found, df[0].sum(), to)
            else:
                _unrolled(problem, ctx.steps, df, to)
        return *final([to.sharpness, *to.units], [*cotangents[:3], sharpness, *units]), None


potentials: Any = _Potentials.apply
"""Of sharpness (3,), three matrices of unit vectors and ``how``: f of each, and the sweeps done."""
