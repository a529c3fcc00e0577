"""Own tables of texts or captions: CSV, TSV, JSON lines, parquet; every value is a text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

from tricouple_lab.names import UserError

SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".parquet")


def check_sizes(config: Any, smallest: dict[str, int]) -> None:
    """Raise for sizes of a data set that are too small; ``smallest`` maps settings to limits."""
    for key, limit in smallest.items():
        size = getattr(config, key)
        if size is not None and size < limit:
            raise UserError(f"data.{key}={size}: must be at least {limit}")


def read_table(path: Path) -> pd.DataFrame:
    """Read CSV, TSV, JSON lines or parquet; every value is a text, as it stands in the file."""
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path).astype(str)
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix in (".json", ".jsonl"):
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
            return pd.DataFrame(rows, dtype=object).fillna("").astype(str)
        first = text.partition("\n")[0]
        separator = (
            "\t" if path.suffix == ".tsv" else ";" if first.count(";") > first.count(",") else ","
        )
        return pd.read_csv(
            path, dtype=str, keep_default_na=False, encoding="utf-8-sig", sep=separator
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:  # ParserError is a ValueError
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: cannot be read as a table ({reason})") from None


def require_columns(path: Path, frame: pd.DataFrame, wanted: dict[str, str]) -> None:
    """Raise unless the table has the columns; ``wanted`` maps a setting to its column."""
    absent = [f"{column} ({setting})" for setting, column in wanted.items() if column not in frame]
    if absent:
        there = ", ".join(map(str, frame.columns)) or "none"
        raise UserError(f"{path}: no column {' and no column '.join(absent)}; its columns: {there}")


def clean(text: str) -> str:
    """Return a text that can be printed: no control characters, no halves of characters."""
    whole = re.sub("[\ud800-\udfff]", "\ufffd", text)
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", whole).strip()


def tables_of(root: str, setting: str = "data.root") -> dict[str, Path]:
    """Return the table that ``root`` is, or the tables train, validation and test in a folder."""
    path = Path(root).expanduser()
    if root and path.is_file():
        return {"train": path}
    found = {
        split: path / f"{split}{suffix}"
        for split in ("train", "validation", "test")
        for suffix in SUFFIXES
        if root and (path / f"{split}{suffix}").is_file()
    }
    if "train" not in found:
        raise UserError(
            f"{setting}={root}: expected a table, or a folder with train.csv and perhaps "
            "validation.csv and test.csv (also .tsv, .jsonl, .parquet)"
        )
    return found


def parquet_tables(folder: Path) -> Any:
    """Return the ``DatasetDict`` of parquet files in the hub's layout; None if there are none."""
    files = list(folder.rglob("*.parquet"))
    if not files:
        return None
    import datasets

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(str(folder))
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:150]
        raise UserError(f"{folder}: datasets cannot read it ({reason}); replace it") from None
