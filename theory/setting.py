"""What experiments share: statements, losses under test, small problems, converged dense plans.

Index tuples with a repeated index are excluded, as within one set of samples. Plans are those of
``tricouple.ot.dense``, in float64, with N³ entries: for small N only.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div, normalize

from tricouple import IOT, InfoNCE, NegMMIOT, PushPull
from tricouple.ot import dense
from tricouple.shaping import Shaping, exponential, log_sigmoid
from tricouple_lab.report.figures import Series

Criterion = Callable[..., Tensor]  # embeddings (N, d), labels (N,) ↦ loss
Row = dict[str, Any]
Measured = Iterable[Row | Series]  # rows of a table, and lines of a figure
Experiment = Callable[["Setting"], Measured]  # with ``tests`` of the statements about it
Test = Callable[["Setting"], Row]  # ``about`` is what is known before

NOT = "not in the paper"
MARGINALS = ("uniform", "target")
TOLERANCE = 1e-13  # marginal error of a plan that counts as converged
SWEEPS = (50, 200, 800, 2000, 5000)  # tried in turn
SWEPT: dict[str, Any] = {"n_iters": 200, "tol": TOLERANCE}  # enough for a soft loss

# ψ as losses take it: strictly decreasing and differentiable, convex or not.
SHAPINGS: dict[str, str | Shaping] = {
    "linear": "linear",  # a name, which they compute faster
    "log-sigmoid": log_sigmoid,
    "exponential": exponential,
    "tanh": lambda t: -torch.tanh(t),
    "cubic": lambda t: -t - t**3 / 3,
}


@dataclass(frozen=True)
class Setting:
    """The seed of all random numbers and the losses under test, any of which can be replaced."""

    seed: int = 0
    neg_mmiot: Any = NegMMIOT
    push_pull: Any = PushPull
    iot: Any = IOT
    info_nce: Any = InfoNCE

    def generator(self, name: str) -> torch.Generator:
        """Random numbers of one experiment: it measures the same alone as beside others."""
        return torch.Generator().manual_seed(self.seed + zlib.crc32(name.encode()))

    def triplets(self, sharpness: float, **options: Any) -> Criterion:
        """Neg-MMIOT with τ = 1 and ε = 1/c, swept to convergence, unless options say otherwise."""
        return self.neg_mmiot(**{"temperature": 1.0, "epsilon": 1 / sharpness, **SWEPT, **options})

    def pairs(self, sharpness: float, epsilon: float = 0.0, **options: Any) -> Criterion:
        """PushPull likewise, ε₊ = ε₋ = ε."""
        epsilons = dict.fromkeys(("epsilon_pos", "epsilon_neg"), epsilon or 1 / sharpness)
        return self.push_pull(**{"temperature": 1.0, **epsilons, **SWEPT, **options})

    def at_sharpness(self, sharpness: float, *kinds: str) -> Iterator[tuple[str, str, Criterion]]:
        """Name, marginals and loss, all with the same factor c = 1/(τε) before similarities."""
        for kind in kinds:
            yield "Neg-MMIOT", kind, self.triplets(sharpness, marginals=kind)
            yield "PushPull", kind, self.pairs(sharpness, marginals=kind)
            yield "IOT", kind, self.iot(epsilon=1 / sharpness, marginals=kind, **SWEPT)
            if kind == "uniform":  # InfoNCE imposes none
                yield "InfoNCE", "–", self.info_nce(temperature=1 / sharpness)


def statement(
    paper: str, measured: str, bound: float | None, *judged: Any, name: str = "", claim: str = ""
) -> Callable[[Experiment], Experiment]:
    """Append to what an experiment is about a test, which returns what theory.json has of it.

    `judged` are columns, whose largest number is `measured`, or one function of the rows. Without a
    bound it is an observation. Without a name and a claim of its own a statement has the name of
    the experiment and claims what the docstring begins with.
    """

    def add(experiment: Experiment) -> Experiment:
        about = {"name": name or experiment.__name__.replace("_", "-")}
        about["claim"] = claim or str(experiment.__doc__).partition("\n")[0].removesuffix(".")
        about |= {"paper": paper, "measured": measured, "bound": bound}

        def test(given: Setting) -> Row:
            try:
                found = results(experiment, given)
            except FloatingPointError:  # a loss was no number
                found = []
            rows = [one for one in found if isinstance(one, dict)]
            curves = [one._asdict() for one in found if isinstance(one, Series)]
            if callable(judged[0]):
                value = judged[0](rows)
            else:
                value = worst(row[name] for row in rows for name in judged)
            verdict = "observed" if bound is None else "holds" if value <= bound else "fails"
            return {**about, "value": value, "verdict": verdict, "rows": rows, "curves": curves}

        test.about = about
        experiment.tests = [test, *getattr(experiment, "tests", [])]
        return experiment

    return add


@lru_cache(maxsize=1)  # statements that follow each other may be about one experiment
def results(experiment: Experiment, given: Setting) -> list[Row | Series]:
    """What an experiment measures."""
    return list(experiment(given))


def worst(values: Iterable[float]) -> float:
    """Return the largest value; infinity if one is not finite, or if there is none at all."""
    measured = list(values)  # max overlooks a NaN that is not the first value
    return max(measured) if measured and all(map(math.isfinite, measured)) else math.inf


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
    # The root of a rounding error would be 10⁸ times larger.
    return basis * torch.where(values > 1e-12 * values[-1], values, 0.0).sqrt()


def loss_value(criterion: Criterion, labels: Tensor) -> Callable[[Tensor], float]:
    """Gram matrix ↦ loss of vectors that have it."""
    return lambda gram: float(criterion(vectors(gram), labels))


def gradient_of(criterion: Criterion, embeddings: Tensor, *labels: Tensor, **others: Any) -> Tensor:
    """The gradient of a loss to the embeddings, shape (N, d).

    Losses normalise their input, so at unit vectors it has no radial part.
    """
    leaf = embeddings.clone().requires_grad_()
    return torch.autograd.grad(criterion(leaf, *labels, **others), leaf)[0]


def largest_gradient(criterion: Criterion, embeddings: Tensor, labels: Tensor) -> float:
    """The largest norm of P^⊥ ∇_{z_i} g over the samples."""
    return float(gradient_of(criterion, embeddings, labels).norm(dim=1).max())


def gradient_ratio(criterion: Criterion, labels: Tensor, random: Tensor) -> float:
    """The largest norm at the simplex ETF over that at random vectors."""
    frame = largest_gradient(criterion, vectors(etf_gram(labels)), labels)
    return frame / largest_gradient(criterion, random, labels)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖."""
    return float(((actual - expected).norm() / expected.norm()).detach())


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


def marginals(target: Tensor, kind: str = "target") -> list[Tensor]:
    """The sums of a tensor over all axes but one, or 1/N everywhere (``"uniform"``)."""
    axes = range(target.dim())
    sums = [target.sum([other for other in axes if other != axis]) for axis in axes]
    return sums if kind == "target" else [torch.full_like(one, 1 / len(one)) for one in sums]


def log_plan(
    cost: Tensor, epsilon: float, target: Tensor, kind: str, allowed: Tensor | None = None
) -> Tensor:
    """Log P^C by dense Sinkhorn sweeps that autograd can follow; −10³⁰/ε where not `allowed`."""
    imposed = marginals(target, kind)
    allowed = distinct(len(cost), cost.dim()) if allowed is None else allowed
    barred = cost.masked_fill(~allowed, 1e30)
    for n_iters in SWEEPS:
        potentials = dense.sinkhorn(barred, epsilon, imposed, n_iters)
        plan = (sum(torch.meshgrid(*potentials, indexing="ij")) - barred) / epsilon
        sums = zip(marginals(plan.detach().exp()), imposed, strict=True)
        if worst(float((found - mass).abs().sum()) for found, mass in sums) < TOLERANCE:
            return plan
    raise ValueError(f"no convergence in {n_iters} sweeps: use a larger epsilon")


def divergence(cost: Tensor, epsilon: float, target: Tensor, *how: Any) -> Tensor:
    """g(C) = KL(P̃ ‖ P^C) of the plan of ``log_plan``."""
    return kl_div(log_plan(cost, epsilon, target, *how), target, reduction="sum")
