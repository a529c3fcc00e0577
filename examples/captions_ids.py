"""Images with several captions, of which some are equal: they are positives, not negatives.

python examples/captions_ids.py
"""

import torch

import tricouple as tc
from tricouple.adapters.open_clip import ClipLoss

PAIRS = [  # an image and one of its captions
    ("park.jpg", "a dog"),
    ("park.jpg", "a dog on the grass"),
    ("yard.jpg", "a dog"),
    ("beach.jpg", "two people by the sea"),
]


def identities(pairs: list[tuple[str, str]]) -> list[int]:
    """One number for pairs with the same image or the same caption, also through others."""
    ids = list(range(len(pairs)))
    for i, one in enumerate(pairs):
        for j, other in enumerate(pairs[:i]):
            if one[0] == other[0] or one[1] == other[1]:
                ids = [ids[j] if number == ids[i] else number for number in ids]
    return ids


def main() -> tuple[float, float]:
    """The loss without and with identities."""
    torch.manual_seed(0)
    images, texts = torch.randn(4, 8), torch.randn(4, 8)  # of the two encoders
    criterion, scale = ClipLoss(tc.NegMMIOT()), torch.tensor(10.0)
    plain, ids = criterion(images, texts, scale), identities(PAIRS)
    print(f"ids {ids}, loss {criterion(images, texts, scale, ids=ids):.4f}, {plain:.4f} without")
    return float(plain), float(criterion(images, texts, scale, ids=ids))


if __name__ == "__main__":
    main()
