"""Image data sets as 8-bit tensors: found on disk or downloaded, checked, split and batched.

>>> from tricouple.data import images
>>> data = images.load("digits")
>>> len(data.train), len(data.test), data.channels, data.image_size
(1438, 359, 1, 8)
"""

from tricouple.data.images.files import DataError
from tricouple.data.images.readers import NAMES, load, published_files
from tricouple.data.images.sets import (
    ImageData,
    ImageSet,
    check_batch_size,
    check_supervised,
    loader,
)
from tricouple.data.images.split import split, subset

__all__ = [
    "NAMES",
    "DataError",
    "ImageData",
    "ImageSet",
    "check_batch_size",
    "check_supervised",
    "load",
    "loader",
    "published_files",
    "split",
    "subset",
]
