"""The losses in the calling conventions of other libraries, one file per library.

Each file is imported by its own name: ``from tricouple.adapters.lightly import TwoViewLoss``. The
libraries come with ``pip install '.[adapters]'``.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tricouple.groups import Processes
from tricouple.losses.base import ContrastiveLoss
from tricouple.torchvision_ops import declare_missing

declare_missing()  # these libraries import torchvision


@contextmanager
def adapted_library() -> Iterator[None]:
    """Name the extra that installs a library, around imports of it."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or str(error)).partition(".")[0]
        raise ImportError(
            f"{library} is missing: pip install '.[adapters]' in a clone of tricouple"
        ) from error


def for_any_batch(criterion: ContrastiveLoss, *, together: bool = False) -> ContrastiveLoss:
    """The criterion, set to give zero where there is nothing to learn, as these libraries expect.

    Such batches are the last one of an epoch, if it has one sample, and those in which a miner
    finds nothing. ``together``: batches are those of all processes.
    """
    if not isinstance(criterion, ContrastiveLoss):
        raise TypeError(
            "criterion must be a loss of tricouple, such as tricouple.NegMMIOT(), got "
            f"{type(criterion).__name__}"
        )
    criterion.empty = "zero"
    if together and criterion.group is None:
        criterion.group = "world"
    return criterion


def pairs_before(criterion: ContrastiveLoss, number: int, problem: str | None = None) -> int:
    """How many pairs the processes before this one have, of one batch; 0 for one alone.

    Raises:
        ValueError: The same one on all of them, if one has a problem.
    """
    processes = Processes.of(criterion.group)
    if processes is not None:
        return processes.before(number, problem)
    if problem is not None:
        raise ValueError(problem)
    return 0
