"""Small problems as the paper writes them: labels, Gram matrices, dense tensors, couplings.

One solver for plans of two or three marginals and any cost tensor, in float64 and the log-domain,
to convergence. All index tuples with a repeated index are excluded, as within one set of samples.
N³ entries: for small N only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple.shaping import Shaping, exponential, linear, log_sigmoid
from tricouple_lab.experiments.verify.setting import TOLERANCE, Criterion, worst

SWEEPS = 5000  # at most; a plan that needs more would be no proof of anything

SHAPINGS: dict[str, Shaping] = {
    "linear": linear,
    "log-sigmoid": log_sigmoid,
    "exponential": exponential,
    "tanh": lambda t: -torch.tanh(t),
    "cubic": lambda t: -t - t**3 / 3,
}
"""ψ: strictly decreasing and differentiable, convex or not."""


def by_name(shaping: str) -> str | Shaping:
    """ψ as the losses take it: a name where they know a faster way, else the function."""
    return shaping if shaping == "linear" else SHAPINGS[shaping]


def class_labels(sizes: tuple[int, ...]) -> Tensor:
    """Labels 0, 0, …, 1, 1, … with the given numbers of samples."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def balanced_labels(n_classes: int, per_class: int) -> Tensor:
    """Labels of K classes with b samples each."""
    return class_labels((per_class,) * n_classes)


def two_distance_gram(labels: Tensor, alpha: float, beta: float) -> Tensor:
    """The Gram matrix with α within and β across classes, shape (N, N)."""
    same = (labels[:, None] == labels).double()
    return (beta + (alpha - beta) * same).fill_diagonal_(1.0)


def etf_gram(labels: Tensor) -> Tensor:
    """The Gram matrix of collapsed classes on a simplex ETF."""
    n_classes = len(labels.unique())
    return two_distance_gram(labels, 1.0, -1 / (n_classes - 1))


def vectors(gram: Tensor) -> Tensor:
    """Rows whose inner products are a given Gram matrix, shape (N, N).

    Raises:
        ValueError: If the matrix is not positive semi-definite: no vectors have these products.
    """
    values, basis = torch.linalg.eigh(gram)
    if values[0] < -1e-9:
        raise ValueError(f"gram must be positive semi-definite, has eigenvalue {values[0]:.3g}")
    # The root of a rounding error is a hundred million times larger: cut it off.
    lengths = torch.where(values > 1e-12 * values[-1], values, 0.0).sqrt()
    return torch.mul(basis, lengths)


def loss_value(criterion: Criterion, labels: Tensor) -> Callable[[Tensor], float]:
    """Gram matrix ↦ loss of vectors that have it."""

    @torch.no_grad()
    def value(gram: Tensor) -> float:
        return float(criterion(vectors(gram), labels))

    return value


def gram(embeddings: Tensor) -> Tensor:
    """The cosines of all pairs, shape (N, N)."""
    unit = normalize(embeddings, dim=1)
    return unit @ unit.T


def two_distance_path(n_classes: int, per_class: int, count: int) -> list[tuple[float, float]]:
    """Pairs (α, β) with Δ = α − β increasing from the lowest possible value to the ETF's.

    On the path α = t, β = −t/(K−1) the Gram matrix has eigenvalues 1 − t and
    1 − t + b Δ: it exists down to the t where the latter vanishes.
    """
    lowest = -1 / (per_class * n_classes / (n_classes - 1) - 1)
    steps = torch.linspace(lowest, 1.0, count, dtype=torch.float64).tolist()
    return [(t, -t / (n_classes - 1)) for t in steps]


def random_unit(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """Uniform on the sphere, shape (n, dim)."""
    return normalize(torch.randn(n, dim, generator=generator, dtype=torch.float64), dim=1)


def average_over_symmetries(tensor: Tensor, labels: Tensor) -> Tensor:
    """The mean of C∘π over all π that keep the classes together (Γ of the paper).

    With balanced classes two entries with distinct indices can be carried into each other exactly
    if the same of their indices share a class; so the mean over the (b!)^K K! permutations is the
    mean over the entries of the same pattern. The tensor has two or three axes.
    """
    return _mean_by(tensor, _pattern(labels, tensor.dim()))


def average_within_classes(tensor: Tensor, labels: Tensor) -> Tensor:
    """The mean of C∘π over the permutations of the samples of each class, also unbalanced ones."""
    key = _pattern(labels, tensor.dim())
    n_classes = int(labels.max()) + 1
    for axis in range(tensor.dim()):
        shape = [-1 if other == axis else 1 for other in range(tensor.dim())]
        key = key * n_classes + labels.reshape(shape)
    return _mean_by(tensor, key)


def _pattern(labels: Tensor, order: int) -> Tensor:
    """A number for each entry that says which of its indices are equal, or of one class."""
    n = len(labels)
    relation = (labels[:, None] == labels).long()
    relation.fill_diagonal_(2)  # (N, N): 0 other class, 1 same class, 2 same sample
    if order == 2:
        return relation
    return relation.reshape(n, n, 1) + 3 * relation.reshape(n, 1, n) + 9 * relation.reshape(1, n, n)


def _mean_by(tensor: Tensor, key: Tensor) -> Tensor:
    _, codes = torch.unique(key, return_inverse=True)
    flat = codes.flatten()
    sums = torch.zeros(int(flat.max()) + 1, dtype=tensor.dtype).index_add(0, flat, tensor.flatten())
    return (sums / torch.bincount(flat))[codes]


# --- couplings -----------------------------------------------------------------------------------


def distinct(n: int, order: int) -> Tensor:
    """Whether the two or three indices of an entry differ, shape (N,) · order."""
    other = ~torch.eye(n, dtype=torch.bool)
    return other if order == 2 else other[:, :, None] & other[:, None, :] & other


def triplet_target(labels: Tensor) -> Tensor:
    """P̃, uniform on the admissible triplets, shape (N, N, N)."""
    same = labels[:, None] == labels
    admissible = distinct(len(labels), 3) & same[:, :, None] & ~same[:, None, :]
    return admissible.double() / admissible.sum()


def pair_target(labels: Tensor, positive: bool = True) -> Tensor:
    """P̃₊ or P̃₋, uniform on the positive or negative pairs, shape (N, N)."""
    same = labels[:, None] == labels
    pairs = distinct(len(labels), 2) & (same if positive else ~same)
    return pairs.double() / pairs.sum()


def triplet_cost(similarity: Tensor, shaping: Shaping) -> Tensor:
    """C_ijk = ψ(s_ij − s_ik) for all i, j, k; the solver leaves out what may not meet."""
    return shaping(similarity[:, :, None] - similarity[:, None, :])


def marginals(plan: Tensor) -> list[Tensor]:
    """The sums of a tensor over all axes but one."""
    axes = range(plan.dim())
    return [plan.sum(tuple(other for other in axes if other != axis)) for axis in axes]


def imposed_marginals(target: Tensor, kind: str = "uniform") -> list[Tensor]:
    """1/N for every sample on every axis, or the marginals of the ``"target"``."""
    if kind == "target":
        return marginals(target)
    return [torch.full((n,), 1 / n, dtype=torch.float64) for n in target.shape]


def solve(
    cost: Tensor, epsilon: float, imposed: Sequence[Tensor], allowed: Tensor | None = None
) -> Tensor:
    """Log P^C, by Sinkhorn sweeps that autograd can follow; −∞ where it may have no mass.

    It may have mass where `allowed`, or where no index repeats.

    Raises:
        ValueError: If the sweeps do not converge: the verdict would be about something else.
    """
    axes = range(cost.dim())
    if allowed is None:
        allowed = distinct(len(cost), cost.dim())
    log_kernel = (-cost / epsilon).masked_fill(~allowed, -math.inf)
    scalings = [torch.zeros(n, dtype=torch.float64) for n in cost.shape]

    def plan(skipped: int | None = None) -> Tensor:
        total = log_kernel
        for axis in axes:
            if axis != skipped:
                total = total + scalings[axis].reshape(
                    [-1 if other == axis else 1 for other in axes]
                )
        return total

    for _ in range(SWEEPS):
        error = 0.0
        for axis, mass in enumerate(imposed):
            others = tuple(other for other in axes if other != axis)
            scaling = mass.log() - torch.logsumexp(plan(skipped=axis), others)
            # e^{old − new} is the ratio of the actual to the imposed marginal.
            ratio = (scalings[axis] - scaling).detach().exp()
            error = worst((error, float((mass * (ratio - 1).abs()).sum())))
            scalings[axis] = scaling
        if error < TOLERANCE:
            return plan()
    raise ValueError(f"no convergence in {SWEEPS} sweeps (error {error:.1e}): use a larger epsilon")


def divergence(
    cost: Tensor, epsilon: float, target: Tensor, imposed: Sequence[Tensor] | None = None
) -> Tensor:
    """g(C) = KL(P̃ ‖ P^C), uniform if nothing is imposed; autograd follows the converged sweeps."""
    return kl(target, solve(cost, epsilon, imposed or imposed_marginals(target)))


def kl(target: Tensor, log_plan: Tensor) -> Tensor:
    """KL(P̃ ‖ P) from the logarithm of P."""
    support = target > 0
    return (target[support] * (target[support].log() - log_plan[support])).sum()


def hessian(cost: Tensor, epsilon: float, target: Tensor, imposed: Sequence[Tensor]) -> Tensor:
    """∂²g/∂C², over the entries with distinct indices in the order of ``cost[distinct(N, 3)]``.

    Along a change D of the cost, log P changes at the rate ℓ = −D/ε + u_i + v_j + w_k, where u, v
    and w keep the marginals. Differentiating the marginal constraints twice gives

        d²g = Σ_ijk P_ijk W_ijk ℓ_ijk²,   W_ijk = ω¹_i + ω²_j + ω³_k,   J ω = marginals of P̃,

    with J the 3N×3N matrix of the pair marginals of P. If P̃ has the imposed marginals, then
    ω = (1, 0, 0) is a solution, W = 1, and g is convex: Lemma 3.1. If not, W may be negative
    somewhere, and g need not be convex.
    """
    n = len(cost)
    allowed = distinct(n, 3)
    plan = solve(cost, epsilon, imposed).exp()[allowed]  # (E,)
    offsets = torch.tensor([0, n, 2 * n])
    places = allowed.nonzero() + offsets  # (E, 3)
    touches = torch.zeros(len(plan), 3 * n, dtype=torch.float64).scatter_(1, places, 1.0)  # (E, 3N)
    # J is singular: constants can move between u, v and w without a change of P.
    inverse = torch.linalg.pinv(touches.T @ (plan[:, None] * touches), hermitian=True)
    weights = touches @ (inverse @ torch.cat(marginals(target)))  # W
    kept = touches @ inverse @ (touches.T * plan)
    rates = kept - torch.eye(len(plan), dtype=torch.float64)  # ε ℓ for each D
    return torch.mm(rates.T, (plan * weights)[:, None] * rates) / epsilon**2
