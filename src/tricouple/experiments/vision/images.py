"""The images of a run: subset, validation split, size and normalisation, all from its config."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tricouple import checks
from tricouple.conf.schema import Train
from tricouple.data import images
from tricouple.data.images import ImageData, ImageSet
from tricouple.data.normalisation import IMAGENET_MEAN, IMAGENET_STD, Normalisation
from tricouple.models.encoders import fitting_size

PRETRAINED_SIZE = 224  # what the paper resizes images to for pretrained backbones


@dataclass(frozen=True, eq=False)
class RunImages:
    """What a run trains on and is measured on.

    Attributes:
        data: The whole data set, with the run's normalisation; ``data.train`` is trained on.
        validation: Labelled training images that were held out; None if none were.
    """

    data: ImageData
    validation: ImageSet | None

    def measured(self, part: str) -> ImageSet | None:
        """The labelled images that an evaluation is about: ``test`` or ``validation``."""
        checks.one_of("evaluation.part", part, ("test", "validation"))
        if part == "validation" and self.validation is None:
            raise ValueError("evaluation.part=validation needs data.validation_size above 0")
        return self.data.test if part == "test" else self.validation

    def held_out(self, size: int, seed: int) -> ImageSet | None:
        """At most ``size`` labelled images to follow along training."""
        found = self.validation or self.data.test
        return None if found is None else _at_most(found, size, seed)


def load_images(config: Train) -> RunImages:
    """Load the data set of a run and cut it to size.

    The seed of the run chooses the subset and the validation images; the test set is always the
    same.

    Raises:
        ValueError: If files are missing or the sizes are not possible.
    """
    wanted = config.data
    data = images.load(
        wanted.name,
        wanted.root,
        image_size=wanted.image_size,
        download=wanted.download,
        eval_root=wanted.eval_root,
    )
    train = data.train
    if wanted.train_size is not None:
        train = images.subset(train, wanted.train_size, config.seed, name="data.train_size")
    elif wanted.max_train_size is not None:
        train = _at_most(train, wanted.max_train_size, config.seed)
    validation = None
    if wanted.validation_size:
        train, validation = images.split(train, wanted.validation_size, config.seed)
    probe = train if data.train.labels is not None else data.probe
    normalisation = _normalisation(config, data)
    return RunImages(
        replace(data, train=train, probe=probe, normalisation=normalisation), validation
    )


def check_trainable(config: Train, data: ImageData) -> None:
    """Refuse, before anything is computed, what training could only fail at.

    Raises:
        ValueError: If classes or batches are too small for the setting.
    """
    setting = config.setting
    checks.one_of("setting.name", setting.name, ("scl", "ucl"))
    checks.count("setting.views", setting.views)
    images.check_batch_size(data.train, config.training.batch_size, name="training.batch_size")
    if setting.name == "scl":
        images.check_supervised(data)
    elif setting.views < 2:
        raise ValueError(
            f"setting.views is {setting.views}: without labels the positives are other views of "
            "an image, so use 2"
        )


def _normalisation(config: Train, data: ImageData) -> Normalisation:
    backbone, found = config.backbone, data.normalisation
    if backbone.pretrained or backbone.weights is not None:
        grey = data.channels == 1
        found = Normalisation(
            (sum(IMAGENET_MEAN) / 3,) if grey else IMAGENET_MEAN,
            (sum(IMAGENET_STD) / 3,) if grey else IMAGENET_STD,
            config.data.image_size or PRETRAINED_SIZE,
        )
    return replace(found, size=fitting_size(backbone.name, found.size))


def _at_most(found: ImageSet, size: int, seed: int) -> ImageSet:
    return found if len(found) <= size else images.subset(found, size, seed)
