"""``tricouple embed``: embeddings of one's own images, and which are alike."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tricouple.options import CommandError, at_least, require_writable

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console
    from torch import Tensor

    from tricouple.experiments.encoder import TrainedEncoder

DESCRIPTION = """\
Embed all images below a folder with the encoder of a run, and find which are alike.

The file has an entry an image: `names` (from the folder on), `embedding` and, for runs of tricouple
train, `penultimate` (what the backbone says, before the projection). With --neighbours also
`neighbours` (positions of the nearest other images) and `cosines`; a page with pictures is written
beside it.
"""

EXAMPLES = """\
examples:
  tricouple embed runs/digits-scl-… photos            writes photos-embeddings.npz
  tricouple embed RUN photos --neighbours 5           and photos-embeddings.html, with pictures
  tricouple embed RUN photos --out photos.parquet     for pandas, polars, DuckDB; needs pyarrow

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
    add("encoder", type=Path, metavar="RUN", help="folder of a run of tricouple train or clip")
    add("folder", type=Path, metavar="FOLDER", help="folder of images, at any depth")
    add("--out", type=Path, metavar="FILE",
        help="file to write, .npz or .parquet; FOLDER-embeddings.npz if not given")  # fmt: skip
    add("--neighbours", type=at_least(1), metavar="K", help="find the K nearest of every image")


def run(args: argparse.Namespace) -> int:
    """Embed, write, and say where."""
    from rich.console import Console

    from tricouple.data.images.files import find_images
    from tricouple.experiments.runs.command import user_errors

    console = Console()
    folder = args.folder.expanduser()
    out = args.out or Path(f"{folder.resolve().name}-embeddings.npz")
    if out.suffix not in (".npz", ".parquet"):
        raise CommandError(f"--out {out}: use a name that ends in .npz or .parquet")
    with user_errors("nothing was written: the same command begins again"):
        if not folder.is_dir():
            raise CommandError(f"{folder}: there is no such folder of images")
        notes: list[str] = []
        (paths,) = find_images([folder], notes)
        for note in notes:
            console.print(note, highlight=False, markup=False, soft_wrap=True)
        if not paths:
            raise CommandError(f"{folder} holds no images")
        require_writable(out)
        write = _writer(out)

        from tricouple.experiments.encoder import load_encoder

        encoder = load_encoder(args.encoder)
        names = [str(path.relative_to(folder)) for path in paths]
        columns: dict[str, Any] = {"names": names}
        columns |= {kind: part.numpy() for kind, part in embed(encoder, paths, console).items()}
        if args.neighbours:
            columns |= nearest(columns["embedding"], args.neighbours)
        write(columns)
        console.print(f"{len(names)} images: {out}", highlight=False, markup=False)
        if args.neighbours:
            _show(encoder, paths, columns, out.with_suffix(".html"), console)
    return 0


def embed(
    encoder: TrainedEncoder, paths: Sequence[Path], console: Console | None = None
) -> dict[str, Tensor]:
    """Embeddings (n, d) of image files and, if the encoder tells them, the features before.

    Args:
        encoder: Of ``load_encoder``.
        paths: The files.
        console: Shows how far it is, on a terminal.
    """
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    features = getattr(encoder.model, "features", None)
    parts: dict[str, list[Tensor]] = {"embedding": [], **({"penultimate": []} if features else {})}
    columns = TextColumn("images"), BarColumn(), MofNCompleteColumn()
    hidden = console is None or not console.is_terminal
    with (
        torch.no_grad(),
        Progress(*columns, console=console, transient=True, disable=hidden) as bar,
    ):
        for first in bar.track(range(0, len(paths), AT_A_TIME)):
            batch = torch.stack([encoder.transform(p) for p in paths[first : first + AT_A_TIME]])
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
    from tricouple.files import write_atomically

    if out.suffix == ".npz":
        from tricouple.evaluation.evaluate import packed

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
    paths: Sequence[Path],
    columns: dict[str, Any],
    page_path: Path,
    console: Console,
) -> None:
    """The neighbours of some images, as a table and as a page with pictures."""
    from rich.markup import escape
    from rich.table import Table

    from tricouple.data.images.files import decode
    from tricouple.evaluation.evaluate import THUMBNAIL
    from tricouple.files import write_text
    from tricouple.report.embeddings import neighbours_html, thin
    from tricouple.report.page import Article, Section, page

    names, neighbours, cosines = (columns[key] for key in ("names", "neighbours", "cosines"))
    table = Table(title="nearest by cosine")
    table.add_column("image")
    table.add_column("is like")
    for row in thin(len(names), LISTED):
        found = zip(neighbours[row], cosines[row], strict=True)
        like = ", ".join(f"{names[other]} {cosine:.2f}" for other, cosine in found)
        table.add_row(escape(names[row]), escape(like))
    console.print(table)

    def thumbnail(position: int) -> np.ndarray:
        return decode(paths[position], encoder.transform.channels, THUMBNAIL).numpy()

    rows = [
        (
            thumbnail(row),
            names[row],
            [
                (thumbnail(other), f"{cosine:.2f} {names[other]}", False)
                for other, cosine in zip(neighbours[row], cosines[row], strict=True)
            ],
        )
        for row in thin(len(names), DRAWN)
    ]
    told = "Images, evenly drawn from all, and the others whose embeddings are nearest; cosines."
    section = Section("neighbours", "Nearest neighbours", neighbours_html(told, rows))
    article = Article(f"Images by {page_path.stem}", f"{len(names)} images, embedded.", [section])
    write_text(page_path, page([article]))
    console.print(f"With pictures: {page_path}", highlight=False, markup=False)
