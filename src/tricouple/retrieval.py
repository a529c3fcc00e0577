"""Retrieval without hubs: a potential for each gallery item, added to its cosines."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import unit_vectors
from tricouple.numeric import blocks, compute_dtype, on_host, wide_dtype
from tricouple.ot.forms import Linear
from tricouple.ot.scaling import Kernel, Scaling
from tricouple.ot.scores import Scores
from tricouple.ot.solver import Sweeps, solve

_TILE = 1 << 22  # scores of a tile, and entries of the kernel that are stored


@dataclass(frozen=True, eq=False)
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
        return torch.cat([tile for _, tile in self.tiles(queries)])

    def topk(self, queries: Tensor, k: int = 10) -> tuple[Tensor, Tensor]:
        """The k highest scores of each query and their items, (N, k) each, a tile at a time."""
        checks.count("k", k)
        found = [tile.topk(min(k, tile.shape[1])) for _, tile in self.tiles(queries)]
        return torch.cat([part.values for part in found]), torch.cat([p.indices for p in found])

    def tiles(self, queries: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Scores of some queries at a time, and which queries these are."""
        z = _unit("queries", queries, self.gallery).to(self.gallery.dtype)
        for rows in blocks(len(z), _TILE // len(self.gallery)):
            yield rows, torch.addmm(self.bias, z[rows], self.gallery.T)


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
        n_iters: Iterations, gallery first.

    Returns:
        What scores new queries, one or many: ``scores(queries)``, or ``scores.topk(queries, k)``.

    Example:
        >>> scores = debias(torch.randn(50, 4), torch.randn(9, 4), sharpness=20)
        >>> scores(torch.randn(3, 4)).shape
        torch.Size([3, 9])
    """
    return _debiased("bank", bank, gallery, sharpness, n_iters)[0]


@torch.no_grad()
def sinkhorn_scores(
    queries: Tensor, gallery: Tensor, sharpness: float = 20.0, n_iters: int = 50
) -> Tensor:
    """Scores by the plan of all queries and the gallery: transductive, it needs all queries.

    ``⟨z_i, x_j⟩ + (f_i + g_j)/c`` up to a constant: log P_ij over c, comparable over items and over
    queries. It fits where every item has about as many queries. Arguments are those of ``debias``.

    Returns:
        Shape (N, M).

    Example:
        >>> sinkhorn_scores(torch.randn(5, 4), torch.randn(9, 4)).shape
        torch.Size([5, 9])
    """
    scores, f = _debiased("queries", queries, gallery, sharpness, n_iters)
    return torch.cat([tile.add_(f[rows, None]) for rows, tile in scores.tiles(queries)])


@torch.no_grad()
def choose_sharpness(
    queries: Tensor,
    gallery: Tensor,
    query_ids: checks.Labels,
    gallery_ids: checks.Labels,
    bank: Tensor | None = None,
    grid: Sequence[float] = (5.0, 10.0, 20.0, 40.0),
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
    x, bank = _unit("gallery", gallery), queries if bank is None else bank
    asked = checks.labels("query_ids", query_ids, len(queries), x.device)
    items = checks.labels("gallery_ids", gallery_ids, len(x), x.device)
    if not bool(torch.isin(asked, items).any()):
        raise ValueError("no validation pair: none of query_ids is among gallery_ids")
    if not len(grid):
        raise ValueError("grid must hold at least one sharpness")

    def right(scores: Debiased) -> Tensor:
        """Whether the first item has the query's id, (N,)."""
        return items[scores.topk(queries, 1)[1][:, 0]] == asked

    plain, most, chosen = right(Debiased(x, torch.zeros_like(x[:, 0]))), 0, None
    for c in grid:
        found = right(debias(bank, x, c, n_iters))
        won, lost = int((found & ~plain).sum()), int((plain & ~found).sum())
        if won - lost > max(most, math.sqrt(won + lost)):
            most, chosen = won - lost, float(c)
    return chosen


def _debiased(
    name: str, bank: Tensor, gallery: Tensor, sharpness: float, n_iters: int
) -> tuple[Debiased, Tensor]:
    """The potentials of the gallery, and f/c of the bank, by tiles."""
    checks.positive_number("sharpness", sharpness)
    x = _unit("gallery", gallery)
    z = _unit(name, bank, x).to(x.dtype)
    c, own = float(sharpness), torch.full((len(x),), -1, device=x.device)
    scores, wide = Scores(x, z, own, x.dtype, keep=False, stored=_TILE), wide_dtype(x.device)
    masses = [own.new_full((n,), 1 / n, dtype=wide) for n in scores.shape]
    form = Linear(scores, c, 2)
    kernel = Kernel.of(scores, c, c) if on_host(x) else None
    run = solve(form, masses, Sweeps(n_iters), kernel and Scaling(kernel, form))
    g, f = (part / c for part in run.potentials)
    return Debiased(x, (g - g.mean()).to(x.dtype)), f.to(x.dtype)


def _unit(name: str, values: Tensor, gallery: Tensor | None = None) -> Tensor:
    checks.matrix(name, values)
    if gallery is not None and gallery.shape[1] != values.shape[1]:
        raise ValueError(f"{name} has {values.shape[1]} dimensions, the gallery {gallery.shape[1]}")
    values = values.detach().to(compute_dtype(values.dtype))
    return unit_vectors(name, values, checks.Deferred(read=True))
