"""Pictures of the pages on losses: the force on one sample, from the real gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import torch
from torch import Tensor

N, DIM, BATCHES = 64, 32, 8
COSINES = torch.linspace(-0.95, 0.95, 39, dtype=torch.float64)


def force(criterion: Callable[[Tensor, Tensor], Tensor], *, positive: bool) -> Tensor:
    """−dL/ds of a sample at cosine s from an anchor, times N, the mean over random batches.

    Two views of N/2 instances; the sample (the anchor's other view, or a negative) is moved along
    the great circle through the anchor and itself. Above 0 it is pulled towards the anchor.
    """
    total = torch.zeros_like(COSINES)
    for seed in range(BATCHES):
        generator = torch.Generator().manual_seed(seed)
        centres = torch.randn(N // 2, DIM, generator=generator, dtype=torch.float64)
        noise = torch.randn(N, DIM, generator=generator, dtype=torch.float64)
        labels = torch.arange(N // 2).repeat(2)
        z = torch.nn.functional.normalize(centres[labels] + 0.7 * noise, dim=1)
        moved = N // 2 if positive else 1
        anchor, other = z[0], z[moved]
        side = torch.nn.functional.normalize(other - (other @ anchor) * anchor, dim=0)
        for place, s in enumerate(COSINES):
            cosine = s.clone().requires_grad_()
            at = cosine * anchor + (1 - cosine**2).sqrt() * side
            batch = torch.cat([z[:moved], at[None], z[moved + 1 :]])
            (slope,) = torch.autograd.grad(criterion(batch, labels), cosine)
            total[place] -= slope
    return N * total / BATCHES


def draw(losses: Mapping[str, Callable[[Tensor, Tensor], Tensor]]) -> None:
    """Both forces over the cosine, a line a loss."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.9), layout="constrained")
    for axis, positive, title in (
        (axes[0], False, "on a negative"),
        (axes[1], True, "on the positive"),
    ):
        for name, criterion in losses.items():
            axis.plot(COSINES, force(criterion, positive=positive), label=name)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set(title=title, xlabel="cosine to the anchor", ylabel="pull (above 0), push (below)")
    axes[0].legend(frameon=False, fontsize=8)
    plt.show()
