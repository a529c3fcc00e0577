"""Own tables of texts or captions: CSV, TSV, JSON lines, parquet; every value is a text."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

from tricouple_lab.names import UserError

SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".parquet")


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
        comma = ";" if first.count(";") > first.count(",") else ","
        options: Any = {"dtype": str, "keep_default_na": False, "encoding": "utf-8-sig"}
        return pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else comma, **options)
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


def tables_of(root: str) -> dict[str, Path]:
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
        wanted = "a folder with train.csv and perhaps validation.csv, test.csv (.tsv, .parquet, …)"
        missing = "" if path.exists() else "no such file or folder; "
        raise UserError(f"data.root={root}: {missing}expected a table, or {wanted}")
    return found
