"""A batch of 1024 images with the activations of 64: two views of each image are positives.

python examples/cached_batches.py
"""

import torch
from torch import nn

import tricouple as tc


def encoder() -> nn.Module:
    """A small network for images of 3×32×32 pixels."""
    convolutions = nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 32))


def main(steps: int = 10, batch_size: int = 1024, chunk_size: int = 64) -> list[float]:
    """Train; the loss of each step."""
    torch.manual_seed(0)
    model = encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = tc.cached(tc.NegMMIOT(sharpness=10), chunk_size)
    losses = []
    for _ in range(steps):
        images = torch.rand(batch_size // 2, 3, 32, 32)
        views = torch.cat([images, images.flip(3) + 0.1 * torch.randn_like(images)])
        ids = torch.arange(batch_size // 2).repeat(2)
        loss = step(model, views, ids)  # instead of criterion(model(views), ids)
        optimizer.zero_grad()
        loss.backward()  # runs the model again, chunk by chunk
        optimizer.step()
        losses.append(loss.item())
        print(f"loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
