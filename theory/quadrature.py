"""How exact the log-sigmoid kernel's quadrature is, from one kernel entry to a whole loss."""

from __future__ import annotations

import math
from functools import partial
from operator import truediv

import torch
from torch import Tensor

from theory import setting
from theory.gradients import relative_error
from theory.setting import Measured, Row, Setting, worst
from tricouple.ot.quadrature import cost_splits, pair_costs, rule_of, trapezoid_error
from tricouple.shaping import log_sigmoid
from tricouple_lab.report.figures import Series

EPSILONS = (1.0, 0.5, 0.2, 0.1, 0.05)
TEMPERATURES = (1.0, 0.1, 0.05)
TOLERANCES = tuple(10.0**-power for power in range(1, 13))
SHOWN = (1e-4, 1e-6, 1e-8)  # in the table; the figure has all
FLOOR = 1e-6  # the mean cost has a step of its own, whatever the tolerance of the kernel


def kernel_errors(temperature: float, epsilon: float, tolerance: float) -> Row:
    """Number of terms for a tolerance, and the largest errors over the square of similarities.

    The error of the slope is that of ∂ log K/∂x, relative to m = 1/ε, which it never exceeds.
    """
    reach, power = 1 / temperature, 1 / epsilon
    grid = torch.linspace(-reach, reach, 41, dtype=torch.float64)
    x, y = grid[:, None], grid[None, :]
    rule = rule_of(power, tolerance)
    # v + log(e^x + e^y) follows the log-Gamma law; e^x + e^y is between 2e^−reach and 2e^reach.
    first = math.floor((rule.left - math.log(2) - reach) / rule.step)
    last = math.ceil((rule.right - math.log(2) + reach) / rule.step)
    nodes = rule.step * torch.arange(first, last + 1, dtype=torch.float64)[:, None, None]
    rates = torch.exp(x + nodes)
    logs = power * (x + nodes) - rates - torch.exp(y + nodes) + rule.constant
    log_kernel = torch.nn.functional.logsigmoid(x - y) * power
    slope = (torch.exp(logs - log_kernel) * (power - rates)).sum(0)
    row: Row = {"ε": epsilon, "τ": temperature, "tolerance": tolerance}
    row |= {"step": rule.step, "terms Q": len(nodes)}
    row |= {"error of K": _largest(torch.expm1(torch.logsumexp(logs, 0) - log_kernel))}
    return row | {"error of its slope": _largest(slope / power - torch.sigmoid(y - x))}


def kernel(_: Setting) -> Measured:
    """|K_Q/K − 1| ≤ tolerance: count the terms Q and measure the error."""
    for epsilon in EPSILONS:
        rows = [kernel_errors(0.1, epsilon, tolerance) for tolerance in TOLERANCES]
        errors = [float(row["error of K"]) for row in rows]
        largest = worst(map(truediv, errors, TOLERANCES))  # of those that are not in the table, too
        for row in rows:
            if row["tolerance"] in SHOWN:
                yield row | {"largest error / tolerance": largest}
        yield Series(f"ε = {epsilon:g}", [float(row["terms Q"]) for row in rows], errors)
    for temperature in (1.0, 0.05):
        row = kernel_errors(temperature, 0.1, 1e-6)
        yield row | {"largest error / tolerance": float(row["error of K"]) / 1e-6}


def poisson(_: Setting) -> Measured:
    """Compare the error of a step with what Poisson's formula predicts."""
    for epsilon in EPSILONS:
        for step in (2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25):
            predicted = trapezoid_error(1 / epsilon, step)
            if 1e-12 < predicted < 1:
                found = measured_error(1 / epsilon, step)
                yield {"ε": epsilon, "step": step, "predicted": predicted, "measured": found}


def measured_error(power: float, step: float) -> float:
    """Largest error of the rule for a log-Gamma law, which integrates to 1, over node positions."""
    centre = math.log(power)
    left, right = centre - 60 / min(1.0, power), centre + 10
    nodes = torch.arange(left, right, step, dtype=torch.float64)
    v = nodes + torch.linspace(0, step, 65, dtype=torch.float64)[:, None]
    density = torch.exp(power * v - torch.exp(v) - math.lgamma(power))
    return _largest(step * density.sum(1) - 1)


def cost(given: Setting) -> Measured:
    """The mean cost of all triplets of a batch, by Frullani's integral and by summing them."""
    for temperature in TEMPERATURES:
        z, labels = _batch(given)
        costs = setting.triplet_cost(setting.gram(z) / temperature, log_sigmoid)
        exact = _with_gradient((setting.triplet_target(labels) * costs).sum(), z)
        quick = _mean_cost(z, labels, temperature)
        value, gradient = map(relative_error, quick, exact)
        yield {"τ": temperature, "error of the mean": value, "of its gradient": gradient}


def loss(given: Setting) -> Measured:
    """NegMMIOT by quadrature and with the same ψ as a function, which takes the exact way."""
    for epsilon in (0.5, 0.1):
        z, labels = _batch(given)
        make = partial(given.losses.neg_mmiot, temperature=0.1, epsilon=epsilon)
        exact = _with_gradient(make(shaping=log_sigmoid)(z, labels), z)
        for tolerance in (1e-2, 1e-4, 1e-6, 1e-8):
            quick = make(shaping="log_sigmoid", kernel_tol=tolerance)(z, labels)
            value, gradient = map(relative_error, _with_gradient(quick, z), exact)
            row: Row = {"ε": epsilon, "kernel_tol": tolerance, "error of the loss": value}
            yield row | {"of its gradient": gradient}


# What is judged, in units of what is allowed


def of_gradient(rows: list[Row]) -> float:
    """Error of the gradient over the tolerance of the kernel, if there is one, or over 1e-6."""
    allowed = [max(float(row.get("kernel_tol", FLOOR)), FLOOR) for row in rows]
    return worst(map(truediv, (float(row["of its gradient"]) for row in rows), allowed))


def _batch(given: Setting) -> tuple[Tensor, Tensor]:
    """48 random vectors of 6 classes."""
    generator = torch.Generator().manual_seed(given.seed)
    z = torch.randn(48, 8, generator=generator, dtype=torch.float64)
    return z.requires_grad_(), torch.arange(48) % 6


def _mean_cost(z: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The mean cost of all triplets by Frullani's integral, and its gradient."""
    same = labels[:, None] == labels
    positives, negatives = same.double().fill_diagonal_(0.0), (~same).double()
    number = (positives.sum(1) * negatives.sum(1)).sum()
    scores = setting.gram(z) / temperature
    splits = cost_splits(1.0, FLOOR)
    sums, slopes = pair_costs(scores.detach(), positives / number, negatives, splits)
    (gradient,) = torch.autograd.grad(scores, z, slopes)
    return sums.sum(), gradient


def _with_gradient(value: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    (gradient,) = torch.autograd.grad(value, z, retain_graph=True)
    return value.detach(), gradient


def _largest(errors: Tensor) -> float:
    return float(errors.abs().max())
