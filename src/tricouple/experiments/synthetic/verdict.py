"""What became of a run, in one word that measured thresholds define."""

from __future__ import annotations

import math
from collections.abc import Sequence

ETF_DEVIATION = 0.01
ETF_RATIO = 0.95
ALIVE = 0.01
NO_SPREAD = 0.01
ONE_DIRECTION = 1.5
LOSS_NOISE = 0.05

MEANINGS = {
    "etf": f"NC2 deviation ≤ {ETF_DEVIATION} and every one of the K−1 eigenvalues of the "
    f"class-mean covariance at least {ETF_RATIO:.0%} of the largest",
    "rich": "not ETF, but every direction the class means could fill (the smaller of K−1 and the "
    f"embedding dimension) has an eigenvalue of {ALIVE:.0%} of the largest or more",
    "reduced": "some of these directions are lost, not all",
    "collapsed": f"the class means fill {ONE_DIRECTION} directions or fewer (exponential of the "
    f"entropy of the eigenvalues' shares), or their total variance is below {NO_SPREAD}",
    "diverged": "numbers were no longer finite, or the loss ended above its start by more than "
    f"{LOSS_NOISE:.0%}",
}


def judge(
    losses: Sequence[float], nc2_deviation: float, spectrum: Sequence[float], dim: int
) -> str:
    """Name the outcome of a run from its curves' ends; ``MEANINGS`` says what each word means.

    Args:
        losses: The loss along training.
        nc2_deviation: The last one.
        spectrum: The last eigenvalues of the class-mean covariance, descending, K−1 of them.
        dim: Dimension of the embeddings.

    Example:
        >>> judge([2.0, 1.0], 0.0, [0.5, 0.5, 0.5], dim=8)
        'etf'
        >>> judge([2.0, 1.0], 0.2, [0.9, 0.5, 0.001], dim=8)
        'reduced'
    """
    if not all(map(math.isfinite, [*losses, nc2_deviation, *spectrum])):
        return "diverged"
    if losses[-1] - losses[0] > LOSS_NOISE * abs(losses[0]):
        return "diverged"
    total = sum(spectrum)
    if total < NO_SPREAD or directions(spectrum) <= ONE_DIRECTION < len(spectrum):
        return "collapsed"
    if nc2_deviation <= ETF_DEVIATION and spectrum[-1] >= ETF_RATIO * spectrum[0]:
        return "etf"
    possible = min(dim, len(spectrum))
    return "rich" if spectrum[possible - 1] >= ALIVE * spectrum[0] else "reduced"


def directions(spectrum: Sequence[float]) -> float:
    """How many directions the class means fill: ``exp`` of the entropy of the shares.

    Example:
        >>> directions([0.5, 0.5, 0.0])
        2.0
    """
    total = sum(spectrum)
    shares = [value / total for value in spectrum if value > 0]
    return math.exp(-math.fsum(share * math.log(share) for share in shares))
