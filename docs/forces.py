"""Pictures of the pages on losses, from the real losses: forces, and what they lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import torch
from torch import Tensor

N, DIM, ANCHORS, BATCHES = 48, 6, 4, 6
STEP = 1e-3  # of a numerical derivative
DESCENT = 200  # steps
BINS = torch.linspace(-0.9, 0.9, 19, dtype=torch.float64)

Loss = Callable[[Tensor, Tensor], Tensor]


def force(criterion: Loss, *, positive: bool) -> tuple[Tensor, Tensor]:
    """Cosines s of pairs in random batches, and −N·∂L/∂s: above 0 the two attract each other.

    In an extra dimension of their own, two samples at ±δ change their inner product by ±δ² and no
    other: the difference of the two losses is 2δ²·∂L/∂s.
    """
    cosines, forces = [], []
    for seed in range(BATCHES):
        generator = torch.Generator().manual_seed(seed)
        centres = torch.randn(N // 2, DIM, generator=generator, dtype=torch.float64)
        noise = torch.randn(N, DIM, generator=generator, dtype=torch.float64)
        labels = torch.arange(N // 2).repeat(2)
        z = torch.nn.functional.normalize(centres[labels] + 0.5 * noise, dim=1)
        for anchor in range(ANCHORS):
            same = labels[N // 2 :] == labels[anchor]  # of the second view
            for other in ((same == positive).nonzero()[:, 0] + N // 2).tolist():
                values = []
                for sign in (1.0, -1.0):
                    extra = z.new_zeros(N, 1)
                    extra[anchor], extra[other] = STEP, sign * STEP
                    values.append(float(criterion(torch.cat([z, extra], 1), labels)))
                cosines.append(float(z[anchor] @ z[other]))
                forces.append(-N * (values[0] - values[1]) / (2 * STEP**2))
    return torch.tensor(cosines), torch.tensor(forces)


def draw(losses: Mapping[str, Loss]) -> None:
    """Both forces over the cosine, a line a loss, means over pairs of about that cosine."""
    _, axes = plt.subplots(1, 2, figsize=(8, 2.9), layout="constrained")
    for axis, positive, title in (
        (axes[0], False, "between an anchor and a negative"),
        (axes[1], True, "between an anchor and its positive"),
    ):
        for name, criterion in losses.items():
            cosines, forces = force(criterion, positive=positive)
            places = torch.bucketize(cosines.double(), BINS)
            shown = [bin for bin in range(len(BINS) + 1) if bool((places == bin).any())]
            axis.plot(
                [float(cosines[places == bin].mean()) for bin in shown],
                [float(forces[places == bin].mean()) for bin in shown],
                marker=".",
                label=name,
            )
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set(title=title, xlabel="cosine", ylabel="attraction")
    axes[0].legend(frameon=False, fontsize=8)
    plt.show()


def draw_spectra(losses: Mapping[str, Loss]) -> None:
    """How the variance is shared out over directions, before and after free embeddings descend."""
    generator = torch.Generator().manual_seed(0)
    shrinking = 0.6 ** torch.arange(8.0)
    labels = torch.arange(N // 2).repeat(2)
    centres, noise = (torch.randn(n, 8, generator=generator) for n in (N // 2, N))
    begin = (centres[labels] + 0.5 * noise) * shrinking
    _, axis = plt.subplots(figsize=(5, 2.9), layout="constrained")
    for name, criterion in {"before": None, **losses}.items():
        z = begin.clone().requires_grad_()
        optimiser = torch.optim.Adam([z], lr=0.02)
        for _ in range(DESCENT if criterion else 0):
            optimiser.zero_grad()
            criterion(z, labels).backward()
            optimiser.step()
        variances = torch.linalg.eigvalsh(z.detach().T.cov()).flip(0)
        axis.plot(range(1, 9), variances / variances.sum(), marker=".", label=name)
    axis.set(xlabel="direction", ylabel="share of the variance")
    axis.legend(frameon=False, fontsize=8)
    plt.show()
