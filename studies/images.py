"""The paper's image tables, small: does its order of the losses hold at equal budget?"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import update_bn

import tricouple as tc
import tricouple_lab.runs  # noqa: F401 (lets torchvision be imported beside another torch)
from studies.features import digest
from studies.linear import descend
from studies.study import Config, Measure, Runs, Stage, choose
from tricouple_lab.config.schema import Backbone, ImageData
from tricouple_lab.data.augment import COLOUR, DIGITS, random_view
from tricouple_lab.data.sources import GREY, ImageSplit, hold_out, load_images
from tricouple_lab.evaluation import probe
from tricouple_lab.files import derived_seed
from tricouple_lab.models import backbones

NO_FLIP = ("mnist", "svhn", "digits")  # a mirrored digit is another sign
FIXED = "Neg-MMIOT, c = 100"  # nothing is chosen
LOSSES: dict[str, Callable[..., nn.Module]] = {
    "InfoNCE": tc.InfoNCE,
    "InvaSpread": tc.InvaSpread,
    "IOT": tc.IOT,
    "PushPull": tc.PushPull,
    "Neg-MMIOT": tc.NegMMIOT,
    # ε = 1 and τ = 1/c: the largest slope of ψ over ε is c
    "Neg-MMIOT, log-sigmoid": partial(tc.NegMMIOT, epsilon=1.0, shaping="log_sigmoid"),
    FIXED: tc.NegMMIOT,
}


def prepare(runs: Runs, name: str, cell: Config) -> Measure:
    """First the pilot of the cell's setting, then what a run of the cell measures."""
    pilot(runs, cell["setting"])
    return partial(measured, *load(runs, cell["data"]), cell)


def stages(runs: Runs, row: str, cell: Config) -> list[Stage]:
    """The c of the pilot, on images of digits or on others."""
    settings = {"steps": 0 if row == "untrained" else runs.plan["steps"][cell["setting"]]}
    if row in LOSSES:
        digits = cell["data"] in (*GREY, "svhn")
        settings["c"] = 100.0 if row == FIXED else pilot(runs, cell["setting"])[digits, row]
    return [Stage(settings)]


@lru_cache
def pilot(runs: Runs, setting: str) -> dict[tuple[bool, str], float]:
    """Choose c of each loss on a fifth of the training images of two data sets."""
    plan, best = runs.plan, {}
    for data in (data for kind, data in plan["pilot"] if kind == setting):
        train, _, n_classes = load(runs, data)
        rest, held = map(train.rows, hold_out(train.labels.numpy(), 0.2))
        measure = partial(measured, rest, held, n_classes, {"data": data, "setting": setting})
        for row in plan["rows"]:
            if row in LOSSES and row != FIXED:
                base = {"cell": f"{data}, {setting}", "row": row, "steps": plan["pilot_steps"]}
                stage = Stage({"c": plan["sharpness"]}, "probe")
                best[data in GREY, row] = choose(runs, base, stage, measure)["c"]
    return best


def load(runs: Runs, data: str) -> tuple[ImageSplit, ImageSplit, int]:
    """The training images, at most the plan's number, the test images, the number of classes."""
    side, size = {"mnist": 28, "digits": 8}.get(data, 32), runs.plan["train"].get(data)
    config = ImageData(name=data, image_size=side, train_size=size, validation_share=0.0)
    found = load_images(config)
    train, test = found.splits["train"], found.splits["test"]
    runs.data = digest(train.index, train.labels, test.labels, next(train.batches(256)))
    return train, test, len(found.classes)


def measured(
    train: ImageSplit, test: ImageSplit, n_classes: int, cell: Config, config: Config, part: str
) -> dict[str, float]:
    """Train; linear probe and k-NN of the features, k-NN of the embedding, in percent."""
    encoder = trained(train, n_classes, cell, config)
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(len(train), generator=generator)[:2048].split(256)
    # Statistics of unchanged images, for the untrained one as well.
    update_bn((train.pixels[train.index[rows]] for rows in some), encoder)
    bank, found = (probe.encoded(encoder.eval(), split) for split in (train, test))
    labels, truth = train.labels.numpy(), test.labels.numpy()
    linear = probe.linear_predictions(bank["features"], labels, found["features"], 1e-3)
    shares = {"probe": linear == truth}
    for layer, name in (("features", "k-NN"), ("embedding", "k-NN, embedding")):
        shares[name] = probe.knn_predictions(bank[layer], labels, found[layer], 20) == truth
    return {name: 100 * float(share.mean()) for name, share in shares.items()}


def trained(train: ImageSplit, n_classes: int, cell: Config, config: Config) -> backbones.Encoder:
    """ResNet-10 of width 16 after some steps of 256 images: AdamW, warm-up, cosine, bfloat16."""
    seed, steps, row = config["seed"], config["steps"], config["row"]
    torch.manual_seed(seed)
    _, channels, side, _ = train.pixels.shape
    network = Backbone(name="resnet10_small", width=16, head_dim=n_classes)
    encoder = backbones.build(network, channels, side, n_classes)
    if steps == 0:
        return encoder
    objective = LOSSES[row](sharpness=config["c"], empty="zero") if row in LOSSES else cross_entropy
    groups = [{"params": [p for p in encoder.parameters() if (p.ndim > 1) == matrix],
               "weight_decay": 0.05 * matrix} for matrix in (True, False)]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=3e-3, fused=True)
    schedule = LambdaLR(  # warm-up over a twentieth, then a cosine
        optimizer, lambda t: min((t + 1) * 20 / steps, (1 + math.cos(math.pi * t / steps)) / 2)
    )
    generator = torch.Generator().manual_seed(seed)
    drawn = enumerate(batches(len(train), 256, generator))
    recipe = DIGITS if cell["data"] in GREY else COLOUR

    def loss() -> Tensor:
        step, chosen = next(drawn)
        images, labels = train.__getitems__(chosen.tolist())
        if cell["setting"] == "ucl" and row in LOSSES:
            seeds = [derived_seed(seed, step, view) for view in range(2)]
            shown = torch.cat([random_view(images, one, recipe, side) for one in seeds])
            labels = torch.arange(len(chosen)).repeat(2)
        else:
            shown = pad_crop(images, cell["data"] not in NO_FLIP, generator)
        with torch.autocast("cpu", torch.bfloat16):
            out = encoder(shown)
        return objective(out.float(), labels)

    descend(optimizer, steps, loss, schedule)
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
