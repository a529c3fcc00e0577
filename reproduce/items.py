"""What the paper shows, by its number, and the plans of runs behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tricouple_lab import names
from tricouple_lab.commands.synthetic import BATCH_PER_CLASS, methods
from tricouple_lab.names import UserError
from tricouple_lab.runs.sweep import Plan
from tricouple_lab.tasks.base import task_of

LOSSES = ("infonce", "invaspread", "iot", "pushpull", "neg_mmiot")  # of the paper's image tables
COUPLED = ("iot", "pushpull", "neg_mmiot")
SETS = ("mnist", "svhn", "cifar10", "cifar100", "tiny_imagenet")
BACKBONES = ("resnet18", "resnet34", "resnet50", "vit_b16")
QUIET = ("evaluation.figures=false", "evaluation.every=1000", "logger=csv", "progress=false")
SMOKE = ("scale=smoke", "data=digits", "backbone=resnet10_small", "backbone.width=2",
         "data.train_size=96", "data.test_size=60", "training.epochs=1")  # fmt: skip
SIZES = {"smoke": (16, 32), "cpu": (64, 128, 256, 512), "paper": (64, 128, 256, 512, 1024)}


@dataclass(frozen=True)
class Item:
    """A table or figure."""

    number: str  # in the paper
    name: str  # on the command line
    title: str
    kind: str  # of ``plans`` and ``tables.TABLES``
    committed: str = ""  # folder of ``results`` with its runs at scale=cpu
    sets: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    backbones: tuple[str, ...] = BACKBONES
    shaping: str = "linear"


def _items() -> Iterator[Item]:
    figures = (
        ("Figure 1", "collapse", "Neural collapse on the mixture, linear ψ", "linear"),
        ("Figure 2", "spectra", "Class-mean spectra, linear ψ", "linear"),
        ("Figure 3", "tsne", "Maps of the embeddings, linear ψ", "linear"),
        ("Figure 4", "tsne-log-sigmoid", "Maps of the embeddings, log-sigmoid ψ", "log_sigmoid"),
        ("Figure 5", "collapse-log-sigmoid", "Neural collapse, log-sigmoid ψ", "log_sigmoid"),
        ("Figure 6", "spectra-log-sigmoid", "Class-mean spectra, log-sigmoid ψ", "log_sigmoid"),
    )
    for number, name, title, shaping in figures:
        yield Item(number, name, title, "mixture", "synthetic", shaping=shaping)
    both = ("scl", "ucl")
    yield Item("Table 1", "table-1", "Linear probe, five data sets", "images", "", SETS, both,
               ("resnet50", "vit_b16"))  # fmt: skip
    yield Item("Table 2", "clip", "Retrieval and zero-shot classification", "clip")
    for place, (setting, data) in enumerate(product(both, SETS), 3):
        title = f"{names.IMAGES[data].title}, {setting}: linear probe and k-NN"
        name = f"{setting}-{data.replace('_', '-')}"
        yield Item(f"Table {place}", name, title, "images", "", (data,), (setting,))
    yield Item("Figure 7", "efficiency", "Accuracy, time and memory over batch sizes", "efficiency",
               "efficiency")  # fmt: skip


ITEMS = tuple(_items())


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
    rows = tuple(methods(item.shaping))
    blocks = tuple(
        (f"data.n_classes={k}", f"training.batch_size={BATCH_PER_CLASS * k}")
        for k in ((4,) if smoke else (10, 20, 50))
    )
    base = ("scale=smoke", "training.epochs=1") if smoke else ()
    seeds = (0,) if smoke else (0, 1, 2)
    rows = rows[:2] if smoke else rows
    yield f"mixture/{item.shaping}", Plan(task_of("mixture"), rows, base, blocks, seeds=seeds)


def _images(item: Item, scale: str) -> Iterator[tuple[str, Plan]]:
    own: tuple[str, ...]
    for data, setting, backbone in product(item.sets, item.settings, item.backbones):
        own = (f"data={data}", f"backbone={backbone}", f"scale={scale}")
        seeds = 4
        losses: tuple[str, ...] = LOSSES
        if scale == "smoke":
            seeds, losses, own = 1, ("infonce", "neg_mmiot"), SMOKE
        rows = tuple((f"loss={loss}",) for loss in losses)
        base = (*own, f"setting={setting}", *QUIET)
        plan = Plan(task_of("images"), rows, base, seeds=tuple(range(seeds)))
        yield f"images/{data}-{setting}-{backbone}", plan
        if scale == "smoke":
            return


def _clip(item: Item, scale: str) -> Iterator[tuple[str, Plan]]:
    losses = [name for name in names.TABLES["clip"]["loss"]]
    data = {"smoke": "shapes", "paper": "coco"}[scale]
    own: tuple[str, ...] = ("evaluation.zero_shot=cifar10",) * (scale == "paper")
    if scale == "smoke":
        losses = ["infonce", "neg_mmiot"]
        own = ("training.epochs=1", "data.train_size=64", "data.test_size=32")
    base = (f"scale={scale}", f"data={data}", *own, *QUIET)
    rows = tuple((f"loss={loss}",) for loss in losses)
    yield "clip", Plan(task_of("clip"), rows, base, seeds=(0,))


def _efficiency(item: Item, scale: str) -> Iterator[tuple[str, Plan]]:
    own = SMOKE if scale == "smoke" else (f"scale={scale}", "data=cifar10", "backbone=resnet18")
    cut = ("data.train_size=2560", "data.test_size=1000", "training.epochs=3") * (scale == "cpu")
    blocks = tuple((f"training.batch_size={size}",) for size in SIZES[scale])
    rows = tuple((f"loss={loss}",) for loss in COUPLED)
    base = (*own, *cut, "setting=scl", *QUIET)
    yield "efficiency", Plan(task_of("images"), rows, base, blocks, seeds=(0,))
