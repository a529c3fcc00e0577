"""What the measurements say: growth exponents, ratios, and each target met or missed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tricouple.experiments.bench.record import Measurement, Report

GROWTH_FROM = 1024
GROWTH_TO = 8192


@dataclass(frozen=True)
class Claim:
    """A sentence with a measured number, the target it stands for, and whether it is met."""

    text: str
    target: str
    met: bool


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the slope of log value against log size by least squares."""
    x = [math.log(size) for size in sizes]
    y = [math.log(value) for value in values]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - x_mean) ** 2 for a in x)


def growth(
    report: Report,
    contender: str,
    field: str,
    smallest: int = GROWTH_FROM,
    largest: int = GROWTH_TO,
) -> float | None:
    """Return the growth exponent of a contender's `field` between two sizes.

    Args:
        report: The measurements.
        contender: Its name.
        field: ``"seconds"`` or ``"extra_bytes"``.
        smallest: The first size.
        largest: The last.

    Returns:
        The exponent, None if one of the ends was not measured: it would not be this range.
    """
    points = [
        (measurement.size, value)
        for measurement in report.measurements
        if measurement.contender == contender
        and smallest <= measurement.size <= largest
        and (value := getattr(measurement, field))
    ]
    sizes = [size for size, _ in points]
    if smallest not in sizes or largest not in sizes:
        return None
    return exponent(sizes, [value for _, value in points])


def claims(report: Report) -> list[Claim]:
    """Return all claims for which this report has the measurements."""
    return [
        *speed_claims(report, "MMSinkhorn unrolled (OTT-JAX)", (256,), 300),
        *speed_claims(report, "MMSinkhorn Danskin (OTT-JAX)", (256,), 300),
        # The strictest comparison: our value and gradient against its plan alone.
        *speed_claims(report, "MMSinkhorn plan only (OTT-JAX)", (256,), 300),
        *speed_claims(report, "SupConLoss (PML)", (256, 1024, 4096), 1),
        *growth_claims(report),
        *memory_claims(report),
        *speed_claims(
            report,
            "NegMMIOT log-sigmoid, anchor by anchor",
            (512,),
            20,
            ours="NegMMIOT log-sigmoid",
        ),
        *log_sigmoid_claims(report),
        *streamed_claims(report),
    ]


def speed_claims(
    report: Report, peer: str, sizes: Sequence[int], target: float, ours: str = "NegMMIOT"
) -> list[Claim]:
    """Compare our loss, forward and backward, with a peer at some sizes."""
    found = []
    for size in sizes:
        ratio = speed_ratio(report.find(peer, size), report.find(ours, size))
        if ratio is not None:
            text = f"{ours} is {three_digits(ratio)}× as fast as {peer} at N={size}"
            found.append(Claim(text, f"at least {target:g}×", ratio >= target))
    return found


def speed_ratio(slow: Measurement | None, fast: Measurement | None) -> float | None:
    """Return how many times longer the first takes, None if one was not measured."""
    if slow is None or fast is None or slow.seconds is None or fast.seconds is None:
        return None
    return slow.seconds / fast.seconds


def three_digits(value: float) -> str:
    """Return a number with three significant digits, never in powers of ten."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def growth_claims(report: Report, ours: str = "NegMMIOT") -> list[Claim]:
    """State how time and memory of our loss grow."""
    found = []
    for word, field in (("time", "seconds"), ("extra memory", "extra_bytes")):
        slope = growth(report, ours, field)
        if slope is not None:
            text = f"{ours}: {word} grows as N^{slope:.2f} from N={GROWTH_FROM} to {GROWTH_TO}"
            found.append(Claim(text, "exponent at most 2.1", slope <= 2.1))
    return found


def memory_claims(report: Report, ours: str = "NegMMIOT") -> list[Claim]:
    """State what our loss needs at the largest size."""
    at_most = report.find(ours, GROWTH_TO)
    if at_most is None or at_most.peak_bytes is None or at_most.extra_matrices is None:
        return []
    gibibytes = at_most.peak_bytes / 2**30
    matrices = at_most.extra_matrices
    where = f"at N={GROWTH_TO}"
    return [
        Claim(
            f"{ours} needs {matrices:.2f} N×N float32 matrices {where}",
            "at most 6",
            matrices <= 6,
        ),
        Claim(
            f"{ours}: the whole process peaks at {gibibytes:.2f} GiB {where}",
            "below 3 GiB",
            gibibytes < 3,
        ),
    ]


def log_sigmoid_claims(report: Report, ours: str = "NegMMIOT log-sigmoid") -> list[Claim]:
    """State how the time of the quadrature grows."""
    slope = growth(report, ours, "seconds", 512, 2048)
    if slope is None:
        return []
    text = f"{ours}: time grows as N^{slope:.2f} from N=512 to 2048"
    return [Claim(text, "exponent at most 2.2", slope <= 2.2)]


def streamed_claims(report: Report, ours: str = "NegMMIOT", size: int = 32768) -> list[Claim]:
    """State what doing without N×N matrices costs in time, and saves in memory."""
    found = []
    streamed, stored = report.find(f"{ours} streamed", size), report.find(ours, GROWTH_TO)
    if streamed is not None and streamed.extra_bytes is not None:
        gibibytes = streamed.extra_bytes / 2**30
        text = f"{ours} streamed needs {gibibytes:.2f} GiB of extra memory at N={size}"
        found.append(Claim(text, "below 1.5 GiB", gibibytes < 1.5))
    ratio = speed_ratio(streamed, stored)
    if ratio is not None:
        ratio /= (size / GROWTH_TO) ** 2
        text = (
            f"{ours} streamed at N={size} takes {ratio:.2f}× the time per pair of {ours} at "
            f"N={GROWTH_TO}"
        )
        found.append(Claim(text, "at most 8×", ratio <= 8))
    return found
