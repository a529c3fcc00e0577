"""Data sets: images, captioned images, texts; how they are read, augmented and drawn in batches.

Here is what a configuration says of captions and texts, without importing what reads them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CaptionSource:
    """Which images and captions."""

    name: str  # of the data set
    format: str  # ``shapes``, ``coco``, ``csv`` or ``shards``
    # Folder of the data set; None for ``folder`` inside TRICOUPLE_DATA or the user's cache.
    root: str | None = None
    folder: str | None = None  # where data folders have this set
    # File of captions to train on, or a pattern of shards; relative to the root.
    train: str | None = None
    # The same, to choose settings on; None to hold images out of the training set.
    validation: str | None = None
    test: str | None = None  # the same, to evaluate on; None to hold images out of the training set
    train_images: str = "."  # folder that the training images are named from, relative to the root
    validation_images: str = "."  # the same for the validation images
    test_images: str = "."  # the same for the test images
    image_column: str = "path"  # of a CSV file: names of image files
    caption_column: str = "caption"  # of a CSV file: captions
    separator: str = ","  # of a CSV file: what is between two columns
    # Leave out what is not usable (missing files, empty captions, unknown images) and say how much,
    # instead of refusing.
    skip: bool = False
    train_size: int | None = None  # train on this many images at most; None for all
    validation_size: int | None = 0  # images to hold out if there is no file for validation
    test_size: int | None = 0  # the same for the test
    cache: str | None = None  # folder for decoded images; None to decode them again and again

    @property
    def own(self) -> bool:
        """Whether these are files of one's own, and no data set that its name says all of."""
        return self.folder is None and self.format != "shapes"

    @property
    def place(self) -> str | None:
        """What data of one's own are named after."""
        return self.root

    def places(self) -> tuple[str, ...]:
        """Settings that say where data are, not what they show."""
        return ("cache", *(() if self.own else ("root", "folder")))


@dataclass
class TextSource:
    """Which texts, and how many."""

    name: str  # ``phrases``, ``banking77``, ``clinc150``, ``clinc150_imbalanced`` or ``csv``
    root: str | None = None  # folder that has intents/; None for TRICOUPLE_DATA or the user's cache
    path: str | None = None  # of a table of one's own
    test_path: str | None = None  # of one to evaluate on; None to hold out rows of the first
    text_column: str = "text"  # the texts
    label_column: str | None = "label"  # their classes
    pair_column: str | None = "pair"  # or what belongs to each, in a table without classes
    separator: str = ","  # between two columns
    skip: bool = False  # leave out rows without a text or a class, and say how many
    shots: int | None = None  # so many training texts of every class; None for all
    train_size: int | None = None  # or so many in all, in the proportions of the classes
    # Training texts (of pairs: different first texts) that are held out to choose settings on; 0
    # for the published ones, if there are any.
    validation_size: int = 0
    test_size: int | None = None  # the same to evaluate on, of a table without ``test_path``

    @property
    def own(self) -> bool:
        """Whether these are files of one's own, and no data set that its name says all of."""
        return self.name == "csv"

    @property
    def place(self) -> str | None:
        """What data of one's own are named after."""
        return None if self.path is None else self.path.removesuffix(".csv")

    def places(self) -> tuple[str, ...]:
        """Settings that say where data are, not what they hold."""
        return ("root",)
