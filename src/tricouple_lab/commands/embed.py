"""``tricouple embed``: embeddings of own images or texts, and nearest neighbours."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tricouple_lab.names import UserError

DESCRIPTION = """\
Embed all images below a folder, or all texts of a file, with the encoder of a run.

The file has one row per image or text: `name` (path below the folder, or the text) and `embedding`;
with --neighbours also the nearest others and their cosines. A file of texts has one per line, or is
a table (CSV, TSV, JSON lines, parquet) with a column `text`.
"""
SUFFIXES = (".npz", ".parquet", ".csv")
LISTED = 10  # items whose neighbours are printed


def configure(parser: argparse.ArgumentParser, _: str) -> None:
    """Add options."""
    parser.description, add = DESCRIPTION, parser.add_argument
    add("run_folder", type=Path, metavar="RUN", help="a run of train, clip or text")
    add("folder", type=Path, metavar="FOLDER|FILE", help="images at any depth, or a file of texts")
    add("--out", type=Path, metavar="FILE", help=f"{', '.join(SUFFIXES)}; NAME-embeddings.npz")
    add("--neighbours", type=int, default=0, metavar="K", help="find the K nearest of each item")
    best = "weights of the epoch that is best on validation data (default), or of the last one"
    add("--which", choices=("last", "best"), default="best", help=best)


def run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Embed, write, and print neighbours."""
    out = options.out or Path(f"{options.folder.resolve().stem}-embeddings.npz")
    if out.suffix not in SUFFIXES:
        raise UserError(f"--out {out}: expected a name that ends in {', '.join(SUFFIXES)}")
    names, items = read_items(options.folder)
    from tricouple_lab.evaluation.probe import collapse_note
    from tricouple_lab.runs.encoder import load_encoder

    embedding = load_encoder(options.run_folder, options.which).embed(items)
    note = collapse_note(embedding)
    if note:
        print(f"note: {note}")
    columns: dict[str, Any] = {"name": names, "embedding": embedding}
    if options.neighbours and len(names) > 1:
        nearest, cosines = neighbours(embedding, options.neighbours)
        columns |= {"neighbours": nearest, "cosines": cosines}
        for name, others, values in list(zip(names, nearest, cosines, strict=True))[:LISTED]:
            pairs = zip(others, values, strict=True)
            print(f"{name}: " + ", ".join(f"{names[j]} ({cosine:.2f})" for j, cosine in pairs))
    write(out, columns)
    print(f"written: {out}: {len(names)} embeddings of {embedding.shape[1]} dimensions")
    return 0


def read_items(place: Path) -> tuple[list[str], list[Any]]:
    """Names and images (paths) of a folder, or texts of a file."""
    if place.is_dir():
        from tricouple_lab.data.images import image_files

        files = image_files(place)
        if not files:
            raise UserError(f"{place}: no images found")
        return [str(file.relative_to(place.resolve())) for file in files], list(files)
    if not place.exists():
        raise UserError(f"{place}: no such folder or file")
    if place.suffix in (".csv", ".tsv", ".jsonl", ".parquet"):
        from tricouple_lab.data.tables import read_table, require_columns

        table = read_table(place)
        require_columns(place, table, {"one text per row": "text"})
        texts = list(table["text"])
    else:
        try:
            lines = place.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise UserError(f"{place}: not a text file; expected texts or a folder") from None
        texts = [line for line in lines if line.strip()]
    if not texts:
        raise UserError(f"{place}: no texts found")
    return texts, texts


def neighbours(embedding: Any, k: int) -> tuple[Any, Any]:
    """Indices and cosines of the k nearest other rows, shape (n, k) each."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=min(k, len(embedding) - 1), metric="cosine")
    distances, nearest = index.fit(embedding).kneighbors()
    return nearest, 1 - distances


def write(out: Path, columns: dict[str, Any]) -> None:
    """Write arrays (.npz) or a table (.parquet, .csv)."""
    import pandas as pd

    from tricouple_lab.files import write_arrays, write_atomically

    if out.suffix == ".npz":
        write_arrays(out, columns)
    elif out.suffix == ".parquet":
        table = pd.DataFrame({key: list(value) for key, value in columns.items()})
        write_atomically(out, lambda part: table.to_parquet(part, index=False))
    else:
        flat = pd.DataFrame(columns["embedding"], index=columns["name"]).add_prefix("e")
        write_atomically(out, lambda part: flat.to_csv(part, index_label="name"))
