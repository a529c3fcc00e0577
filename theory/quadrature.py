"""How exact the quadrature of the log-sigmoid kernel is."""

import math

import torch

from theory.setting import NOT, Measured, Row, Setting, statement, worst
from tricouple.ot.quadrature import rule_of, trapezoid_error
from tricouple.shaping import log_sigmoid
from tricouple_lab.report.figures import Series

EPSILONS = (1.0, 0.5, 0.2, 0.1, 0.05)
TOLERANCES = [10.0**-power for power in range(1, 13)]


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
