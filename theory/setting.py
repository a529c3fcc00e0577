"""What experiments share: the losses under test, small problems, and converged dense plans.

Plans are those of ``tricouple.ot.dense``, in float64. All index tuples with a repeated index are
excluded, as within one set of samples. N³ entries: for small N only.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple import DBOT, IOT, FusedGromov, InfoNCE, NegMMIOT, PushPull
from tricouple.ot import dense
from tricouple.shaping import Shaping, exponential, linear, log_sigmoid
from tricouple_lab.report.figures import Series

Criterion = Callable[[Tensor, Tensor], Tensor]  # embeddings (N, d), labels (N,) ↦ loss
Factory = Callable[..., Criterion]  # as the classes of ``tricouple.losses``
Row = dict[str, str | int | float]
Measured = Iterator[Row | Series]  # rows of a table, and lines of a figure

NONE = "–"  # in a table where nothing is to be measured
MARGINALS = ("uniform", "target")
TOLERANCE = 1e-13  # marginal error of a plan that counts as converged
SWEEPS = (50, 200, 800, 2000, 5000)  # tried in turn
SWEPT: dict[str, Any] = {"n_iters": 200, "tol": TOLERANCE}  # enough for a soft loss
CONVERGED = {"temperature": 1.0, **SWEPT}

# ψ: strictly decreasing and differentiable, convex or not.
SHAPINGS: dict[str, Shaping] = {
    "linear": linear,
    "log-sigmoid": log_sigmoid,
    "exponential": exponential,
    "tanh": lambda t: -torch.tanh(t),
    "cubic": lambda t: -t - t**3 / 3,
}


def by_name(shaping: str) -> str | Shaping:
    """ψ as losses take it: the name of the linear one, which they compute faster, or a function."""
    return shaping if shaping == "linear" else SHAPINGS[shaping]


@dataclass(frozen=True)
class Losses:
    """The losses under test; replace one to see what the experiments say about another."""

    neg_mmiot: Factory = NegMMIOT
    push_pull: Factory = PushPull
    iot: Factory = IOT
    info_nce: Factory = InfoNCE
    dbot: Factory = DBOT
    fused_gromov: Factory = FusedGromov

    def triplets(self, sharpness: float, **options: Any) -> Criterion:
        """Neg-MMIOT with τ = 1 and ε = 1/c, swept to convergence, unless options say otherwise."""
        return self.neg_mmiot(**CONVERGED | {"epsilon": 1 / sharpness} | options)

    def pairs(self, sharpness: float, **options: Any) -> Criterion:
        """PushPull likewise."""
        epsilons = dict.fromkeys(("epsilon_pos", "epsilon_neg"), 1 / sharpness)
        return self.push_pull(**CONVERGED | epsilons | options)

    def at_sharpness(self, sharpness: float, marginals: str = "uniform") -> dict[str, Criterion]:
        """All losses with the same factor c = 1/(τε) before the similarities."""
        epsilon = 1 / sharpness
        return {
            "Neg-MMIOT": self.triplets(sharpness, marginals=marginals),
            "PushPull": self.pairs(sharpness, marginals=marginals),
            "IOT": self.iot(epsilon=epsilon, marginals=marginals, **SWEPT),
            "InfoNCE": self.info_nce(temperature=epsilon),
        }

    def with_marginals(self, sharpness: float) -> Iterator[tuple[str, str, Criterion]]:
        """Name, marginals and loss; InfoNCE, which imposes none, once."""
        for kind in MARGINALS:
            for name, criterion in self.at_sharpness(sharpness, kind).items():
                if name != "InfoNCE" or kind == "uniform":
                    yield name, NONE if name == "InfoNCE" else kind, criterion


@dataclass(frozen=True)
class Setting:
    """The losses under test and the seed of all random numbers."""

    seed: int = 0
    losses: Losses = field(default_factory=Losses)

    def generator(self, name: str) -> torch.Generator:
        """Random numbers of one experiment: it measures the same alone as beside others."""
        return torch.Generator().manual_seed(self.seed + zlib.crc32(name.encode()))


def worst(values: Iterable[float]) -> float:
    """Return the largest value; infinity if one is not finite, or if there is none at all."""
    measured = list(values)  # max overlooks a NaN that is not the first value
    return max(measured) if measured and all(map(math.isfinite, measured)) else math.inf


def worst_of(rows: Iterable[Row], *columns: str) -> float:
    """Return the largest number in some columns of a table; a dash is no measurement."""
    return worst(float(row[name]) for row in rows for name in columns if row[name] != NONE)


# Labels, vectors and Gram matrices


def class_labels(sizes: Sequence[int]) -> Tensor:
    """Labels 0, 0, …, 1, 1, … with the given numbers of samples."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def random_unit(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """Uniform on the sphere, shape (n, dim)."""
    return normalize(torch.randn(n, dim, generator=generator, dtype=torch.float64), dim=1)


def gram(embeddings: Tensor) -> Tensor:
    """The cosines of all pairs, shape (N, N)."""
    unit = normalize(embeddings, dim=1)
    return unit @ unit.T


def two_distance_gram(labels: Tensor, alpha: float, beta: float) -> Tensor:
    """The Gram matrix with α within and β across classes, shape (N, N)."""
    same = (labels[:, None] == labels).double()
    return (beta + (alpha - beta) * same).fill_diagonal_(1.0)


def etf_gram(labels: Tensor) -> Tensor:
    """The Gram matrix of collapsed classes on a simplex ETF."""
    return two_distance_gram(labels, 1.0, -1 / (len(labels.unique()) - 1))


def vectors(gram: Tensor) -> Tensor:
    """Rows whose inner products are a given Gram matrix, shape (N, N)."""
    values, basis = torch.linalg.eigh(gram)
    if values[0] < -1e-9:
        raise ValueError(f"gram must be positive semi-definite, has eigenvalue {values[0]:.3g}")
    # The root of a rounding error would be 10⁸ times larger.
    lengths = torch.where(values > 1e-12 * values[-1], values, 0.0).sqrt()
    return torch.mul(basis, lengths)


def loss_value(criterion: Criterion, labels: Tensor) -> Callable[[Tensor], float]:
    """Gram matrix ↦ loss of vectors that have it."""
    return lambda gram: float(criterion(vectors(gram), labels))


# Dense tensors


def distinct(n: int, order: int) -> Tensor:
    """Whether the two or three indices of an entry differ, shape (N,) · order."""
    other = ~torch.eye(n, dtype=torch.bool)
    return other if order == 2 else other[:, :, None] & other[:, None, :] & other


def triplet_target(labels: Tensor) -> Tensor:
    """P̃, uniform on the admissible triplets, shape (N, N, N)."""
    same = labels[:, None] == labels
    admissible = distinct(len(labels), 3) & same[:, :, None] & ~same[:, None, :]
    return admissible.double() / admissible.sum()


def triplet_cost(similarity: Tensor, shaping: Shaping) -> Tensor:
    """C_ijk = ψ(s_ij − s_ik), shape (N, N, N)."""
    return shaping(similarity[:, :, None] - similarity[:, None, :])


def marginals(plan: Tensor) -> list[Tensor]:
    """The sums of a tensor over all axes but one."""
    axes = range(plan.dim())
    return [plan.sum([other for other in axes if other != axis]) for axis in axes]


def imposed_marginals(target: Tensor, kind: str = "uniform") -> list[Tensor]:
    """1/N for every sample on every axis, or the marginals of the ``"target"``."""
    if kind == "target":
        return marginals(target)
    return [torch.full((n,), 1 / n, dtype=torch.float64) for n in target.shape]


def log_plan(
    cost: Tensor, epsilon: float, imposed: Sequence[Tensor], allowed: Tensor | None = None
) -> Tensor:
    """Log P^C by dense Sinkhorn sweeps that autograd can follow; −∞ where not `allowed`."""
    allowed = distinct(len(cost), cost.dim()) if allowed is None else allowed
    barred = cost.masked_fill(~allowed, math.inf)
    for n_iters in SWEEPS:
        potentials = dense.sinkhorn(barred, epsilon, imposed, n_iters)
        plan = (sum(torch.meshgrid(*potentials, indexing="ij")) - barred) / epsilon
        sums = zip(marginals(plan.detach().exp()), imposed, strict=True)
        if worst(float((found - mass).abs().sum()) for found, mass in sums) < TOLERANCE:
            return plan
    raise ValueError(f"no convergence in {n_iters} sweeps: use a larger epsilon")


def kl(target: Tensor, log_plan: Tensor) -> Tensor:
    """KL(P̃ ‖ P) from the logarithm of P."""
    support = target > 0
    return (target[support] * (target[support].log() - log_plan[support])).sum()


def divergence(cost: Tensor, epsilon: float, target: Tensor, imposed: Sequence[Tensor]) -> Tensor:
    """g(C) = KL(P̃ ‖ P^C)."""
    return kl(target, log_plan(cost, epsilon, imposed))
