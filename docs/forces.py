"""Pictures of the pages on losses, computed from the losses: forces, and what they lead to.

``python docs/forces.py docs/assets`` writes one picture per loss.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import tricouple as tc

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


def draw(losses: Mapping[str, Loss]) -> Figure:
    """Both forces against the cosine, one line per loss, means over pairs of about that cosine."""
    figure = Figure(figsize=(8, 2.9), layout="constrained")
    axes = figure.subplots(1, 2)
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
        axis.set(title=title, xlabel="cosine", ylabel="force (−N·∂L/∂s)")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def draw_spectra(losses: Mapping[str, Loss]) -> Figure:
    """Shares of the variance per direction, before and after free embeddings are trained."""
    generator = torch.Generator().manual_seed(0)
    shrinking = 0.6 ** torch.arange(8.0)
    labels = torch.arange(N // 2).repeat(2)
    centres, noise = (torch.randn(n, 8, generator=generator) for n in (N // 2, N))
    begin = (centres[labels] + 0.5 * noise) * shrinking
    figure = Figure(figsize=(5, 2.9), layout="constrained")
    axis = figure.subplots()
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
    return figure


def byol(z: Tensor, labels: Tensor) -> Tensor:
    """BYOL's loss of two views without its predictor: −mean cos."""
    first, second = torch.nn.functional.normalize(z, dim=1).chunk(2)
    return -(first * second).sum(1).mean()


def across(criterion: tc.FusedGromov | tc.IOT) -> Loss:
    """The loss between the first view and the second."""
    half = N // 2
    return lambda z, y: criterion(z[:half], y[:half], ref_emb=z[half:], ref_labels=y[half:])


def three(edges: str) -> Loss:
    """The loss of the first view, the second, and their sum in place of a third modality."""
    criterion, half = tc.MultiModalIOT(10, edges), N // 2  # type: ignore[arg-type]

    def loss(z: Tensor, labels: Tensor) -> Tensor:
        total = torch.zeros_like(z[:half])
        total[:, :DIM] = (z[:half] + z[half:])[:, :DIM]
        return criterion({"first": z[:half], "second": z[half:], "third": total})

    return loss


info_nce = {"InfoNCE, c = 10": tc.InfoNCE(sharpness=10)}
PICTURES: dict[str, Mapping[str, Loss]] = {
    "neg-mmiot": {
        "linear ψ, c = 10": tc.NegMMIOT(sharpness=10),
        "log-sigmoid ψ, c = 10": tc.NegMMIOT(sharpness=10, epsilon=1.0, shaping="log_sigmoid"),
        **info_nce,
    },
    "push-pull": {f"PushPull, c = {c}": tc.PushPull(sharpness=c) for c in (10, 30)} | info_nce,
    "iot": {"IOT, c = 10": tc.IOT(sharpness=10), **info_nce},
    "infonce": {f"InfoNCE, c = {c}": tc.InfoNCE(sharpness=c) for c in (3, 10, 30)},
    "siglip": {f"SigLIP, c = 10, b = −{b}": tc.SigLIP(bias=-b) for b in (10, 3)} | info_nce,
    "inva-spread": {"InvaSpread, c = 10": tc.InvaSpread(sharpness=10), **info_nce},
    "dbot": {"DBOT, c = 10": tc.DBOT(sharpness=10), **info_nce},
    "fused-gromov": {
        "Fused-Gromov, c = 10, α = 0.1": across(tc.FusedGromov(sharpness=10, alpha=0.1)),
        "IOT, c = 10": across(tc.IOT(sharpness=10)),
    },
    "multi-modal-iot": {
        f"{edges}, c = 10": three(edges) for edges in ("triangle", "star", "joint")
    },
    "byol": {"BYOL without its predictor": byol, **info_nce},
}
SPECTRA = {"VICReg": tc.VICReg(), "Neg-MMIOT, c = 10": tc.NegMMIOT(sharpness=10)}


def main(folder: Path) -> None:
    """Write all pictures into a folder."""
    for name, losses in PICTURES.items():
        draw(losses).savefig(folder / f"force-{name}.png", dpi=110, metadata={"Software": ""})
    spectra = draw_spectra(SPECTRA)
    spectra.savefig(folder / "spectra-vicreg.png", dpi=110, metadata={"Software": ""})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
