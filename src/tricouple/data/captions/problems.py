"""What is wrong with a set of captions: counted, with the first offender of each kind."""

from __future__ import annotations

from dataclasses import dataclass, field

from tricouple.data.images.errors import DataError


@dataclass
class Problems:
    """Counts what cannot be used, by kind.

    Args:
        source: The file that the captions come from.

    Example:
        >>> problems = Problems("captions.csv")
        >>> problems.add("empty captions", "line 3")
        >>> problems.add("empty captions", "line 9")
        >>> problems.settle(skip=True)
        ['captions.csv: left out 2 empty captions, the first is line 3']
    """

    source: str
    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, offender: object) -> None:
        """Count one; the first of a kind is remembered."""
        self.found.setdefault(kind, []).append(str(offender))

    def settle(self, *, skip: bool) -> list[str]:
        """Refuse the data, or say what was left out.

        Args:
            skip: Whether the user accepts that the offenders are left out.

        Returns:
            A note for each kind.

        Raises:
            DataError: If there is a problem and the user does not.
        """
        counted = [
            f"{len(offenders)} {kind}, the first is {offenders[0]}"
            for kind, offenders in self.found.items()
        ]
        if counted and not skip:
            raise DataError(
                f"{self.source} has {'; '.join(counted)}: repair them, or leave them out with "
                "data.skip=true"
            )
        return [f"{self.source}: left out {text}" for text in counted]
