"""Tables of one's own: CSV files whose mistakes are counted and told at once."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tricouple_lab.data.images.files import DataError


@dataclass
class Problems:
    """Counts what cannot be used of a file, by kind, and remembers the first offender of each.

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
        """Count one."""
        self.found.setdefault(kind, []).append(str(offender))

    def settle(self, *, skip: bool) -> list[str]:
        """A note for each kind, if the user accepts to ``skip`` the offenders; else an error."""
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


@contextmanager
def table(path: Path, separator: str) -> Iterator[csv.DictReader[str]]:
    """The rows of a CSV file under a row of column names.

    Raises:
        DataError: If it is no readable table; the message says up to which line.
        ValueError: If the separator is none.
    """
    if len(separator) != 1:
        raise ValueError(
            f"data.separator must be one character, got {separator!r}; a tab is $'\\t' in a shell"
        )
    try:
        # Spreadsheets begin their UTF-8 files with a mark, which is no part of the first name.
        with path.open(encoding="utf-8-sig", newline="") as file:
            # Strict: a quote that is not closed would swallow the rows after it.
            rows = csv.DictReader(file, delimiter=separator, strict=True)
            yield rows
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        line = f" (line {rows.line_num} or before)" if isinstance(error, csv.Error) else ""
        raise DataError(f"{path} is not a readable table: {error}{line}") from error


def require_columns(
    path: Path, names: Sequence[str], wanted: Mapping[str, str], separator: str
) -> None:
    """Require columns, each the value of a setting.

    Raises:
        DataError: It names all that are absent, those that are there, and the settings.
    """
    absent = {setting: column for setting, column in wanted.items() if column not in names}
    if absent:
        raise DataError(
            f"{path} has no column {' and no '.join(map(repr, absent.values()))} but "
            f"{', '.join(map(repr, names)) or 'none'}: set "
            f"{' and '.join(f'data.{setting}' for setting in absent)}, or data.separator (now "
            f"{separator!r})"
        )


def clean(text: str) -> str:
    """A caption that can be printed and written: no control characters, no halves of letters."""
    whole = re.sub("[\ud800-\udfff]", "\ufffd", text)
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", whole).strip()
