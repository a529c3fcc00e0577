"""A bag with its plan: images of CIFAR-100 and the names of their classes, shuffled.

``TRICOUPLE_DATA=FOLDER python docs/bag_figure.py docs/assets/bag.png``
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from studies import features
from studies.bags import (
    Bags,
    alternate,
    draw_bags,
    of_classes,
    posterior,
    recovered,
    similarities,
)

from tricouple_lab.config.schema import ImageData
from tricouple_lab.data.sources import load_images
from tricouple_lab.report.figures import STYLE, save_png

SETTINGS = {"ridge_image": 1, "ridge_text": 0.1, "keep": 512, "rank": 64, "power": 0.5}
CELL, SEED, C = {"bag": 10, "known": 300, "orphans": 0.0}, 0, 10.0
ROWS = ("row softmax", "plan")


def main(path: Path) -> None:
    """Draw the first bag in which both have errors, with few enough to be seen."""
    data, _ = features.cifar100()
    pairs = of_classes(data, features.class_names(data.names), SETTINGS)
    rest, _ = features.held_out(data.y, 0.2, 0)
    bags = draw_bags(pairs, CELL, SEED)
    found = {}
    for row in ROWS:
        maps = alternate(pairs, bags, {"row": row, "c": C}, SETTINGS, 8)
        s = similarities(pairs, bags, maps)
        found[row] = posterior(row, s, C, bags.true())
        print(row, recovered(found[row], bags.true()))
    shares = torch.stack([hits(found[row], bags) for row in ROWS])
    typical = (shares.T - shares.mean(1)).abs().sum(1)  # the bag nearest to the mean of both
    bag = int(typical.argmin())
    config = ImageData(name="cifar100", image_size=32, validation_share=0.0)
    images = load_images(config).splits["train"]
    rows, columns = rest[bags.images[bag]], rest[bags.texts[bag]]
    pixels = images.pixels[images.index[rows]].permute(0, 2, 3, 1).numpy()
    names = [data.names[int(data.y[column])].replace("_", " ") for column in columns]
    draw(pixels, names, {row: q[bag] for row, q in found.items()}, bags.true()[bag], path)


def hits(q: torch.Tensor, bags: Bags) -> torch.Tensor:
    """The share of the pairs of each bag that the row argmax finds, (G,)."""
    return bags.true().gather(2, q.argmax(2, keepdim=True)).double().mean((1, 2))


def draw(pixels, names, found, true, path: Path) -> None:  # type: ignore[no-untyped-def]
    """Thumbnails on the left, a heat map per row, a ring around each true pair."""
    size = len(names)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 4.9))
        grid = figure.add_gridspec(size, 1 + 6 * len(found), wspace=0.5, hspace=0.05)
        for place, picture in enumerate(pixels):
            ax = figure.add_subplot(grid[place, 0])
            ax.imshow(picture)
            ax.axis("off")
        for number, (row, q) in enumerate(found.items()):
            ax = figure.add_subplot(grid[:, 1 + 6 * number : 7 + 6 * number])
            ax.imshow(q.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            where = true.nonzero()
            ax.scatter(where[:, 1], where[:, 0], s=90, facecolors="none", edgecolors="#d55e00")
            ax.set_xticks(range(size), names, rotation=60, ha="right", fontsize=8)
            ax.set_yticks([])
            errors = int((~true.gather(1, q.argmax(1, keepdim=True))).sum())
            ax.set_title(f"{row}: {size - errors} of {size} pairs", fontsize=10)
        save_png(figure, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
