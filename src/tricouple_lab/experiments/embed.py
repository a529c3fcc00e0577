"""``tricouple embed``: embeddings of one's own images or texts, and which are alike."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tricouple_lab.options import CommandError, at_least, require_writable

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console
    from torch import Tensor

    from tricouple_lab.experiments.encoder import TrainedEncoder

DESCRIPTION = """\
Embed all images below a folder, or all texts of a file, with the encoder of a run, and find which
are alike. A file of texts has one a line, or is a CSV with a column `text`.

What is written has an entry an image or text: `names` (of images from the folder on, or the texts),
`embedding` and, for runs of tricouple train and text, `penultimate` (what the backbone says, before
the projection). With --neighbours also `neighbours` (positions of the nearest others), `cosines`,
and a page of neighbours beside the file.
"""

EXAMPLES = """\
examples:
  tricouple embed runs/digits-scl-… photos            writes photos-embeddings.npz
  tricouple embed RUN photos --neighbours 5           and photos-embeddings.html, with pictures
  tricouple embed RUN photos --out photos.parquet     for pandas, polars, DuckDB; needs pyarrow
  tricouple embed runs/text-… questions.csv           texts, by a run of tricouple text

in Python:
  numpy.load("photos-embeddings.npz")["embedding"]
  tricouple.load_encoder("RUN")                       model, transform, class names
"""

AT_A_TIME = 64
LISTED, DRAWN = 10, 48  # images whose neighbours are printed, and are on the page


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("encoder", type=Path, metavar="RUN", help="run of tricouple train, clip or text")
    add("folder", type=Path, metavar="FOLDER|FILE",
        help="folder of images, at any depth, or file of texts")  # fmt: skip
    add("--out", type=Path, metavar="FILE",
        help="file to write, .npz or .parquet; NAME-embeddings.npz if not given")  # fmt: skip
    add("--neighbours", type=at_least(1), metavar="K", help="find the K nearest of every image")


def run(args: argparse.Namespace) -> int:
    """Embed, write, and say where."""
    from rich.console import Console

    from tricouple_lab.experiments.runs.command import user_errors

    console = Console()
    folder = args.folder.expanduser()
    stem = folder.stem if folder.is_file() else folder.resolve().name
    out = args.out or Path(f"{stem}-embeddings.npz")
    if out.suffix not in (".npz", ".parquet"):
        raise CommandError(f"--out {out}: use a name that ends in .npz or .parquet")
    with user_errors("nothing was written: the same command begins again"):
        of_texts = folder.is_file()
        samples = _texts(folder) if of_texts else _images(folder, console)
        noun = "texts" if of_texts else "images"
        if not samples:
            raise CommandError(f"{folder} holds no {noun}")
        require_writable(out)
        write = _writer(out)

        from tricouple_lab.experiments.encoder import TextModel, load_encoder

        encoder = load_encoder(args.encoder)
        if isinstance(encoder.model, TextModel) != of_texts:
            takes = "a folder of images" if of_texts else "a file of texts"
            raise CommandError(f"{args.encoder} embeds no {noun}: name {takes}")
        names = [str(s) if of_texts else str(Path(s).relative_to(folder)) for s in samples]
        columns: dict[str, Any] = {"names": names}
        columns |= {kind: part.numpy() for kind, part in embed(encoder, samples, console).items()}
        if args.neighbours:
            columns |= nearest(columns["embedding"], args.neighbours)
        write(columns)
        console.print(f"{len(names)} {noun}: {out}", highlight=False, markup=False)
        if args.neighbours:
            _show(encoder, samples, columns, out.with_suffix(".html"), console)
    return 0


def _images(folder: Path, console: Console) -> list[Path]:
    from tricouple_lab.data.images.files import find_images

    if not folder.is_dir():
        raise CommandError(f"{folder}: there is no such folder of images, nor file of texts")
    notes: list[str] = []
    (paths,) = find_images([folder], notes)
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    return list(paths)


def _texts(path: Path) -> list[str]:
    """The lines of a file, or a column of a table; empty ones are left out."""
    from tricouple_lab.data.tables import clean, table

    if path.suffix != ".csv":
        lines: list[str] = path.read_text(encoding="utf-8").splitlines()
    else:
        with table(path, ",") as rows:
            if "text" not in (rows.fieldnames or ()):
                raise CommandError(f"{path} has no column 'text'")
            lines = [row["text"] or "" for row in rows]
    return [text for text in map(clean, lines) if text]


def embed(
    encoder: TrainedEncoder, samples: Sequence[Path | str], console: Console
) -> dict[str, Tensor]:
    """Embeddings (n, d) of image files or texts and, if the encoder tells them, features before."""
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    features = getattr(encoder.model, "features", None)
    parts: dict[str, list[Tensor]] = {"embedding": [], **({"penultimate": []} if features else {})}
    columns = TextColumn("embedding"), BarColumn(), MofNCompleteColumn()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with torch.no_grad(), bar:
        for first in bar.track(range(0, len(samples), AT_A_TIME)):
            chosen = [encoder.transform(sample) for sample in samples[first : first + AT_A_TIME]]
            batch = torch.stack(chosen) if isinstance(chosen[0], torch.Tensor) else chosen
            if features:
                parts["penultimate"].append(features(batch))
                parts["embedding"].append(encoder.model.project(parts["penultimate"][-1]))  # type: ignore[operator]
            else:
                parts["embedding"].append(encoder.model(batch))
    return {kind: torch.cat(found) for kind, found in parts.items()}


def nearest(embedding: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Of each row, the k nearest others by cosine: their positions and cosines, shape (n, k)."""
    import torch
    from torch.nn.functional import normalize

    z = normalize(torch.from_numpy(embedding), dim=1)
    k = min(k, len(z) - 1)
    positions, cosines = [], []
    for rows in torch.arange(len(z)).split(1024):
        similarity = z[rows] @ z.T
        similarity[torch.arange(len(rows)), rows] = -torch.inf  # not itself
        found = similarity.topk(k, 1)
        positions.append(found.indices)
        cosines.append(found.values)
    return {"neighbours": torch.cat(positions).numpy(), "cosines": torch.cat(cosines).numpy()}


def _writer(out: Path) -> Any:
    """What writes columns to a file; whatever it needs is there, before anything is computed."""
    from tricouple_lab.files import write_atomically

    if out.suffix == ".npz":
        from tricouple_lab.evaluation.gallery import packed

        return lambda columns: write_atomically(out, lambda file: file.write(packed(columns)))
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise CommandError(f"{out} needs pyarrow: pip install pyarrow, or use .npz") from error

    def write(columns: dict[str, Any]) -> None:
        table = pyarrow.table({name: list(column) for name, column in columns.items()})
        write_atomically(out, lambda file: parquet.write_table(table, file))

    return write


def _show(
    encoder: TrainedEncoder,
    samples: Sequence[Path | str],
    columns: dict[str, Any],
    page_path: Path,
    console: Console,
) -> None:
    """The neighbours of some samples, as a table and as a page, of images with pictures."""
    from rich.markup import escape
    from rich.table import Table

    from tricouple_lab.files import write_text
    from tricouple_lab.report.embeddings import thin
    from tricouple_lab.report.page import Article, Section, page

    names, neighbours, cosines = (columns[key] for key in ("names", "neighbours", "cosines"))
    table = Table(title="nearest by cosine")
    table.add_column("this")
    table.add_column("is like")
    for row in thin(len(names), LISTED):
        found = zip(neighbours[row], cosines[row], strict=True)
        like = ", ".join(f"{names[other]} {cosine:.2f}" for other, cosine in found)
        table.add_row(escape(names[row]), escape(like))
    console.print(table)

    shown = thin(len(names), DRAWN)
    html = _beside(encoder.transform, samples, columns, shown)
    section = Section("neighbours", "Nearest neighbours", html)
    article = Article(page_path.stem, f"{len(names)} embedded.", [section])
    write_text(page_path, page([article]))
    console.print(f"Side by side: {page_path}", highlight=False, markup=False)


def _beside(
    transform: Any, samples: Sequence[Path | str], columns: dict[str, Any], shown: np.ndarray
) -> str:
    """Some samples beside their neighbours, as HTML."""
    import numpy as np

    from tricouple_lab.data.images.files import decode
    from tricouple_lab.evaluation.gallery import THUMBNAIL
    from tricouple_lab.experiments.encoder import Transform
    from tricouple_lab.report.embeddings import neighbours_html
    from tricouple_lab.report.text import nearest_html

    names, neighbours, cosines = (columns[key] for key in ("names", "neighbours", "cosines"))
    told = "Evenly drawn from all, and the others whose embeddings are nearest; cosines."
    if not isinstance(transform, Transform):
        texts = np.array(names, dtype=str)
        arrays = {
            "classes": np.array([], dtype=str),
            "queries": texts[shown],
            "answers": texts[neighbours[shown]],
            "scores": cosines[shown],
            "right": np.zeros(neighbours[shown].shape, dtype=bool),
        }
        return nearest_html(arrays, told)

    def thumbnail(position: int) -> np.ndarray:
        return decode(Path(samples[position]), transform.channels, THUMBNAIL).numpy()

    rows = [
        (
            thumbnail(row),
            names[row],
            [
                (thumbnail(other), f"{cosine:.2f} {names[other]}", False)
                for other, cosine in zip(neighbours[row], cosines[row], strict=True)
            ],
        )
        for row in shown
    ]
    return neighbours_html(told, rows)
