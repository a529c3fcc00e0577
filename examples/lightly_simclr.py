"""SimCLR by lightly on handwritten digits, with Neg-MMIOT in the place of ``NTXentLoss``.

    python examples/lightly_simclr.py

Lines that differ from lightly's own example are marked.
"""

import tricouple as tc  # tricouple
from tricouple.adapters.lightly import TwoViewLoss  # tricouple

import torch
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms import SimCLRTransform
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Images of 8×8 pixels, each as the views that a transform makes of it."""

    def __init__(self, n_images: int, transform: SimCLRTransform) -> None:
        pixels = (load_digits().images[:n_images] * 15).astype("uint8")
        self.images = [Image.fromarray(image).convert("RGB") for image in pixels]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[Tensor]:
        return self.transform(self.images[index])


class SimCLR(nn.Module):
    """A small backbone and lightly's projection head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        )
        self.projection_head = SimCLRProjectionHead(256, 256, 64)

    def forward(self, images: Tensor) -> Tensor:
        """Projections, shape (n, 64)."""
        return self.projection_head(self.backbone(images))


def main(epochs: int = 5, n_images: int = 512) -> list[float]:
    """Train; the mean loss of each epoch."""
    torch.manual_seed(0)
    colourless = {"cj_prob": 0.0, "random_gray_scale": 0.0, "gaussian_blur": 0.0, "hf_prob": 0.0}
    transform = SimCLRTransform(input_size=16, min_scale=0.5, **colourless)
    loader = DataLoader(Digits(n_images, transform), batch_size=32, shuffle=True, drop_last=True)
    model = SimCLR()
    criterion = TwoViewLoss(tc.NegMMIOT(sharpness=10))  # tricouple, for NTXentLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
    means = []
    for epoch in range(epochs):
        total = 0.0
        for x0, x1 in loader:
            z0, z1 = model(x0), model(x1)
            loss = criterion(z0, z1)
            total += loss.item()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        means.append(total / len(loader))
        print(f"epoch {epoch:2d}, loss {means[-1]:.4f}")
    return means


if __name__ == "__main__":
    main()
