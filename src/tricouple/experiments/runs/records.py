"""The results of a study: one compact line a run, in a file that grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tricouple.files import write_text

DONE, DIVERGED = "done", "diverged"


class Records:
    """The lines of ``runs.jsonl``, by the id of their run.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_id: dict[str, dict[str, Any]] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for number, line in enumerate(text.splitlines(), 1):
            try:
                record = json.loads(line)
                self.by_id[record["id"]] = record
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is not a record: {error!r}") from error

    def add(self, record: dict[str, Any]) -> None:
        """Add a run; the file is either as before or complete."""
        self.by_id[record["id"]] = record
        lines = (json.dumps(entry, ensure_ascii=False) for entry in self.by_id.values())
        write_text(self.path, "".join(f"{line}\n" for line in lines))


def shortened(value: Any) -> Any:
    """The same with at most six significant digits.

    Example:
        >>> shortened({"loss": [0.123456789, None], "step": 1000000})
        {'loss': [0.123457, None], 'step': 1000000}
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: shortened(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(entry) for entry in value]
    return value
