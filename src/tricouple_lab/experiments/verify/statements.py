"""The list of statements, and the call that tests them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields

from tricouple_lab.experiments.verify import decoupling, frames, gradients, lemmas, quadrature
from tricouple_lab.experiments.verify.setting import (
    ACCURACY,
    OBSERVATION,
    PROVED,
    PROVED_HERE,
    Claim,
    Finding,
    Losses,
    Outcome,
    Setting,
)


@dataclass(frozen=True)
class Statement(Claim):
    """A claim and the experiment that tests it."""

    measure: Callable[[Setting], Finding]

    def test(self, setting: Setting) -> Outcome:
        """Run the experiment."""
        said = {field.name: getattr(self, field.name) for field in fields(Claim)}
        return Outcome(**said, **vars(self.measure(setting)))


NOT = "not in the paper"
DEVIATION = "largest deviation of an inner product from the ETF"

# Name, statement, where the paper says it, what the residual is, tolerance, kind, experiment.
STATEMENTS = (
    Statement(
        "convexity", "g(C) = KL(P̃ ‖ P^C) is convex in the cost C", "Lemma 3.1",
        "largest excess over a chord, negative curvature, or distance of the loss from dense",
        1e-10, PROVED, lemmas.convexity,
    ),
    Statement(
        "symmetrisation", "averaging C over class-preserving permutations never increases g",
        "Lemma 3.2", "largest increase, or distance of the loss from dense",
        1e-10, PROVED, lemmas.symmetrisation,
    ),
    Statement(
        "homogeneity",
        "the optimum has one similarity within classes and one across (ψ affine, d ≥ K−1)",
        "Lemma 3.3", "largest standard deviation of either", 1e-5, PROVED, frames.homogeneity,
    ),
    Statement(
        "closed-form",
        "at a two-distance configuration the loss is the closed form in Δ = α − β, for every ψ",
        "Lemma C.1 (proof of Theorem 3.4)", "largest error",
        1e-10, PROVED, lemmas.closed_form_equality,
    ),
    Statement(
        "monotonicity", "that loss is strictly decreasing in Δ for every strictly decreasing ψ",
        "Lemma C.1 (proof of Theorem 3.4)",
        "largest step, which must be downwards, plus the largest error",
        -1e-6, PROVED, lemmas.monotonicity,
    ),
    Statement(
        "etf", "the optimum is the simplex ETF with collapsed classes (ψ affine, d ≥ K−1)",
        "Theorem 3.4",
        "largest deviation of an inner product, or of the loss from the closed form",
        1e-5, PROVED, frames.etf,
    ),
    Statement(
        "stationarity",
        "the ETF is stationary on the sphere for every differentiable ψ, Neg-MMIOT and PushPull",
        "Proposition 3.5",
        "tangential gradient, relative to random vectors, or error of the latter",
        1e-9, PROVED, gradients.stationarity,
    ),
    Statement(
        "envelope",
        "∂g/∂C = (P̃ − P)/ε; the library's three gradients agree with it on balanced classes",
        "proof of Proposition 3.5", "largest relative error of a gradient",
        1e-8, PROVED, gradients.balanced_envelope,
    ),
    Statement(
        "decoupling-identity",
        "were j = k allowed: KL(P̃‖P) = KL(P̃¹²‖P⁺) + KL(P̃¹³‖P⁻) − KL(p̃¹‖p¹) for ψ affine",
        NOT, "largest error", 1e-10, PROVED_HERE, decoupling.decoupling_identity,
    ),
    Statement(
        "decoupling",
        "with ψ affine and balanced classes Neg-MMIOT is PushPull with ε₊ = ε₋, up to j ≠ k; "
        "with log-sigmoid ψ it is not", NOT,
        "largest relative difference of gradients (N ≥ 128) in units of 1 %, its largest growth "
        "with N, or 10 % in units of the difference for log-sigmoid ψ",
        1.0, PROVED_HERE, decoupling.decoupling,
    ),
    Statement(
        "low-dimension", "what replaces the ETF when d < K−1",
        "remark to Theorem 3.4: no ETF exists", "smallest gap to the unattainable closed form",
        None, OBSERVATION, frames.low_dimension,
    ),
    Statement(
        "other-shapings", "does free descent end at the ETF when ψ is not affine?",
        "named an open question", DEVIATION, None, OBSERVATION, frames.other_shapings,
    ),
    Statement(
        "sharpness",
        "how close descent comes to the ETF in a fixed number of steps, against c = 1/(τε)",
        NOT, "largest deviation at c = 100", None, OBSERVATION, frames.sharpness,
    ),
    Statement(
        "baselines", "the same questions asked of PushPull, IOT and InfoNCE, balanced classes",
        "not in the paper, but for the stationarity of PushPull", DEVIATION,
        None, OBSERVATION, frames.baselines,
    ),
    Statement(
        "coincidences",
        "is DBOT at the public bounds InfoNCE, and Fused-Gromov at its small α IOT?",
        NOT, "largest relative difference of gradients", None, OBSERVATION, decoupling.coincidences,
    ),
    Statement(
        "unbalanced-convexity",
        "convexity and averaging with unbalanced classes, uniform and target marginals",
        NOT, "most negative curvature, relative to the largest",
        None, OBSERVATION, lemmas.unbalanced_convexity,
    ),
    Statement(
        "unbalanced-envelope",
        "the envelope identity with unbalanced classes, uniform and target marginals",
        NOT, "largest relative error of the envelope gradient",
        None, OBSERVATION, gradients.unbalanced_envelope,
    ),
    Statement(
        "unbalanced-frames", "where free descent ends with unbalanced classes, for every loss",
        NOT, DEVIATION, None, OBSERVATION, frames.unbalanced_frames,
    ),
    Statement(
        "unbalanced-classes", "which directions the class means keep at ten to one, against K",
        NOT, DEVIATION, None, OBSERVATION, frames.unbalanced_classes,
    ),
    Statement(
        "shaping-forces", "which negatives each ψ pushes, and which it pulls",
        NOT, "largest share of the repulsion that falls on false negatives",
        None, OBSERVATION, decoupling.negatives,
    ),
    Statement(
        "shaping-three-way", "how far the gradient of each ψ is from that of two pairwise plans",
        NOT, "largest cosine of a ψ that is not affine", None, OBSERVATION, decoupling.three_way,
    ),
    Statement(
        "quadrature-kernel",
        "the log-sigmoid kernel by quadrature has the relative error that was asked for",
        NOT, "largest error in units of the tolerance", 1.0, ACCURACY, quadrature.kernel,
    ),
    Statement(
        "quadrature-poisson", "the trapezoid rule has the error that Poisson's formula predicts",
        NOT, "largest error, beyond rounding, in units of the prediction",
        1.0, ACCURACY, quadrature.poisson,
    ),
    Statement(
        "quadrature-cost", "the mean cost by Frullani's integral is that of the triplets",
        NOT, "largest relative error of its gradient in units of 1e-6",
        1.0, ACCURACY, quadrature.cost,
    ),
    Statement(
        "quadrature-loss", "the loss with log-sigmoid ψ inherits the kernel's tolerance", NOT,
        "largest relative error of its gradient in units of the tolerance, but at least of 1e-6",
        1.0, ACCURACY, quadrature.loss,
    ),
)  # fmt: skip

BY_ID = {statement.id: statement for statement in STATEMENTS}
QUADRATURE = "quadrature"
"""The name of all statements about the quadrature."""


def select(names: Iterable[str] | None = None) -> tuple[Statement, ...]:
    """Return the statements of these names, all if None, in the order of the list.

    Raises:
        ValueError: If there is no statement of a name.
    """
    if names is None:
        return STATEMENTS
    wanted = list(names)
    if QUADRATURE in wanted:
        wanted.remove(QUADRATURE)
        wanted += [name for name in BY_ID if BY_ID[name].kind == ACCURACY]
    unknown = [name for name in wanted if name not in BY_ID]
    if unknown or not wanted:
        raise ValueError(
            f"no statement is called {', '.join(unknown) or 'nothing'}: choose from "
            f"{', '.join(BY_ID)}"
        )
    return tuple(statement for statement in STATEMENTS if statement.id in wanted)


def verify(
    losses: Losses | None = None, *, seed: int = 0, only: Iterable[str] | None = None
) -> Iterator[Outcome]:
    """Test the statements of some names, or all, and yield each outcome as soon as it is known.

    Example:
        >>> [outcome] = verify(only=["symmetrisation"])
        >>> outcome.verdict
        'holds'
    """
    setting = Setting(seed, losses or Losses())
    return (statement.test(setting) for statement in select(only))
