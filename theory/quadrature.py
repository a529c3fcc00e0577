"""How exact the log-sigmoid kernel's quadrature is, from one kernel entry to a whole loss."""

import math
from itertools import product

import torch
from torch import Tensor

from theory import setting
from theory.setting import NOT, Measured, Row, Setting, relative_error, statement, worst
from tricouple.ot.quadrature import cost_splits, pair_costs, rule_of, trapezoid_error
from tricouple.shaping import log_sigmoid
from tricouple_lab.report.figures import Series

EPSILONS = (1.0, 0.5, 0.2, 0.1, 0.05)
TOLERANCES = [10.0**-power for power in range(1, 13)]
FLOOR = 1e-6  # the mean cost has a step of its own, whatever the tolerance of the kernel


def kernel_errors(temperature: float, epsilon: float, tolerance: float) -> Row:
    """Number of terms for a tolerance, and the largest errors over the square of similarities.

    The error of the slope is that of ∂ log K/∂x, relative to m = 1/ε, which it never exceeds.
    """
    reach, power = 1 / temperature, 1 / epsilon
    grid = torch.linspace(-reach, reach, 41, dtype=torch.float64)
    x, y = grid[:, None], grid
    rule = rule_of(power, tolerance)
    # v + log(e^x + e^y) follows the log-Gamma law; e^x + e^y is between 2e^−reach and 2e^reach.
    first = math.floor((rule.left - math.log(2) - reach) / rule.step)
    last = math.ceil((rule.right - math.log(2) + reach) / rule.step)
    nodes = rule.step * torch.arange(first, last + 1, dtype=torch.float64)[:, None, None]
    rates = torch.exp(x + nodes)
    logs = power * (x + nodes) - rates - torch.exp(y + nodes) + rule.constant
    log_kernel = -power * log_sigmoid(x - y)
    slope = (torch.exp(logs - log_kernel) * (power - rates)).sum(0) / power
    error = torch.expm1(torch.logsumexp(logs, 0) - log_kernel).abs().max()
    row = {"ε": epsilon, "τ": temperature, "tolerance": tolerance, "step": rule.step}
    row |= {"terms Q": len(nodes), "error of K": float(error)}
    return row | {"error of its slope": float((slope - torch.sigmoid(y - x)).abs().max())}


@statement(NOT, "largest error over the tolerance", 1.0, "largest error / tolerance")
def quadrature_kernel(_: Setting) -> Measured:
    """For the log-sigmoid kernel |K_Q/K − 1| ≤ tolerance."""
    wanted = [(0.1, epsilon, TOLERANCES) for epsilon in EPSILONS]
    for temperature, epsilon, tolerances in (*wanted, (1.0, 0.1, [1e-6]), (0.05, 0.1, [1e-6])):
        rows = [kernel_errors(temperature, epsilon, tolerance) for tolerance in tolerances]
        # Of those that are not in the table, too.
        largest = worst(row["error of K"] / row["tolerance"] for row in rows)
        for row in rows:
            if row["tolerance"] in (1e-4, 1e-6, 1e-8):
                yield row | {"largest error / tolerance": largest}
        if len(rows) > 1:
            terms, errors = ([float(row[key]) for row in rows] for key in ("terms Q", "error of K"))
            yield Series(f"ε = {epsilon:g}", terms, errors)


@statement(NOT, "largest error, beyond rounding, over that", 1.0,
           lambda rows: worst((row["measured"] - 1e-14) / row["predicted"] for row in rows)
           )  # fmt: skip
def quadrature_poisson(_: Setting) -> Measured:
    """The trapezoid rule errs by 2 Σ_k |Γ(m + 2πik/h)| / Γ(m), by Poisson's formula.

    Measured on a log-Gamma law, which integrates to 1, as the largest over positions of the nodes.
    """
    for epsilon in EPSILONS:
        power = 1 / epsilon
        left, right = math.log(power) - 60 / min(1.0, power), math.log(power) + 10
        for step in (2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25):
            predicted = trapezoid_error(power, step)
            if 1e-12 < predicted < 1:
                nodes = torch.arange(left, right, step, dtype=torch.float64)
                v = nodes + torch.linspace(0, step, 65, dtype=torch.float64)[:, None]
                sums = torch.exp(power * v - torch.exp(v) - math.lgamma(power)).sum(1)
                found = float((step * sums - 1).abs().max())
                yield {"ε": epsilon, "step": step, "predicted": predicted, "measured": found}


def of_gradient(rows: list[Row]) -> float:
    """Error of the gradient over the tolerance of the kernel, if there is one, or over 1e-6."""
    return worst(row["of its gradient"] / max(row.get("kernel_tol", FLOOR), FLOOR) for row in rows)


def batch(given: Setting) -> tuple[Tensor, Tensor]:
    """48 random vectors of 6 classes."""
    generator = torch.Generator().manual_seed(given.seed)
    z = torch.randn(48, 8, generator=generator, dtype=torch.float64)
    return z.requires_grad_(), torch.arange(48) % 6


@statement(NOT, "largest relative error of its gradient over 1e-6", 1.0, of_gradient)
def quadrature_cost(given: Setting) -> Measured:
    """The mean cost by Frullani's integral is that of the triplets."""
    z, labels = batch(given)
    target = setting.triplet_target(labels)
    positives, negatives = target.sum(2), (target.sum(1) > 0).double()
    positives /= negatives.sum(1, keepdim=True)
    for temperature in (1.0, 0.1, 0.05):
        scores = setting.gram(z) / temperature
        sums, slopes = pair_costs(scores.detach(), positives, negatives, cost_splits(1.0, FLOOR))
        exact = (target * setting.triplet_cost(scores, log_sigmoid)).sum()
        quick = torch.autograd.grad(scores, z, slopes, retain_graph=True)
        slope = torch.autograd.grad(exact, z)
        row = {"τ": temperature, "error of the mean": relative_error(sums.sum(), exact)}
        yield row | {"of its gradient": relative_error(*quick, *slope)}


@statement(NOT, "largest relative error of its gradient over the tolerance, or over 1e-6", 1.0,
           of_gradient)  # fmt: skip
def quadrature_loss(given: Setting) -> Measured:
    """The loss with log-sigmoid ψ inherits the kernel's tolerance.

    The same ψ as a function takes the exact way.
    """
    z, labels = batch(given)
    for epsilon, tolerance in product((0.5, 0.1), (1e-2, 1e-4, 1e-6, 1e-8)):
        how = {"temperature": 0.1, "epsilon": epsilon}
        quick = given.neg_mmiot(shaping="log_sigmoid", kernel_tol=tolerance, **how)
        losses = quick, given.neg_mmiot(shaping=log_sigmoid, **how)
        value = relative_error(*(loss(z, labels) for loss in losses))
        slope = relative_error(*(setting.gradient_of(loss, z, labels) for loss in losses))
        row = {"ε": epsilon, "kernel_tol": tolerance, "error of the loss": value}
        yield row | {"of its gradient": slope}
