"""The statements by name, observations last: each is about a function of another file."""

from collections.abc import Iterable, Iterator

from theory import decoupling, frames, lemmas, quadrature
from theory.setting import Row, Setting, Test
from tricouple_lab.names import UserError, nearest

FOUND = [
    test
    for module in (lemmas, frames, decoupling, quadrature)
    for experiment in vars(module).values()
    for test in getattr(experiment, "tests", ())
]
FOUND.sort(key=lambda one: one.about["bound"] is None)  # observations last
BY_NAME: dict[str, Test] = {one.about["name"]: one for one in FOUND}


def select(names: Iterable[str]) -> dict[str, Test]:
    """Return the statements of these names, in the order of the list; all if there are none.

    A name also stands for those that it begins: ``quadrature`` for all about the quadrature.
    """
    wanted = set()
    for name in names:
        meant = [known for known in BY_NAME if known == name or known.startswith(f"{name}-")]
        wanted.update([name] if name in BY_NAME else meant)
        if not meant:
            raise UserError(f"{name}: no such statement ({nearest(name, BY_NAME)})")
    return {name: one for name, one in BY_NAME.items() if name in wanted or not wanted}


def verify(given: Setting | None = None, only: Iterable[str] = ()) -> Iterator[Row]:
    """Test the statements of some names, or all, and yield each outcome as soon as it is known.

    Example:
        >>> [outcome] = verify(only=["symmetrisation"])
        >>> outcome["verdict"]
        'holds'
    """
    return (test(given or Setting()) for test in select(only).values())
