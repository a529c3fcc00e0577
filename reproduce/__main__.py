"""``python -m reproduce ITEM``, which ``tricouple reproduce ITEM`` runs."""

import argparse
import sys
from pathlib import Path

from benchmarks.table import as_markdown

import tricouple_lab.runs  # noqa: F401 (lets torchvision be imported beside another torch)
from reproduce.items import ITEMS, Item, plans
from reproduce.tables import table_of
from tricouple_lab.files import write_text
from tricouple_lab.names import UserError, nearest
from tricouple_lab.runs.sweep import sweep


def main(arguments: list[str]) -> int:
    """Run an item and print it beside the paper."""
    parser = argparse.ArgumentParser(
        prog="tricouple reproduce",
        description="Run a table or figure of the paper again; what is there is not run again.",
    )
    add = parser.add_argument
    add("item", nargs="?", metavar="ITEM", help="a name or number, as collapse or table-5")
    add("--list", action="store_true", help="each table and figure, at which scale it was run")
    add("--scale", choices=("smoke", "cpu", "paper"), default="cpu", help="smoke: seconds")
    add("--workers", type=int, default=1, help="processes (default: 1)")
    add("--out", type=Path, metavar="FOLDER", help="default: runs/reproduce-SCALE")
    add("--read", type=Path, metavar="FOLDER", help="table of the runs there; run nothing")
    options = parser.parse_args(arguments)
    if options.list or not options.item:
        for item in ITEMS:
            folder = f"run at scale=cpu: results/{item.committed}"
            scale = folder if item.committed else "scale=paper, for GPUs; not run"
            print(f"{item.number:<10} {item.title}")
            print(f"{'':<10} tricouple reproduce {item.name}  ({scale})")
        return 0
    item = find(options.item)
    out = options.out or Path("runs") / f"reproduce-{options.scale}"
    if options.read is None:
        for folder, plan in plans(item, options.scale).items():
            sweep(plan, out / folder, workers=options.workers)
            print(f"written: {out / folder / 'report.html'}")
    text = as_markdown(table_of(item, options.read or out / item.kind), 4)
    print(f"{item.number}: {item.title}\n\n{text}", end="")
    if options.read is None:
        write_text(out / f"{item.name}.md", f"# {item.number}: {item.title}\n\n{text}")
    return 0


def find(word: str) -> Item:
    """The item of a name or number."""
    for item in ITEMS:
        if word.lower() in (item.name, item.number.lower(), item.number.lower().replace(" ", "-")):
            return item
    raise UserError(f"reproduce {word}: no such item ({nearest(word, [i.name for i in ITEMS])})")


if __name__ == "__main__":
    from tricouple_lab.cli import main as command

    sys.exit(command(["reproduce", *sys.argv[1:]]))
