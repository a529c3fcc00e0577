"""What the paper shows, one row of items.csv each, and the plans of runs behind it."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from tricouple_lab import names
from tricouple_lab.commands.synthetic import BATCH_PER_CLASS, methods
from tricouple_lab.names import UserError
from tricouple_lab.runs.sweep import Plan
from tricouple_lab.tasks.base import task_of

NAMES = ("infonce", "invaspread", "iot", "pushpull", "neg_mmiot")  # of the paper's image tables
LOSSES = tuple((f"loss={name}",) for name in NAMES)
FEW, COUPLED = (LOSSES[0], LOSSES[-1]), LOSSES[2:]  # at scale=smoke, and with a plan
QUIET = ("evaluation.figures=false", "evaluation.every=1000", "logger=csv", "progress=false")
SMOKE = ("scale=smoke", "data=digits", "backbone=resnet10_small", "backbone.width=2",
         "data.train_size=96", "data.test_size=60", "training.epochs=1")  # fmt: skip
SIZES = {"smoke": (16, 32), "cpu": (64, 128, 256, 512), "paper": (64, 128, 256, 512, 1024)}

# Columns: number in the paper, name on the command line, title, kind of ``plans`` and
# ``tables.table_of``, folder of ``results`` with runs at scale=cpu, and what is run.
_FILE = Path(__file__).with_name("items.csv")
Item = Any
ITEMS = list(pd.read_csv(_FILE, keep_default_na=False).itertuples(index=False, name="Item"))


def plans(item: Item, scale: str) -> dict[str, Plan]:
    """The plans of an item by the name of their folder; tables that share runs share folders."""
    if scale == "cpu" and not item.committed:
        raise UserError(
            f"reproduce {item.name}: a few steps of a core rank nothing; use --scale paper on a "
            "GPU, or the small version of the image tables: tricouple study images"
        )
    kinds = {"mixture": _mixture, "images": _images, "clip": _clip, "efficiency": _efficiency}
    return dict(kinds[item.kind](item, scale))


def _mixture(item: Item, scale: str) -> Iterator[tuple[str, Plan]]:
    smoke = scale == "smoke"
    rows = tuple(methods(item.shaping))[: 2 if smoke else None]
    blocks = tuple(
        (f"data.n_classes={k}", f"training.batch_size={BATCH_PER_CLASS * k}")
        for k in ((4,) if smoke else (10, 20, 50))
    )
    base = ("scale=smoke", "training.epochs=1") if smoke else ()
    plan = Plan(task_of("mixture"), rows, base, blocks, seeds=(0,) if smoke else (0, 1, 2))
    yield f"mixture/{item.shaping}", plan


def _images(item: Item, scale: str) -> Iterator[tuple[str, Plan]]:
    columns = (item.sets.split(), item.settings.split(), item.backbones.split())
    for data, setting, backbone in product(*columns):
        own: tuple[str, ...] = (f"data={data}", f"backbone={backbone}", f"scale={scale}")
        losses, seeds = LOSSES, (0, 1, 2, 3)
        if scale == "smoke":
            losses, seeds, own = FEW, (0,), SMOKE
        base = (*own, f"setting={setting}", *QUIET)
        plan = Plan(task_of("images"), losses, base, seeds=seeds)
        yield f"images/{data}-{setting}-{backbone}", plan
        if scale == "smoke":
            return


def _clip(_: Item, scale: str) -> Iterator[tuple[str, Plan]]:
    losses = tuple((f"loss={name}",) for name in names.TABLES["clip"]["loss"])
    own: tuple[str, ...] = ("data=coco", "evaluation.zero_shot=cifar10")
    if scale == "smoke":
        losses = FEW
        own = ("data=shapes", "training.epochs=1", "data.train_size=64", "data.test_size=32")
    base = (f"scale={scale}", *own, *QUIET)
    yield "clip", Plan(task_of("clip"), losses, base, seeds=(0,))


def _efficiency(_: Item, scale: str) -> Iterator[tuple[str, Plan]]:
    own = SMOKE if scale == "smoke" else (f"scale={scale}", "data=cifar10", "backbone=resnet18")
    cut = ("data.train_size=2560", "data.test_size=1000", "training.epochs=3") * (scale == "cpu")
    blocks = tuple((f"training.batch_size={size}",) for size in SIZES[scale])
    base = (*own, *cut, "setting=scl", *QUIET)
    yield "efficiency", Plan(task_of("images"), COUPLED, base, blocks, seeds=(0,))
