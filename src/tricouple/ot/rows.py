"""The primitive: rows of exp(c·s + v) with their largest term apart, and two passes made of it.

A row of weights exp(c·s_ij + v_j), j ≠ own_i, is split into its largest term, j*, and the rest:

    softmax_ij = top_i (j = j*),   softmax_ij = rest_i · R_ij (others),   top + rest = 1, Σ_j R = 1.

So "all but j", 1 − rest·R_j, is at least a half for every j but j*, and for j* it is ``rest``:
nothing cancels. Exponents are added in float64 and R is relative to its own largest term: nothing
underflows, and float32 is enough for R at any sharpness (mathematics §2).

``update`` and ``push`` are the two passes over a tile of rows, here in PyTorch for every device and
in ``c/primitive.h``, call for call, for the CPU.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tricouple.numeric import fill_own
from tricouple.ot import native

Number = float | Tensor
Vectors = list[Tensor]
Weights = Sequence[Tensor | None]
"""One weight vector per axis, None for zeros."""

_BLOCK = 16  # rows whose columns are added up together, as in primitive.h


class Soft(NamedTuple):
    """Softmax of some rows, the largest term apart."""

    at: Tensor  # j*, shape (R, 1)
    total: Tensor  # log Σ_j exp(c s + v), shape (R, 1)
    top: Tensor  # log of the largest term's share
    rest: Tensor  # log of the share of all others
    others: Tensor  # R, shape (R, M), 0 at j* and at own


def exponents(c: Number, tile: Tensor, v: Tensor, own: Tensor) -> Tensor:
    """``c s_ij + v_j``, shape (R, M), in the dtype of v; −∞ at own_i."""
    return fill_own(v + tile.to(v.dtype) * c, own, -torch.inf)


def soft(logs: Tensor, dtype: torch.dtype) -> Soft:
    """Of exp(logs), shape (R, M), which are overwritten; R in ``dtype``."""
    high, at = logs.max(1, keepdim=True)
    logs.scatter_(1, at, -torch.inf)
    rest = torch.logsumexp(logs, 1, keepdim=True)
    others = (logs - finite(rest)).to(dtype).exp_()
    total = torch.logaddexp(high, rest)
    return Soft(at, total, high - finite(total), rest - finite(total), others)


def update(
    c: Number, tile: Tensor, own: Tensor, potentials: Vectors, log_mass: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A pass of a sweep over some rows: set φ and add up the columns for the next axis.

    Columns: ``log Σ_i exp(φ_i + c s_ij) Σ_{k≠j} exp(−c s_ik + g_k)`` (marginal 2; 3 with −c).
    Rows: ``φ_i = log_mass_i − log Σ_j exp(c s_ij + f_j) Σ_{k≠j} …`` (marginal 1).
    Pairs have no g, and no sum over k. Without ``log_mass`` φ, (R,), is kept.

    Returns φ; the columns' logarithms; and the logarithms of the row masses before φ was set.
    """
    phi, f, *others = potentials
    g = others[0] if others else None
    if native.in_c(tile):
        (n, m), threads = tile.shape, native.threads(tile.numel())
        phi, before = phi.clone(), None if log_mass is None else torch.empty_like(phi)
        peak, sums = f.new_full((threads, m), -torch.inf), f.new_zeros(threads, m)
        top, work = f.new_empty(threads, m), tile.new_empty(threads, 2 + _BLOCK, m)
        arrays = tile, own, phi, f, g, log_mass, before, peak, sums, top, work
        native.call("update", tile, n, m, threads, float(c), *arrays)
        return phi, torch.logsumexp(peak + sums.log(), 0), before
    q = None if g is None else soft(exponents(-c, tile, g, own), tile.dtype)
    marginal = None
    if log_mass is not None:  # marginal 1
        p = soft(exponents(c, tile, f, own), tile.dtype)
        sums = p.total if q is None else p.total + q.total + log_distinct(p, q)
        marginal = phi + sums[:, 0]
        phi = torch.where(log_mass > -torch.inf, log_mass - sums[:, 0], -torch.inf)
    logs = exponents(c, tile, phi[:, None], own)
    if q is not None:  # a r⁻, without k = j
        logs += q.total + all_but(q)
    return phi, torch.logsumexp(logs, 0), marginal


def push(
    c: Number, tile: Tensor, own: Tensor, potentials: Vectors, weights: Weights, into: Tensor | None
) -> Vectors:
    """Carry weights w on the axes through the plan: (J − diag p) w of mathematics §4, some rows.

    With A = exp(φ + log r⁺ + log r⁻), p and q the softmax of positives and of negatives,
    W⁺ = Σ p w¹, W⁻ = Σ q w², P¹² = A p (1 − q) and P¹³ = A q (1 − p):

        out⁰_i = Σ_j P¹²_ij w¹_j + P¹³_ij w²_j
        out¹_j = Σ_i P¹²_ij w⁰_i + A p_j (W⁻ − q_j w²_j)
        out²_j = Σ_i P¹³_ij w⁰_i + A q_j (W⁺ − p_j w¹_j)

    ``into``, (R, M), receives ∂/∂s_ij of Σ w · marginals, c times
    (w⁰ + w¹) P¹² + A p (W⁻ − q w²) − (w⁰ + w²) P¹³ − A q (W⁺ − p w¹). Pairs: q = 0.
    """
    phi, f, *others = potentials
    g = others[0] if others else None
    if native.in_c(tile):
        (n, m), threads = tile.shape, native.threads(tile.numel())
        out, columns = f.new_empty(n), f.new_zeros(2, threads, m)
        given = tile, own, phi, f, g, *(*weights, None)[:3]
        ends = out, *columns, into, tile.new_empty(threads, 6, m)
        native.call("push", tile, n, m, threads, float(c), *given, *ends)
        return [out, *columns.sum(1)][: len(potentials)]
    w0, w1, w2 = (0.0 if w is None else w for w in (*weights, None)[:3])
    w0 = w0[:, None] if isinstance(w0, Tensor) else w0
    logs_p = exponents(c, tile, f, own)
    p = soft(logs_p.clone(), tile.dtype)
    if g is None:
        near = (phi[:, None] + logs_p).exp_()  # A p
        forces = near * (w0 + w1)
        outs = [(near * w1).sum(1), (near * w0).sum(0)]
    else:
        logs_q = exponents(-c, tile, g, own)
        q = soft(logs_q.clone(), tile.dtype)
        mean_p, mean_q = means(p, w1), means(q, w2)  # over all but j
        near = (phi[:, None] + q.total + logs_p + all_but(q)).exp_().nan_to_num_(0.0)  # P¹²
        far = (phi[:, None] + p.total + logs_q + all_but(p)).exp_().nan_to_num_(0.0)  # P¹³
        to_near, to_far = w0 + mean_q, w0 + mean_p
        forces = near * (to_near + w1) - far * (to_far + w2)
        outs = [(near * w1 + far * w2).sum(1), (near * to_near).sum(0), (far * to_far).sum(0)]
    if into is not None:
        into.add_((forces * c).to(into.dtype))
    return outs


def shares(x: Soft) -> Tensor:
    """The softmax itself, but 0 at the largest term; float64."""
    return x.rest.exp() * x.others


def all_but(x: Soft) -> Tensor:
    """log(1 − softmax_j), exactly."""
    return torch.log1p(-shares(x)).scatter(1, x.at, x.rest)


def means(x: Soft, weights: Number) -> Number:
    """The mean of weights over all but j, for every j."""
    if not isinstance(weights, Tensor):
        return 0.0
    part = shares(x)
    rest = (x.others * weights).sum(1, keepdim=True)
    mean = x.rest.exp() * rest + x.top.exp() * weights[x.at]
    return ((mean - part * weights) / (1 - part)).scatter(1, x.at, rest)


def log_distinct(p: Soft, q: Soft) -> Tensor:
    """log(1 − Σ_j p_j q_j): a positive and a negative, drawn apart, are not the same sample."""
    rest_p, rest_q = p.rest.exp(), q.rest.exp()
    meet = (p.others * q.others).sum(1, keepdim=True)
    same = torch.logaddexp(p.rest + torch.log1p(-rest_q * meet), p.top + q.rest)
    here, there = rest_q * q.others.gather(1, p.at), rest_p * p.others.gather(1, q.at)
    apart = p.top.exp() * (1 - here) + there * rest_q + rest_p - there - rest_p * rest_q * meet
    return torch.where(p.at == q.at, same, apart.log())


def finite(logs: Tensor) -> Tensor:
    """Logarithms with 0 for −∞."""
    return torch.where(logs == -torch.inf, 0.0, logs)
