"""The paper's image tables, small: does its order of the losses hold at equal budget?"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

import tricouple as tc
import tricouple_lab.runs  # noqa: F401 (lets torchvision be imported beside another torch)
from studies.features import digest
from studies.study import Plan, Runs, Stage, choose, rows_of
from tricouple_lab.config.schema import Backbone, ImageData
from tricouple_lab.data.augment import COLOUR, DIGITS, random_view
from tricouple_lab.data.sources import GREY, ImageSplit, hold_out, load_images
from tricouple_lab.evaluation import probe
from tricouple_lab.files import derived_seed
from tricouple_lab.models import backbones

NO_FLIP = ("mnist", "svhn", "digits")  # a mirrored digit is another sign
LOSSES: dict[str, Callable[..., nn.Module]] = {
    "InfoNCE": tc.InfoNCE,
    "InvaSpread": tc.InvaSpread,
    "IOT": tc.IOT,
    "PushPull": tc.PushPull,
    "Neg-MMIOT": tc.NegMMIOT,
    # ε = 1 and τ = 1/c: the largest slope of ψ over ε is c
    "Neg-MMIOT, log-sigmoid": partial(tc.NegMMIOT, epsilon=1.0, shaping="log_sigmoid"),
    "Neg-MMIOT, c = 100": tc.NegMMIOT,
}


def run(plan: Plan, runs: Runs) -> None:
    """With labels first, then without: the pilot on two data sets, then all cells seed by seed."""
    for setting in ("scl", "ucl"):
        best: dict[tuple[bool, str], float] = {}  # c, of digits or not, by row
        for data in (data for kind, data in plan["pilot"] if kind == setting):
            pilot(plan, runs, setting, data, best)
        for seed in plan["seeds"]:
            for name, cell in plan["cells"].items():
                if cell["setting"] == setting:
                    finals(plan, runs, name, cell, seed, best)


def pilot(
    plan: Plan, runs: Runs, setting: str, data: str, best: dict[tuple[bool, str], float]
) -> None:
    """Choose c of each loss on a fifth of the training images."""
    train, _, classes = load(data, plan, runs)

    def measure(config: Mapping[str, Any], part: str) -> dict[str, float]:
        kept, held = hold_out(train.labels.numpy(), 0.2)
        return measured(train.rows(kept), train.rows(held), classes, data, setting, config)

    for row in plan["rows"]:
        if row in LOSSES and row != "Neg-MMIOT, c = 100":
            base = {"cell": f"{data}, {setting}", "row": row, "steps": plan["pilot_steps"]}
            stage = Stage({"c": plan["sharpness"]}, "probe")
            best[data in GREY, row] = choose(runs, base, stage, measure, plan["pilot_seeds"])["c"]


def finals(
    plan: Plan, runs: Runs, name: str, cell: Mapping[str, Any], seed: int,
    best: Mapping[tuple[bool, str], float],
) -> None:  # fmt: skip
    """All rows of a cell with one seed."""
    data, setting = cell["data"], cell["setting"]
    images = load(data, plan, runs)
    for row in rows_of(plan, cell):
        steps = 0 if row == "untrained" else plan["steps"][setting]
        config: dict[str, Any] = {"cell": name, "row": row, "steps": steps}
        if row in LOSSES:
            digits = data in (*GREY, "svhn")
            config["c"] = 100.0 if row == "Neg-MMIOT, c = 100" else best[digits, row]
        config["seed"] = seed
        runs("final", config, lambda: measured(*images, data, setting, config))


def load(data: str, plan: Plan, runs: Runs) -> tuple[ImageSplit, ImageSplit, int]:
    """The training images, at most the plan's number, the test images, the number of classes."""
    side = {"mnist": 28, "digits": 8}.get(data, 32)
    size = plan["train"].get(data)
    found = load_images(
        ImageData(name=data, image_size=side, train_size=size, validation_share=0.0)
    )
    train, test = found.splits["train"], found.splits["test"]
    runs.data = digest(train.index, train.labels, test.labels, next(train.batches(256)))
    return train, test, len(found.classes)


def measured(
    train: ImageSplit,
    test: ImageSplit,
    n_classes: int,
    data: str,
    setting: str,
    config: Mapping[str, Any],
) -> dict[str, float]:
    """Train; linear probe and k-NN of the features, k-NN of the embedding, in percent."""
    encoder = trained(train, n_classes, data, setting, config)
    for norm in encoder.modules():  # statistics of unchanged images, for the untrained one as well
        if isinstance(norm, nn.BatchNorm2d):
            norm.reset_running_stats()
            norm.momentum = None
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(len(train), generator=generator)[:2048]
    with torch.no_grad():
        for part in some.split(256):
            encoder.train()(train.pixels[train.index[part]])
    bank, found = probe.encoded(encoder.eval(), train), probe.encoded(encoder.eval(), test)
    labels, truth = train.labels.numpy(), test.labels.numpy()
    linear = probe.linear_predictions(bank["features"], labels, found["features"], 1e-3)
    shares = {"probe": linear == truth}
    for layer, name in (("features", "k-NN"), ("embedding", "k-NN, embedding")):
        shares[name] = probe.knn_predictions(bank[layer], labels, found[layer], 20) == truth
    return {name: 100 * float(share.mean()) for name, share in shares.items()}


def trained(
    train: ImageSplit, n_classes: int, data: str, setting: str, config: Mapping[str, Any]
) -> backbones.Encoder:
    """ResNet-10 of width 16 after some steps of 256 images: AdamW, warm-up, cosine, bfloat16."""
    torch.manual_seed(config["seed"])
    side, channels = train.pixels.shape[-1], train.pixels.shape[1]
    network = Backbone(name="resnet10_small", width=16, head_dim=n_classes)
    encoder, steps, row = (
        backbones.build(network, channels, side, n_classes),
        config["steps"],
        config["row"],
    )
    if steps == 0:
        return encoder
    objective = LOSSES[row](sharpness=config["c"], empty="zero") if row in LOSSES else cross_entropy
    groups = [{"params": [p for p in encoder.parameters() if (p.ndim > 1) == matrix],
               "weight_decay": 0.05 * matrix} for matrix in (True, False)]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(  # warm-up over a twentieth, then a cosine
        optimizer, lambda t: min((t + 1) * 20 / steps, (1 + math.cos(math.pi * t / steps)) / 2)
    )
    generator = torch.Generator().manual_seed(config["seed"])
    recipe = DIGITS if data in GREY else COLOUR
    for step, chosen in zip(range(steps), batches(len(train), 256, generator), strict=False):
        images, labels = train.__getitems__(chosen.tolist())
        if setting == "ucl" and row in LOSSES:
            seeds = [derived_seed(config["seed"], step, view) for view in range(2)]
            shown = torch.cat([random_view(images, seed, recipe, side) for seed in seeds])
            labels = torch.arange(len(chosen)).repeat(2)
        else:
            shown = pad_crop(images, data not in NO_FLIP, generator)
        with torch.autocast("cpu", torch.bfloat16):
            out = encoder(shown)
        loss = objective(out.float(), labels)
        if not bool(loss.isfinite()):
            raise FloatingPointError(f"step {step} of {dict(config)}: the loss is {float(loss)}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return encoder


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Indices without end, shuffled epoch after epoch; the last, smaller batch is left out."""
    size = min(size, n)
    while True:
        yield from torch.randperm(n, generator=generator)[: n // size * size].split(size)


def pad_crop(x: Tensor, mirror: bool, generator: torch.Generator, by: int = 4) -> Tensor:
    """A random crop of each image padded by four pixels, half of them mirrored."""
    n, _, h, w = x.shape
    corner = torch.randint(2 * by + 1, (2, n, 1), generator=generator)
    rows, columns = corner[0] + torch.arange(h), corner[1] + torch.arange(w)
    flipped = (torch.rand(n, 1, generator=generator) < 0.5) & mirror
    columns = torch.where(flipped, columns.flip(1), columns)
    own, padded = torch.arange(n)[:, None, None], pad(x, [by] * 4).permute(0, 2, 3, 1)
    return padded[own, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
