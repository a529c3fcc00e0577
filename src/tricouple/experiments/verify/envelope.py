"""The envelope identity ∂g/∂C = (P̃ − P)/ε, which the proof of Proposition 3.5 rests on."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple.experiments.verify.configurations import class_labels, gram, random_unit
from tricouple.experiments.verify.coupling import (
    SHAPINGS,
    divergence,
    marginals,
    solve,
    triplet_cost,
    triplet_target,
    uniform_marginals,
)
from tricouple.experiments.verify.results import Finding, Row, by_row, chart, worst, worst_of
from tricouple.experiments.verify.setting import Setting
from tricouple.experiments.verify.stationarity import gradient_of, relative_error
from tricouple.report.chart import Panel

EPSILON = 0.5
DIM = 4
BALANCED = ((2, 2, 2), (3, 3, 3), (2, 2, 2, 2, 2))
UNBALANCED = ((3, 3, 2), (4, 3, 2), (6, 2, 2), (8, 2, 2))
GRADIENTS = ("unrolled", "implicit", "envelope")


def identity_error(cost: Tensor, target: Tensor, imposed: list[Tensor]) -> float:
    """Relative error of (P̃ − P)/ε against autograd through the converged sweeps."""
    leaf = cost.clone().requires_grad_()
    (exact,) = torch.autograd.grad(divergence(leaf, EPSILON, target, imposed), leaf)
    plan = solve(cost, EPSILON, imposed).exp()
    return relative_error((target - plan) / EPSILON, exact)


def measure(setting: Setting, sizes: tuple[int, ...], kind: str, generator: torch.Generator) -> Row:
    """One row: the identity on a random cost, and the library's gradients on random vectors.

    Args:
        setting: The losses under test.
        sizes: Samples of each class.
        kind: Marginals imposed on the plan, ``"uniform"`` or ``"target"``.
        generator: Source of the cost and the vectors.
    """
    labels = class_labels(sizes)
    n = len(labels)
    target = triplet_target(labels)
    imposed = marginals(target) if kind == "target" else uniform_marginals(target)
    cost = torch.randn((n, n, n), generator=generator, dtype=torch.float64)
    embeddings = random_unit(n, DIM, generator)

    def dense(free: Tensor, _: Tensor) -> Tensor:
        return divergence(triplet_cost(gram(free), SHAPINGS["linear"]), EPSILON, target, imposed)

    exact = gradient_of(dense, embeddings, labels)
    row: Row = {
        "class sizes": ", ".join(map(str, sizes)),
        "marginals": kind,
        "(P̃ − P)/ε, dense": identity_error(cost, target, imposed),
    }
    for gradient in GRADIENTS:
        criterion = setting.losses.triplets(1 / EPSILON, gradient=gradient, marginals=kind)
        row[f"library, {gradient}"] = relative_error(
            gradient_of(criterion, embeddings, labels), exact
        )
    return row


def errors(row: Row) -> list[float]:
    """The numbers of a row."""
    return [value for value in row.values() if isinstance(value, float)]


def balanced_envelope(setting: Setting) -> Finding:
    """Every gradient agrees with autograd through the converged dense sweeps."""
    generator = setting.generator("envelope")
    rows = tuple(measure(setting, sizes, "uniform", generator) for sizes in BALANCED)
    residual = worst(error for row in rows for error in errors(row))
    return Finding(residual, rows, _figure("Balanced classes", rows))


def unbalanced_envelope(setting: Setting) -> Finding:
    """What remains of the identity where the marginals of P̃ are not uniform."""
    generator = setting.generator("unbalanced-envelope")
    rows = tuple(
        measure(setting, sizes, kind, generator)
        for kind in ("uniform", "target")
        for sizes in UNBALANCED
    )
    residual = worst_of(rows, "library, envelope")
    return Finding(residual, rows, _figure("Unbalanced classes", rows))


def _figure(title: str, rows: tuple[Row, ...]) -> Panel:
    columns = [name for name, value in rows[0].items() if isinstance(value, float)]
    return chart(
        f"{title}: relative error of the gradients",
        "row of the table",
        "relative error",
        by_row(rows, *columns),
        "Relative errors of the envelope formula and of the library's three gradients against "
        "autograd through converged dense sweeps, one column of points for each row of the table.",
        log="y",
    )
