"""Random numbers as a function of where training is.

No state of a random generator is ever saved: whatever is drawn for a step depends on the seed, the
epoch, the step and the process alone. A run that was interrupted continues as if it had not been.
"""

from __future__ import annotations

import hashlib


def derived_seed(seed: int, *place: int | str) -> int:
    """A seed for one place in a run; unequal places give unrelated seeds.

    Args:
        seed: Of the run.
        place: What the numbers are for, and where: a purpose, an epoch, a step, a rank.

    Returns:
        A whole number below 2⁶³, as ``torch.Generator.manual_seed`` takes it.

    Example:
        >>> derived_seed(0, "views", 3, 7) == derived_seed(0, "views", 3, 7)
        True
        >>> derived_seed(0, "views", 3, 7) == derived_seed(0, "views", 7, 3)
        False
    """
    text = repr((seed, *place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
