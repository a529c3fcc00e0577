"""The 8×8 digits that scikit-learn carries: real data, with nothing to download."""

from __future__ import annotations

import torch

from tricouple.data.images.sets import ImageSet
from tricouple.data.images.source import Found, Request
from tricouple.data.images.split import split

TEST_FRACTION = 0.2


def read(request: Request) -> Found:
    """The 1 797 digits; a fifth of each class, the same in every run, is the test set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images)[:, None]  # 17 grey levels, 0 to 16
    levels = (images * (255 / 16)).round().to(torch.uint8)
    whole = ImageSet(levels, torch.from_numpy(digits.target).long())
    train, test = split(whole, TEST_FRACTION)
    # Measured on the training images, to four digits.
    return Found(train, test, tuple("0123456789"), (0.3058,), (0.3759,))
