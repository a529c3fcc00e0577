"""What augmentation costs a training step: on the batch as a whole, or image by image in workers.

``python -m tricouple.experiments.bench.augmentation --out FILE`` trains a ResNet-18 on two
views of batches of 32×32 images, three ways: on fixed views, which cost nothing; on views of whole
batches, as the package makes them; and on views that torchvision makes image by image in one worker
process a core. It prints seconds a step, the share of it that training spends on views, be it
computing them or waiting for them, and the processor time of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tricouple.data.augment import Recipe, two_views
from tricouple.data.images import ImageSet, loader
from tricouple.data.normalisation import Normalisation
from tricouple.options import at_least, require_writable
from tricouple.provenance import collect_provenance
from tricouple.torchvision_ops import declare_missing

Views = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Cost:
    """What a training step takes with one way to get views.

    Attributes:
        way: Where views come from.
        step_seconds: A whole training step, views included; median.
        view_seconds: The part of it that went into computing or awaiting views; median.
        cpu_seconds: Processor time of a step, workers included; mean.
    """

    way: str
    step_seconds: float
    view_seconds: float
    cpu_seconds: float

    @property
    def share(self) -> float:
        """The share of a step that goes into views."""
        return self.view_seconds / self.step_seconds


def torchvision_pipeline(recipe: Recipe) -> Callable[[Tensor], Tensor]:
    """The same recipe as a chain of torchvision's transforms, for one image (c, h, w)."""
    declare_missing()
    from torchvision.transforms import v2

    size = recipe.normalisation.size
    steps: list[Any] = [
        v2.RandomResizedCrop(size, recipe.scale, recipe.ratio, antialias=True),
        v2.RandomHorizontalFlip(recipe.flip),
        v2.RandomApply([v2.ColorJitter(*recipe.strengths)], recipe.jitter),
        v2.RandomGrayscale(recipe.grayscale),
        v2.RandomApply([v2.GaussianBlur(3, recipe.sigma)], recipe.blur),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(list(recipe.normalisation.mean), list(recipe.normalisation.std)),
    ]
    if recipe.rotation:
        steps.insert(2, v2.RandomRotation(recipe.rotation))
    pipeline: Callable[[Tensor], Tensor] = v2.Compose(steps)
    return pipeline


class ViewPairs(Dataset[tuple[Tensor, Tensor]]):
    """Two views of each image, made one image at a time."""

    def __init__(self, images: Tensor, pipeline: Callable[[Tensor], Tensor]) -> None:
        self.images = images
        self.pipeline = pipeline

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.pipeline(self.images[index]), self.pipeline(self.images[index])


def fixed_views(images: Tensor, recipe: Recipe, batch_size: int) -> Views:
    """The same batch of views again and again: the floor."""
    views = two_views(images[:batch_size], recipe, torch.Generator())
    for _ in range(len(images) // batch_size):
        yield views


def batched_views(images: Tensor, recipe: Recipe, batch_size: int) -> Views:
    """Views of whole batches, in the training process."""
    generator = torch.Generator().manual_seed(0)
    for batch, _ in loader(ImageSet(images), batch_size, drop_last=True):
        yield two_views(batch, recipe, generator)


def worker_views(images: Tensor, recipe: Recipe, batch_size: int) -> Views:
    """Views made image by image, in one worker process a core."""
    pairs = ViewPairs(images, torchvision_pipeline(recipe))
    workers = os.cpu_count() or 1
    yield from DataLoader(pairs, batch_size, drop_last=True, num_workers=workers)


WAYS = {"fixed": fixed_views, "batched": batched_views, "workers": worker_views}


def measure(way: str, images: Tensor, recipe: Recipe, batch_size: int) -> Cost:
    """Train on all batches; the first step, which warms up, does not count for the medians."""
    declare_missing()
    from torchvision.models import resnet18

    model = resnet18(num_classes=10)
    optimizer = torch.optim.Adam(model.parameters())
    views = WAYS[way](images, recipe, batch_size)
    times: list[tuple[float, float]] = []
    cpu = sum(os.times()[:4])
    start = time.perf_counter()
    for view0, view1 in views:
        ready = time.perf_counter()
        optimizer.zero_grad()
        model(torch.cat([view0, view1])).square().mean().backward()
        optimizer.step()
        end = time.perf_counter()
        times.append((end - start, ready - start))
        start = time.perf_counter()
    cpu = (sum(os.times()[:4]) - cpu) / len(times)  # workers have ended with the last batch
    step, waiting = torch.tensor(times[1:]).median(0).values.tolist()
    return Cost(way, step, waiting, cpu)


def main() -> None:
    """Measure all ways, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=at_least(2), default=16, help="batches of each way")
    parser.add_argument("--batch-size", type=at_least(2), default=256, help="images in a batch")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    args = parser.parse_args()
    require_writable(args.out)
    command = ["python", "-m", "tricouple.experiments.bench.augmentation", *sys.argv[1:]]
    provenance = collect_provenance() | {"command": shlex.join(command)}
    generator = torch.Generator().manual_seed(0)
    shape = (args.batch_size * args.steps, 3, 32, 32)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    recipe = Recipe(Normalisation((0.5,) * 3, (0.25,) * 3, size=32))
    costs = [measure(way, images, recipe, args.batch_size) for way in WAYS]
    for cost in costs:
        print(
            f"{cost.way:8} {cost.step_seconds:.3f} s a step, {cost.view_seconds:.3f} s of it "
            f"({100 * cost.share:.1f} %) for views; {cost.cpu_seconds:.2f} s of processor time"
        )
    content = {
        "step": f"ResNet-18 (torchvision), Adam, two views of {args.batch_size} images of 3×32×32",
        "costs": [asdict(cost) | {"share": cost.share} for cost in costs],
        "provenance": provenance,
    }
    args.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
