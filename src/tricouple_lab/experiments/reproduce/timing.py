"""Tables and pictures of time and memory: measured here, so only their ratios can be compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import ceil
from operator import itemgetter
from pathlib import Path
from statistics import fmean

import torch

from tricouple_lab.conf.compose import configure
from tricouple_lab.conf.schema import Train
from tricouple_lab.experiments.bench.measure import measure_memory, time_together
from tricouple_lab.experiments.bench.problem import Problem
from tricouple_lab.experiments.reproduce.items import (
    LOSSES,
    NOTHING,
    Item,
    Request,
    Shown,
    fill,
    finished,
    measured,
    papers,
    trained,
)
from tricouple_lab.experiments.runs.record import Record
from tricouple_lab.names import BACKBONES, DATA, SETTINGS, loss_name
from tricouple_lab.report.chart import Axis, Chart, Line, Panel, style
from tricouple_lab.report.numbers import listing, number
from tricouple_lab.report.tables import Table

# Images of an epoch, their side and the classes.
EPOCH = {"cifar100": (50_000, 32, 100), "tiny_imagenet": (100_000, 64, 200)}
BATCH = {"smoke": 16, "cpu": 256, "paper": 256}
ROUNDS = {"smoke": (1, 1), "cpu": (2, 10), "paper": (5, 10)}  # of a network, of the losses
COUPLED = ("iot", "pushpull", "neg_mmiot")
SIZES = {"smoke": (32, 64), "cpu": (64, 128, 256, 512), "paper": (64, 128, 256, 512, 1024)}
MEMORY_SIZES = {"smoke": (1024,), "cpu": (1024, 2048, 4096), "paper": (1024, 2048, 4096, 8192)}
CONTENDERS = {"iot": "IOT", "pushpull": "PushPull", "neg_mmiot": "NegMMIOT"}


@dataclass(frozen=True)
class EpochTimes(Item):
    """Seconds of an epoch: a network's share of a step and each loss's, added and multiplied."""

    setting: str

    def run(self, request: Request) -> None:
        """Time all losses of a backbone and a data set together."""
        networks = list(BACKBONES) if request.scale != "smoke" else ["resnet18"]
        wanted: dict[str, Callable[[], Record]] = {
            f"{self.setting}-{data}-{name}": partial(_epoch, self.setting, data, name, request)
            for data, name in product(EPOCH, networks)
        }
        fill(request, "epoch_times", wanted)

    def show(self, folder: Path) -> Shown:
        """Seconds an epoch and their ratio to InfoNCE's, the paper's beside."""
        runs = [
            run
            for run in finished(folder / "epoch_times")
            if run["config"]["setting"] == self.setting
        ]
        if not runs:
            return NOTHING
        paper = {
            (row["setting"], row["data"], row["backbone"], row["loss"]): float(row["seconds"])
            for row in papers("paper_times.csv")
        }
        tables, ratios = [], []
        for run in runs:
            config = run["config"]
            key = self.setting, config["data"], config["backbone"]
            both = run["metrics"], {loss: paper[(*key, loss)] for loss in LOSSES}
            rows = [
                (loss_name(loss), *(text for own in both for text in (
                    number(own[loss]), f"{own[loss] / own['infonce']:.3f}")))
                for loss in LOSSES
            ]  # fmt: skip
            ratios.append([own["neg_mmiot"] / own["infonce"] for own in both])
            caption = (
                f"{DATA[config['data']]}, {BACKBONES[config['backbone']]}, "
                f"{SETTINGS[self.setting]}: seconds an epoch ({config['steps_of_epoch']} steps)"
            )
            head = ("loss", "here", "to InfoNCE", "paper", "to InfoNCE")
            tables.append(Table(caption, head, rows))
        ours, theirs = map(fmean, zip(*ratios, strict=True))
        verdict = (
            f"{SETTINGS[self.setting]}: an epoch with Neg-MMIOT takes {ours:.2f} times as long as "
            f"with InfoNCE here and {theirs:.2f} times in the paper, on average over "
            f"{len(ratios)} settings. What the network and what each loss takes of a step were "
            "timed on a processor, on random images and embeddings, added, and multiplied by the "
            "steps of an epoch; reading images is not in it."
        )
        return Shown([verdict], tables)


def _epoch(setting: str, data: str, backbone: str, request: Request) -> Record:
    from tricouple_lab.conf.compose import build_loss
    from tricouple_lab.models.encoders import build_encoder

    images, side, classes = EPOCH[data]
    batch, start = BATCH[request.scale], time.perf_counter()
    torch.manual_seed(0)
    encoder = build_encoder(backbone, channels=3, image_size=side, head_dim=classes)
    optimiser = torch.optim.Adam(encoder.parameters(), lr=1e-3, fused=True)
    views = batch if setting == "scl" else 2 * batch
    inputs = torch.randn(views, 3, side, side)
    labels = torch.randint(classes, (batch,)) if setting == "scl" else torch.arange(batch).repeat(2)

    embeddings = torch.randn(views, classes, requires_grad=True)
    slopes = torch.randn(views, classes)

    def network() -> None:
        optimiser.zero_grad()
        encoder(inputs).backward(slopes)
        optimiser.step()

    def step_of(loss: str) -> Callable[[], None]:
        criterion = build_loss(configure([f"loss={loss}", "scale=paper"], Train).loss)
        return lambda: criterion(embeddings, labels).backward()

    steps = {loss: step_of(loss) for loss in LOSSES}
    timed: dict[str, list[float]] = {}
    for some, rounds in zip(({"network": network}, steps), ROUNDS[request.scale], strict=True):
        for step in some.values():
            step()
        timed |= time_together(some, rounds, 0.0)
    shortest, count = {name: min(own) for name, own in timed.items()}, ceil(images / batch)
    config = {"setting": setting, "data": data, "backbone": backbone, "batch_size": batch,
              "steps_of_epoch": count, "seed": 0}  # fmt: skip
    seconds = {loss: count * (shortest["network"] + shortest[loss]) for loss in LOSSES}
    return measured(request, start, config, 1 + len(timed["network"]), **seconds)


@dataclass(frozen=True)
class Efficiency(Item):
    """Accuracy against the time of a step over batch sizes, and memory against batch size."""

    def run(self, request: Request) -> None:
        """Train at every batch size; weigh each loss in a process of its own."""
        wanted: dict[str, Callable[[], Record]] = {
            f"accuracy-{loss}-{size}": partial(_accuracy, loss, size, request)
            for size, loss in product(SIZES[request.scale], COUPLED)
        }
        wanted |= {
            f"memory-{loss}-{size}": partial(weigh, loss, size, request)
            for size, loss in product(MEMORY_SIZES[request.scale], COUPLED)
        }
        fill(request, "efficiency", wanted)

    def show(self, folder: Path) -> Shown:
        """Both pictures."""
        runs = finished(folder / "efficiency")
        if not runs:
            return NOTHING
        panels = []
        for part, x, y, words in (
            ("accuracy", "seconds", "linear", ("seconds a step", "linear probe, %")),
            ("memory", "size", "mebibytes", ("batch size", "extra memory of the loss, MiB")),
        ):
            lines = [
                Line(loss_name(loss), [m[x] for m in own], [m[y] for m in own], style=style(loss))
                for loss in COUPLED
                for own in [_by_size(runs, part, loss)]
            ]
            alt = "; ".join(f"{line.name}: {_ends(line)}" for line in lines)
            log = part == "memory"
            panels.append(Panel(f"{words[1]} against {words[0]}", alt, lines,
                                x=Axis(words[0], log=log), y=Axis(words[1], log=log)))  # fmt: skip
        told = [
            f"{loss_name(loss)} {own[-1]['mebibytes']:.0f} MiB"
            for loss in COUPLED
            if (own := _by_size(runs, "memory", loss))
        ]
        verdict = (
            "The paper reports a steep growth of time and memory of Neg-MMIOT, which its O(N³) "
            f"tensors explain. Computed in O(N²), at the largest batch here: {listing(told)}."
        )
        caption = "The same number of epochs at every batch size, one seed."
        title = "Accuracy, time and memory over batch sizes"
        chart = Chart("efficiency", title, caption, panels)
        return Shown([verdict], charts=[chart])


def _by_size(runs: list[Record], part: str, loss: str) -> list[dict[str, float]]:
    found = [run["metrics"] for run in runs if run["id"].startswith(f"{part}-{loss}-")]
    return sorted(found, key=itemgetter("size"))


def _ends(line: Line) -> str:
    return f"{line.y[0]:.3g} to {line.y[-1]:.3g}" if len(line.y) else "no run"


def _accuracy(loss: str, size: int, request: Request) -> Record:
    budget = {
        "smoke": ("data=digits", "data.max_train_size=256", "training.epochs=1",
                  "evaluation.probe_epochs=5"),
        "cpu": ("data=cifar10", "data.max_train_size=2560", "training.epochs=3",
                "evaluation.max_test_size=1000"),
        "paper": ("data=cifar10",),
    }[request.scale]  # fmt: skip
    words = [*budget, f"loss={loss}", f"training.batch_size={size}"]
    record = trained(request, "efficiency", words)
    metrics = {
        "size": float(size),
        "linear": 100 * record["metrics"]["penultimate/linear"],
        "seconds": record["curves"]["seconds"][-1] / max(1, record["steps"]),
    }
    return record | {"metrics": metrics}


def weigh(loss: str, size: int, request: Request) -> Record:
    """The memory of a loss, forward and backward."""
    start = time.perf_counter()
    found = measure_memory(CONTENDERS[loss], size, Problem())
    config = {"loss": loss, "batch_size": size, "seed": 0}
    mebibytes = found.extra_bytes / 2**20
    return measured(request, start, config, 1, size=float(size), mebibytes=mebibytes)


ITEMS: tuple[Item, ...] = (
    Efficiency(
        "efficiency",
        "Accuracy against time per step, and memory, over batch sizes",
        ("fig:efficiency_trade_off",),
        "CIFAR-10 (scale smoke: nothing)",
        {
            "smoke": "a minute, on digits",
            "cpu": "five minutes, on a quiet machine",
            "paper": "a day of a GPU",
        },
    ),
    *(
        EpochTimes(
            f"times-{setting}",
            f"Seconds an epoch, {SETTINGS[setting]}: two data sets, four backbones, five losses",
            (f"tab:training_time_{setting}",),
            "nothing: images are drawn",
            {"smoke": "a minute", "cpu": "three minutes, on a quiet machine", "paper": "an hour"},
            setting,
        )
        for setting in ("scl", "ucl")
    ),
)
