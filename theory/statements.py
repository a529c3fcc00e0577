"""The statements: what each says, where the paper says it, what is measured, what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from theory import decoupling, frames, gradients, lemmas, quadrature
from theory.setting import Losses, Measured, Row, Setting, worst, worst_of
from tricouple_lab.names import UserError, nearest
from tricouple_lab.report.figures import Series

NOT = "not in the paper"
DEVIATION = "largest deviation of an inner product from the ETF"
Outcome = dict[str, Any]  # a statement and what was measured, as theory.json has it


@dataclass(frozen=True)
class Statement:
    """A sentence that numbers can hold or contradict; an observation, if it has no bound."""

    name: str
    claim: str
    paper: str  # where the paper says it
    measured: str  # what the one number is that is compared with the bound
    bound: float | None  # the largest value at which the statement holds
    experiment: Callable[[Setting], Measured]
    judge: Callable[[list[Row]], float] | tuple[str, ...]  # of the rows; or columns: their largest

    def test(self, given: Setting) -> Outcome:
        """Run the experiment; a value that is not a number fails."""
        found = list(self.experiment(given))
        rows = [one for one in found if isinstance(one, dict)]
        value = self.judge(rows) if callable(self.judge) else worst_of(rows, *self.judge)
        verdict = "observed"
        if self.bound is not None:
            verdict = "holds" if value <= self.bound else "fails"
        said = {key: getattr(self, key) for key in ("name", "claim", "paper", "measured", "bound")}
        curves = [one._asdict() for one in found if isinstance(one, Series)]
        return said | {"value": value, "verdict": verdict, "rows": rows, "curves": curves}


# Name; claim; in the paper; what is measured; bound; experiment, and what of its rows is judged.
STATEMENTS = (
    Statement("convexity", "g(C) = KL(P̃ ‖ P^C) is convex in the cost C", "Lemma 3.1",
              "largest excess over a chord, −curvature, or distance of the loss from dense", 1e-10,
              lemmas.convexity, lemmas.CONVEXITY),
    Statement("symmetrisation", "g(C̄) ≤ g(C), C̄ the average over class-preserving permutations",
              "Lemma 3.2", "largest increase, or distance of the loss from dense", 1e-10,
              lemmas.symmetrisation, ("largest increase", "distance from dense")),
    Statement("homogeneity", "at the optimum ⟨z_i, z_j⟩ = α within classes and β across (ψ affine)",
              "Lemma 3.3", "largest standard deviation of either", 1e-5,
              frames.homogeneity, ("spread of α", "spread of β")),
    Statement("closed-form", "at two distances the loss is a closed form in Δ = α − β, for every ψ",
              "Lemma C.1", "largest error", 1e-10,
              lemmas.closed_form_equality, ("largest error",)),
    Statement("monotonicity", "that loss strictly decreases in Δ for every strictly decreasing ψ",
              "Lemma C.1", "largest step, which must be downwards, plus the largest error", -1e-6,
              lemmas.monotonicity,
              lambda rows: worst_of(rows, "largest step") + worst_of(rows, "largest error")),
    Statement("etf", "the optimum is the simplex ETF: α = 1, β = −1/(K−1) (ψ affine, d ≥ K−1)",
              "Theorem 3.4", "largest deviation of an inner product, or of the loss from its form",
              1e-5, frames.etf, frames.distance_from_optimum),
    Statement("stationarity", "P^⊥_z ∇_z g = 0 at the ETF for differentiable ψ, also for PushPull",
              "Proposition 3.5", "tangential gradient over that at random vectors, or its error",
              1e-9, gradients.stationarity, ("ratio", "error of the latter")),
    Statement("envelope", "∂g/∂C = (P̃ − P)/ε with balanced classes, and the library's gradients",
              "proof of Proposition 3.5", "largest relative error of a gradient", 1e-8,
              gradients.balanced_envelope, gradients.ERRORS),
    Statement("decoupling-identity",
              "were j = k allowed: KL(P̃‖P) = KL(P̃¹²‖P⁺) + KL(P̃¹³‖P⁻) − KL(p̃¹‖p¹) for ψ affine",
              NOT, "largest error", 1e-10, decoupling.decoupling_identity, ("error",)),
    Statement("decoupling", "for ψ affine, balanced classes, ε₊ = ε₋ Neg-MMIOT is PushPull up to "
              "j ≠ k; for log-sigmoid ψ it is not", NOT,
              "difference of gradients over 1 %, its growth with N, or 10 % over it (log-sigmoid)",
              1.0, decoupling.decoupling, decoupling.disagreement),
    Statement("low-dimension", "what replaces the ETF when d < K−1", "remark to Theorem 3.4",
              "smallest gap to the closed form", None, frames.low_dimension,
              lambda rows: -worst(-float(row["loss above closed form"]) for row in rows[:5])),
    Statement("other-shapings", "does descent end at the ETF when ψ is not affine?",
              "open question", DEVIATION, None, frames.other_shapings, ("largest Gram deviation",)),
    Statement("sharpness", "how close descent comes to the ETF in 100 steps, against c = 1/(τε)",
              NOT, "largest deviation at c = 100", None, frames.sharpness,
              lambda rows: worst_of(rows[5:6], "Neg-MMIOT", "PushPull", "IOT", "InfoNCE")),
    Statement("baselines", "the same questions asked of PushPull, IOT and InfoNCE", NOT,
              DEVIATION, None, frames.baselines, ("Gram deviation",)),
    Statement("coincidences", "is DBOT at its public bounds InfoNCE, and Fused-Gromov IOT?", NOT,
              "largest relative difference of gradients", None,
              decoupling.coincidences, ("relative difference",)),
    Statement("unbalanced-convexity", "Lemmas 3.1 and 3.2 with unbalanced classes", NOT,
              "most negative curvature, relative to the largest", None,
              lemmas.unbalanced_convexity,
              lambda rows: worst(-float(row["smallest curvature"]) for row in rows)),
    Statement("unbalanced-envelope", "∂g/∂C = (P̃ − P)/ε with unbalanced classes", NOT,
              "largest relative error of the envelope gradient", None,
              gradients.unbalanced_envelope, ("library, envelope",)),
    Statement("unbalanced-frames", "where descent ends with unbalanced classes, for every loss",
              NOT, DEVIATION, None, frames.unbalanced_frames, ("Gram deviation",)),
    Statement("unbalanced-classes", "which directions class means keep at ten to one, against K",
              NOT, DEVIATION, None, frames.unbalanced_classes, ("Gram deviation",)),
    Statement("shaping-forces", "which negatives each ψ pushes, and which it pulls", NOT,
              "largest share of the repulsion that falls on false negatives", None,
              decoupling.negatives, ("repulsion on false negatives",)),
    Statement("shaping-three-way", "how far each ψ's gradient is from that of two pairwise plans",
              NOT, "largest cosine of a ψ that is not affine", None,
              decoupling.three_way,
              lambda rows: worst_of((row for row in rows if row["ψ"] != "linear"), "cosine")),
    Statement("quadrature-kernel", "|K_Q/K − 1| ≤ tolerance for the log-sigmoid kernel", NOT,
              "largest error over the tolerance", 1.0,
              quadrature.kernel, ("largest error / tolerance",)),
    Statement("quadrature-poisson", "the trapezoid rule errs by 2 Σ_k |Γ(m + 2πik/h)| / Γ(m)", NOT,
              "largest error, beyond rounding, over that", 1.0,
              quadrature.poisson, lambda rows: worst(
                  (float(row["measured"]) - 1e-14) / float(row["predicted"]) for row in rows)),
    Statement("quadrature-cost", "the mean cost by Frullani's integral is that of the triplets",
              NOT, "largest relative error of its gradient over 1e-6", 1.0,
              quadrature.cost, quadrature.of_gradient),
    Statement("quadrature-loss", "the loss with log-sigmoid ψ inherits the kernel's tolerance", NOT,
              "largest relative error of its gradient over the tolerance, or over 1e-6", 1.0,
              quadrature.loss, quadrature.of_gradient),
)  # fmt: skip
BY_NAME = {statement.name: statement for statement in STATEMENTS}


def select(names: Iterable[str]) -> list[Statement]:
    """Return the statements of these names, in the order of the list; all if there are none.

    A name also stands for those that it begins: ``quadrature`` for all about the quadrature.
    """
    wanted = set()
    for name in names:
        meant = [known for known in BY_NAME if known == name or known.startswith(f"{name}-")]
        if name in BY_NAME:
            meant = [name]
        if not meant:
            raise UserError(f"{name}: no such statement ({nearest(name, BY_NAME)})")
        wanted.update(meant)
    return [one for one in STATEMENTS if one.name in wanted or not wanted]


def verify(
    losses: Losses | None = None, *, seed: int = 0, only: Iterable[str] = ()
) -> Iterator[Outcome]:
    """Test the statements of some names, or all, and yield each outcome as soon as it is known.

    Example:
        >>> [outcome] = verify(only=["symmetrisation"])
        >>> outcome["verdict"]
        'holds'
    """
    given = Setting(seed, losses or Losses())
    return (statement.test(given) for statement in select(only))
