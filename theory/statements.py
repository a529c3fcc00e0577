"""The statements in their order, by name: each is a function of another file that measures it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from theory import decoupling, frames, gradients, lemmas, quadrature
from theory.setting import Setting, Statement
from tricouple_lab.names import UserError, nearest

STATEMENTS = (
    lemmas.convexity, lemmas.symmetrisation, frames.homogeneity, lemmas.closed_form,
    lemmas.monotonicity, frames.etf, gradients.stationarity, gradients.envelope,
    decoupling.decoupling_identity, decoupling.decoupling,
    # What the paper leaves open, or does not ask.
    frames.low_dimension, frames.other_shapings, frames.sharpness, frames.baselines,
    decoupling.coincidences, lemmas.unbalanced_convexity, gradients.unbalanced_envelope,
    frames.unbalanced_frames, frames.unbalanced_classes, decoupling.shaping_forces,
    decoupling.shaping_three_way, quadrature.quadrature_kernel, quadrature.quadrature_poisson,
    quadrature.quadrature_cost, quadrature.quadrature_loss,
)  # fmt: skip
BY_NAME = {statement.about["name"]: statement for statement in STATEMENTS}


def select(names: Iterable[str]) -> dict[str, Statement]:
    """Return the statements of these names, in the order of the list; all if there are none.

    A name also stands for those that it begins: ``quadrature`` for all about the quadrature.
    """
    wanted = set()
    for name in names:
        meant = [known for known in BY_NAME if known.startswith(f"{name}-")]
        wanted.update([name] if name in BY_NAME else meant)
        if name not in BY_NAME and not meant:
            raise UserError(f"{name}: no such statement ({nearest(name, BY_NAME)})")
    return {name: one for name, one in BY_NAME.items() if name in wanted or not wanted}


def verify(given: Setting | None = None, only: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """Test the statements of some names, or all, and yield each outcome as soon as it is known.

    Example:
        >>> [outcome] = verify(only=["symmetrisation"])
        >>> outcome["verdict"]
        'holds'
    """
    return (statement.test(given or Setting()) for statement in select(only).values())
