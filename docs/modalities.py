"""Pictures of the page on three modalities: a plan, and scores of XOR triples.

``python docs/modalities.py docs/assets`` writes both.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import normalize

import tricouple as tc

N, DIM, TOPICS = 24, 8, 4


def matrices() -> dict[str, Tensor]:
    """Three ways to match images with audio, (N, N); texts have less noise than both."""
    generator = torch.Generator().manual_seed(0)
    topics = torch.randn(TOPICS, DIM, generator=generator)[torch.arange(N) * TOPICS // N]
    common, rows = topics + torch.randn(N, DIM, generator=generator), {}
    for name, noise in {"image": 1.0, "text": 0.3, "audio": 1.0}.items():
        rows[name] = common + noise * torch.randn(N, DIM, generator=generator)
    cosine = normalize(rows["image"], dim=1) @ normalize(rows["audio"], dim=1).T
    plan = tc.ot.multimodal_sinkhorn(rows, sharpness=8)
    return {
        "cosine": cosine,
        "plan of pairs": tc.ot.sinkhorn(-cosine, epsilon=1 / 8).dense(),
        "plan of three, summed over texts": plan.pair_marginal("image", "audio"),
    }


def draw_plan() -> Figure:
    """The three matrices, and the share of images whose largest entry is the right audio."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    for axis, (title, matrix) in zip(figure.subplots(1, 3), matrices().items(), strict=True):
        axis.imshow(matrix.numpy())
        right = (matrix.argmax(1) == torch.arange(N)).double().mean().item()
        axis.set(title=f"{title}\n{100 * right:.0f} % right", xlabel="audio", ylabel="image")
    return figure


def draw_xor() -> Figure:
    """Scores of right and wrong triples where each sign of z is the product of those of x and y."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(2, (2, 400, 12), generator=generator) * 2.0 - 1
    triples = {"right triples": x * y, "wrong triples": (x * y).roll(1, 0)}
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for name, z in triples.items():
        for axis, score in zip(axes, (x * y + x * z + y * z, x * y * z), strict=True):
            axis.hist(score.sum(1).numpy(), bins=40, range=(-16, 24), alpha=0.6, label=name)
    axes[0].set(title="sum of pairs", xlabel="score")
    axes[1].set(title="product of three (Symile)", xlabel="score")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def main(folder: Path) -> None:
    """Write both pictures into a folder."""
    for name, draw in {"plan-three": draw_plan, "xor": draw_xor}.items():
        draw().savefig(folder / f"{name}.png", dpi=110, metadata={"Software": ""})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
