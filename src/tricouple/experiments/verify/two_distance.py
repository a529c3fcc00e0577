"""Lemma C.1: at a two-distance configuration the loss has a closed form that decreases in Δ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch

from tricouple.experiments.verify import tensors
from tricouple.experiments.verify.results import Row, worst, worst_of
from tricouple.experiments.verify.setting import Measured, Setting, experiment
from tricouple.report.chart import Line
from tricouple.shaping import Shaping

SIZES = ((2, 3), (3, 2), (4, 3), (10, 4))
SHAPED_SIZES = ((2, 3), (4, 3))
SHARPNESSES = (0.5, 2.0, 8.0, 100.0)
SHARPNESS = 2.0
STEPS = 25

# Configurations off the path of `two_distance_path`: the loss may depend on α − β only.
OFF_PATH = ((0.9, 0.5), (0.4, 0.0), (0.7, 0.7))


def closed_form(
    n_classes: int, per_class: int, gap: float, shaping: Shaping, sharpness: float = SHARPNESS
) -> float:
    """The loss at Δ = `gap` for any ψ and τ = 1.

    ``log((|A| e^{−ψ(Δ)/ε} + |A| e^{−ψ(−Δ)/ε} + |R| e^{−ψ(0)/ε}) / (|A| e^{−ψ(Δ)/ε}))``:
    admissible triplets A, as many reversed ones, and the rest R (mathematics §6).
    """
    n = n_classes * per_class
    admissible = n * (per_class - 1) * (n - per_class)
    rest = n * (n - 1) * (n - 2) - 2 * admissible
    margins = torch.tensor([gap, -gap, 0.0], dtype=torch.float64)
    right, reversed_, other = (-shaping(margins) * sharpness).tolist()
    return math.log1p(math.exp(reversed_ - right) + rest / admissible * math.exp(other - right))


class Walk:
    """The loss under test along a path of two-distance configurations, and its closed form."""

    def __init__(
        self,
        setting: Setting,
        shaping: str,
        size: tuple[int, int],
        sharpness: float,
        pairs: list[tuple[float, float]],
    ) -> None:
        n_classes, per_class = size
        labels = tensors.balanced_labels(n_classes, per_class)
        criterion = setting.losses.triplets(sharpness, shaping=tensors.by_name(shaping))
        value = tensors.loss_value(criterion, labels)
        self.start: Row = {"ψ": shaping, "K": n_classes, "b": per_class, "c": sharpness}
        self.gaps = tuple(alpha - beta for alpha, beta in pairs)
        self.measured = tuple(value(tensors.two_distance_gram(labels, *pair)) for pair in pairs)
        self.expected = tuple(
            closed_form(n_classes, per_class, gap, tensors.SHAPINGS[shaping], sharpness)
            for gap in self.gaps
        )

    @property
    def error(self) -> float:
        """The largest error, relative to values above 1 and absolute below."""
        pairs = zip(self.measured, self.expected, strict=True)
        return worst(abs(one - other) / max(1.0, abs(other)) for one, other in pairs)

    @property
    def step(self) -> float:
        """The largest change from one configuration to the next."""
        return worst(late - early for early, late in pairwise(self.measured))


def settings() -> Iterator[tuple[str, tuple[int, int]]]:
    """ψ and (K, b): more sizes for the linear one, whose sweeps are fast."""
    for shaping in tensors.SHAPINGS:
        for size in SIZES if shaping == "linear" else SHAPED_SIZES:
            yield shaping, size


@experiment(
    "Loss at two-distance configurations, c = 2",
    ("Δ = α − β", "loss"),
    "Points of the measured loss, which should lie on the curve of the closed form.",
    residual=("largest error",),
)
def closed_form_equality(setting: Setting) -> Measured:
    """The loss under test for every ψ, the linear one at several sharpnesses."""
    for shaping, size in settings():
        count = STEPS if shaping == "linear" else STEPS // 4
        path = tensors.two_distance_path(*size, count)
        for sharpness in SHARPNESSES if shaping == "linear" else (SHARPNESS,):
            walk = Walk(setting, shaping, size, sharpness, [*path, *OFF_PATH])
            yield {**walk.start, "largest error": walk.error}
            if shaping == "linear" and sharpness == SHARPNESS:
                gaps, name = walk.gaps[:count], f"K = {size[0]}"
                yield Line(f"closed form, {name}", gaps, walk.expected[:count])
                yield Line(f"measured, {name}", gaps, walk.measured[:count], points=True)


@experiment(
    "Loss against Δ for several ψ, K = 4, b = 3, τ = 1, ε = 0.5",
    ("Δ = α − β", "loss"),
    "The loss against Δ, one curve for each ψ; each should fall from left to right.",
    residual=lambda rows: worst_of(rows, "largest step") + worst_of(rows, "largest error"),
)
def monotonicity(setting: Setting) -> Measured:
    """The largest step of the loss between neighbouring Δ must be downwards."""
    for shaping, size in settings():
        # At a larger sharpness the loss is 0 to machine precision at the upper end.
        path = tensors.two_distance_path(*size, STEPS if shaping == "linear" else STEPS // 2)
        walk = Walk(setting, shaping, size, SHARPNESS, path)
        yield {
            **walk.start,
            "loss at lowest Δ": walk.measured[0],
            "loss at ETF": walk.measured[-1],
            "largest step": walk.step,
            "largest error": walk.error,
        }
        if size == SHAPED_SIZES[-1]:
            yield Line(shaping, walk.gaps, walk.measured)
