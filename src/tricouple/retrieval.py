"""Retrieval without hubs: a potential for each gallery item, added to its cosines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import unit_vectors
from tricouple.numeric import compute_dtype, wide_dtype
from tricouple.ot.forms import Linear
from tricouple.ot.scores import Scores, blocks
from tricouple.ot.solver import Sweeps, solve

_TILE = 1 << 22  # scores of a tile

DEFAULT_GRID = (5.0, 10.0, 20.0, 40.0)


@dataclass(frozen=True, eq=False, repr=False)
class Debiased:
    """Scores of queries and a gallery without its hubs, ``⟨q, x_j⟩ + bias_j``, of unit vectors.

    Attributes:
        gallery: x, unit vectors, shape (M, d).
        bias: Shape (M,), with mean 0; negative for hubs. Any index of inner products can take it:
            append it to x, and 1 to the queries.
    """

    gallery: Tensor
    bias: Tensor

    def __call__(self, queries: Tensor) -> Tensor:
        """Scores of queries, (N, d), which need not be normalised, shape (N, M)."""
        return torch.cat([tile for _, tile in _tiles(queries, self.gallery, self.bias)])

    def topk(self, queries: Tensor, k: int = 10) -> tuple[Tensor, Tensor]:
        """The k highest scores of each query and their items, (N, k) each, a tile at a time."""
        checks.count("k", k)
        k = min(k, len(self.gallery))
        found = [tile.topk(k) for _, tile in _tiles(queries, self.gallery, self.bias)]
        scores, items = zip(*found, strict=True)
        return torch.cat(scores), torch.cat(items)

    def __repr__(self) -> str:
        """How many items, and how much the bias differs."""
        low, high = self.bias.aminmax()
        return f"Debiased({len(self.gallery)} items, bias {float(low):.3f} to {float(high):.3f})"


@torch.no_grad()
def debias(bank: Tensor, gallery: Tensor, sharpness: float = 20.0, n_iters: int = 50) -> Debiased:
    """Learn a potential for each gallery item from a bank of queries, such as those of training.

    The plan of gallery and bank, ``P_jb = exp(c ⟨x_j, z_b⟩ + g_j + f_b)`` with uniform marginals;
    the bias of item j is g_j/c, less its mean. With ``n_iters=1`` that is the inverted softmax of
    QB-Norm, ``g_j = −log Σ_b exp(c ⟨x_j, z_b⟩)``.

    Args:
        bank: Queries z, shape (B, d), like those to come; they need not be normalised.
        gallery: Items x, shape (M, d).
        sharpness: c; see ``choose_sharpness``.
        n_iters: Sweeps, gallery first.

    Returns:
        What scores new queries, one at a time or many: ``scores(queries)``, (N, M), or
        ``scores.topk(queries, k)``.

    Example:
        >>> bank, gallery = torch.randn(50, 4), torch.randn(9, 4)
        >>> scores = debias(bank, gallery, sharpness=20)
        >>> scores(torch.randn(3, 4)).shape, scores.topk(torch.randn(3, 4), k=2)[1].shape
        (torch.Size([3, 9]), torch.Size([3, 2]))
    """
    x = _unit("gallery", gallery)
    z = _unit("bank", bank, x)
    g = _potentials(x, z, sharpness, n_iters)[0] / sharpness
    return Debiased(x, (g - g.mean()).to(x.dtype))


@torch.no_grad()
def sinkhorn_scores(
    queries: Tensor, gallery: Tensor, sharpness: float = 20.0, n_iters: int = 50
) -> Tensor:
    """Scores by the plan of all queries and the gallery: transductive, it needs all queries.

    ``⟨z_i, x_j⟩ + (f_i + g_j)/c``, the logarithm of the plan over c: comparable over items and over
    queries. It fits where every item has about as many queries.

    Args:
        queries: z, shape (N, d); they need not be normalised.
        gallery: Items x, shape (M, d).
        sharpness: c.
        n_iters: Sweeps, gallery first.

    Returns:
        Shape (N, M).

    Example:
        >>> sinkhorn_scores(torch.randn(5, 4), torch.randn(9, 4)).shape
        torch.Size([5, 9])
    """
    x = _unit("gallery", gallery)
    z = _unit("queries", queries, x)
    g, f = (part / sharpness for part in _potentials(x, z, sharpness, n_iters))
    parts = [tile.add_(f[rows, None]) for rows, tile in _tiles(z, x, g)]
    return torch.cat(parts)


@torch.no_grad()
def choose_sharpness(
    queries: Tensor,
    gallery: Tensor,
    query_ids: checks.Labels,
    gallery_ids: checks.Labels,
    bank: Tensor | None = None,
    grid: Sequence[float] = DEFAULT_GRID,
    n_iters: int = 50,
) -> float | None:
    """Choose c on validation pairs by recall@1; None if no c of the grid helps.

    A bank unlike the queries makes retrieval worse. A c is taken only if it answers more queries
    right than the plain cosine by more than one standard error: ``won − lost > √(won + lost)``,
    of the queries that one of both answers right.

    Args:
        queries: Of validation, shape (N, d).
        gallery: Items, shape (M, d).
        query_ids: Shape (N,); items of the same id answer the query.
        gallery_ids: Shape (M,).
        bank: As in ``debias``; without one the queries themselves, as in ``sinkhorn_scores``.
        grid: The c to try.
        n_iters: As in ``debias``.

    Example:
        >>> z, ids = torch.eye(4), torch.arange(4)
        >>> print(choose_sharpness(z, z, ids, ids))  # cosine is right already
        None
    """
    x = _unit("gallery", gallery)
    z = _unit("queries", queries, x)
    of_queries = checks.labels("query_ids", query_ids, len(z), z.device)
    of_items = checks.labels("gallery_ids", gallery_ids, len(x), x.device)
    if not bool(torch.isin(of_queries, of_items).any()):
        raise ValueError("no validation pair: no query_ids are among gallery_ids")
    if not len(grid):
        raise ValueError("grid must hold at least one sharpness")
    plain = _right(Debiased(x, x.new_zeros(len(x))), z, of_queries, of_items)
    best: tuple[float, float | None] = (0.0, None)
    for c in grid:
        found = _right(debias(z if bank is None else bank, x, c, n_iters), z, of_queries, of_items)
        won, lost = int((found & ~plain).sum()), int((plain & ~found).sum())
        if won - lost > max(best[0], math.sqrt(won + lost)):
            best = won - lost, float(c)
    return best[1]


def _right(scores: Debiased, queries: Tensor, query_ids: Tensor, item_ids: Tensor) -> Tensor:
    """Whether the first item has the query's id, (N,)."""
    return item_ids[scores.topk(queries, 1)[1][:, 0]] == query_ids


def _unit(name: str, values: Tensor, gallery: Tensor | None = None) -> Tensor:
    checks.matrix(name, values)
    if gallery is not None and gallery.shape[1] != values.shape[1]:
        raise ValueError(
            f"{name} has {values.shape[1]} dimensions, the gallery {gallery.shape[1]}: they must "
            "live in one space"
        )
    values = values.detach().to(compute_dtype(values.dtype))
    return unit_vectors(name, values, checks.Deferred(read=True))


def _potentials(x: Tensor, z: Tensor, sharpness: float, n_iters: int) -> list[Tensor]:
    """Log-scalings of gallery and bank, (M,) and (B,), in tiles."""
    checks.positive_number("sharpness", sharpness)
    dtype, wide = torch.promote_types(x.dtype, z.dtype), wide_dtype(x.device)
    own = torch.full((len(x),), -1, device=x.device)
    scores = Scores(x.to(dtype), z.to(dtype), own, dtype, keep=False)
    masses = [torch.full((n,), 1 / n, dtype=wide, device=x.device) for n in scores.shape]
    return solve(Linear(scores, float(sharpness), 2), masses, Sweeps(n_iters)).potentials


def _tiles(queries: Tensor, gallery: Tensor, bias: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Scores of some queries at a time."""
    z = _unit("queries", queries, gallery).to(gallery.dtype)
    for rows in blocks(len(z), _TILE // len(gallery)):
        yield rows, torch.addmm(bias.to(gallery.dtype), z[rows], gallery.T)
