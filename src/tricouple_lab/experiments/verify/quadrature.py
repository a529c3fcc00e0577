"""How exact the log-sigmoid kernel's quadrature is, from one kernel entry to a whole loss."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from tricouple.ot.quadrature import cost_splits, pair_costs, rule_of, trapezoid_error
from tricouple.shaping import log_sigmoid
from tricouple_lab.experiments.verify import tensors
from tricouple_lab.experiments.verify.gradients import relative_error
from tricouple_lab.experiments.verify.setting import (
    Finding,
    Measured,
    Row,
    Setting,
    chart,
    experiment,
    grouped,
    worst,
    worst_of,
)

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
    return {
        "ε": epsilon,
        "τ": temperature,
        "tolerance": tolerance,
        "step": rule.step,
        "terms Q": len(nodes),
        "error of K": _largest(torch.expm1(torch.logsumexp(logs, 0) - log_kernel)),
        "error of its slope": _largest(slope / power - torch.sigmoid(y - x)),
    }


def kernel(_: Setting) -> Finding:
    """Ask for tolerances, count terms, measure errors."""
    rows = [kernel_errors(0.1, epsilon, tol) for epsilon in EPSILONS for tol in TOLERANCES]
    others = [kernel_errors(tau, 0.1, 1e-6) for tau in TEMPERATURES if tau != 0.1]
    figure = chart(
        "Relative error of the log-sigmoid kernel against the number of terms, τ = 0.1",
        ("terms Q", "largest relative error"),
        grouped(rows, "ε = {ε:g}", "terms Q", "error of K"),
        "The error falls exponentially with the number of terms, for a small ε later and faster.",
        log="y",
    )
    residual = worst(float(row["error of K"]) / float(row["tolerance"]) for row in rows + others)
    shown = [row for row in rows if row["tolerance"] in SHOWN]
    return Finding(residual, (*shown, *others), figure)


@experiment(
    "Error of the trapezoid rule against its step",
    ("step", "largest relative error"),
    "Error against step: it vanishes faster than any power, later for smaller ε.",
    log="y",
    # 1e-14 is rounding.
    residual=lambda rows: worst(
        (float(row["measured"]) - 1e-14) / float(row["predicted"]) for row in rows
    ),
    lines=lambda rows: grouped(rows, "ε = {ε:g}", "step", "measured"),
)
def poisson(_: Setting) -> Measured:
    """Compare the error of a step with what Poisson's formula predicts."""
    for epsilon in EPSILONS:
        power = 1 / epsilon
        for step in (2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25):
            predicted = trapezoid_error(power, step)
            if 1e-12 < predicted < 1:
                found = measured_error(power, step)
                yield {"ε": epsilon, "step": step, "predicted": predicted, "measured": found}


def measured_error(power: float, step: float) -> float:
    """Largest error of the rule for a log-Gamma law, which integrates to 1, over node positions."""
    centre = math.log(power)
    left, right = centre - 60 / min(1.0, power), centre + 10
    nodes = torch.arange(left, right, step, dtype=torch.float64)
    v = nodes + torch.linspace(0, step, 65, dtype=torch.float64)[:, None]
    density = torch.exp(power * v - torch.exp(v) - math.lgamma(power))
    return _largest(step * density.sum(1) - 1)


@experiment(
    "Error of the mean cost against the temperature",
    ("τ", "relative error"),
    log="xy",
    residual=lambda rows: worst_of(rows, "of its gradient") / FLOOR,
    lines=lambda rows: [
        *grouped(rows, "error of the mean", "τ", "error of the mean"),
        *grouped(rows, "of its gradient", "τ", "of its gradient"),
    ],
)
def cost(setting: Setting) -> Measured:
    """The mean cost of all triplets of a batch, by Frullani's integral and by summing them."""
    for temperature in TEMPERATURES:
        z, labels = _batch(setting)
        costs = tensors.triplet_cost(tensors.gram(z) / temperature, log_sigmoid)
        exact = _with_gradient((tensors.triplet_target(labels) * costs).sum(), z)
        quick = _mean_cost(z, labels, temperature)
        value, gradient = map(relative_error, quick, exact)
        yield {"τ": temperature, "error of the mean": value, "of its gradient": gradient}


@experiment(
    "Error of the loss against the tolerance of the kernel, τ = 0.1",
    ("kernel_tol", "relative error"),
    "The error of the loss falls with the tolerance and stays below it.",
    log="xy",
    residual=lambda rows: worst(
        float(row["of its gradient"]) / max(float(row["kernel_tol"]), FLOOR) for row in rows
    ),
    lines=lambda rows: grouped(rows, "ε = {ε:g}", "kernel_tol", "error of the loss"),
)
def loss(setting: Setting) -> Measured:
    """NegMMIOT by quadrature and with the same ψ as a function, which takes the exact way."""
    for epsilon in (0.5, 0.1):
        z, labels = _batch(setting)
        make = partial(setting.losses.neg_mmiot, temperature=0.1, epsilon=epsilon)
        exact = _with_gradient(make(shaping=log_sigmoid)(z, labels), z)
        for tolerance in (1e-2, 1e-4, 1e-6, 1e-8):
            quick = make(shaping="log_sigmoid", kernel_tol=tolerance)(z, labels)
            value, gradient = map(relative_error, _with_gradient(quick, z), exact)
            row: Row = {"ε": epsilon, "kernel_tol": tolerance}
            yield row | {"error of the loss": value, "of its gradient": gradient}


def _batch(setting: Setting) -> tuple[Tensor, Tensor]:
    """48 random vectors of 6 classes."""
    generator = torch.Generator().manual_seed(setting.seed)
    z = torch.randn(48, 8, generator=generator, dtype=torch.float64)
    return z.requires_grad_(), torch.arange(48) % 6


def _mean_cost(z: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The mean cost of all triplets by Frullani's integral, and its gradient."""
    same = labels[:, None] == labels
    positives, negatives = same.double().fill_diagonal_(0.0), (~same).double()
    number = (positives.sum(1) * negatives.sum(1)).sum()
    scores = tensors.gram(z) / temperature
    splits = cost_splits(1.0, FLOOR)
    sums, slopes = pair_costs(scores.detach(), positives / number, negatives, splits)
    (gradient,) = torch.autograd.grad(scores, z, slopes)
    return sums.sum(), gradient


def _with_gradient(value: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    (gradient,) = torch.autograd.grad(value, z, retain_graph=True)
    return value.detach(), gradient


def _largest(errors: Tensor) -> float:
    return float(errors.abs().max())
