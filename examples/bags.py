"""Images and texts that belong together only as bags of four, such as pages: which to which?

    python examples/bags.py

Each step matches the bags of its batch by a balanced plan and trains on the soft pairs.
"""

import torch
from torch import nn

import tricouple as tc


def main(steps: int = 60, n_bags: int = 128, size: int = 4) -> tuple[float, float]:
    """Train; the share of texts that are matched to their own image, before and after."""
    torch.manual_seed(0)
    meaning = torch.randn(n_bags * size, 16)  # what an image and its text have in common
    images, texts = (meaning @ torch.randn(16, 64) + torch.randn(len(meaning), 64) for _ in "it")
    bags = torch.arange(n_bags).repeat_interleave(size)
    f, g = nn.Linear(64, 16), nn.Linear(64, 16)
    criterion = tc.BothDirections(tc.InfoNCE(sharpness=10))
    optimizer = torch.optim.Adam([*f.parameters(), *g.parameters()], lr=1e-2)

    def share() -> float:
        pairs = tc.match_bags(f(images), g(texts), bags)
        return float((pairs.argmax(0) == torch.arange(len(texts))).float().mean())

    before = share()
    for _ in range(steps):
        batch = (torch.randperm(n_bags)[:32, None] * size + torch.arange(size)).flatten()
        x, y = f(images[batch]), g(texts[batch])
        optimizer.zero_grad()
        criterion(x, y, pairs=tc.match_bags(x, y, bags[batch], sharpness=5)).backward()
        optimizer.step()
    print(f"matched {before:.1%} before, {share():.1%} after, {1 / size:.0%} by chance")
    return before, share()


if __name__ == "__main__":
    main()
