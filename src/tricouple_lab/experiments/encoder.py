"""A trained encoder, ready to use: ``tricouple_lab.load_encoder``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch import Tensor, nn

if TYPE_CHECKING:
    from open_clip import CLIP
    from PIL.Image import Image

    from tricouple_lab.conf.schema import Clip, Text, Train
    from tricouple_lab.data.images.sets import Normalisation
    from tricouple_lab.experiments.runs.folder import RunFolder
    from tricouple_lab.models.sentences import Backbone, SentenceEncoder


@dataclass(frozen=True)
class Transform:
    """From a picture to what an encoder sees, as in its evaluation: cut, scaled, standardised."""

    normalisation: Normalisation
    side: int  # of the square that is cut out, before it gets the size of the network's images

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return len(self.normalisation.mean)

    def __call__(self, image: Image | Path | str) -> Tensor:
        """Prepare a picture, or the file of one: float32 of shape (c, size, size)."""
        from tricouple_lab.data.images.files import decode, pixels

        if isinstance(image, str | Path):
            found = decode(Path(image).expanduser(), self.channels, self.side)
        else:
            found = pixels(image, self.channels, self.side)
        return self.normalisation(found[None])[0]


class TrainedEncoder(NamedTuple):
    """A trained encoder and what it takes to use it."""

    # Images (n, c, h, w), or a list of texts → embeddings (n, d); in evaluation mode, on the CPU.
    model: nn.Module
    transform: Callable[[Any], Any]  # a picture → (c, h, w): a ``Transform``; of texts ``str``
    classes: tuple[str, ...]  # of the samples that it was trained on; empty if they had none


class ImageTextModel(nn.Module):
    """Both encoders of a run of ``tricouple clip``; called as a model, that of the images."""

    def __init__(self, model: CLIP, context_length: int) -> None:
        super().__init__()
        self.model, self.context_length = model, context_length

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, 3, h, w) → embeddings (n, d)."""
        return cast(Tensor, self.model.encode_image(images))

    def texts(self, given: Sequence[str]) -> Tensor:
        """Texts → embeddings (n, d) in the space of the images."""
        from tricouple_lab.data.pairs import tokenise

        return cast(Tensor, self.model.encode_text(tokenise(given, self.context_length).ids.long()))


class TextModel(nn.Module):
    """The encoder of a run of ``tricouple text``: a list of texts → embeddings (n, d)."""

    def __init__(self, backbone: Backbone, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.backbone, self.encoder = backbone, encoder

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Texts → embeddings (n, d)."""
        return self.project(self.features(texts))

    def features(self, texts: Sequence[str]) -> Tensor:
        """What is before the head, shape (n, width)."""
        return cast(Tensor, self.backbone(texts))

    def project(self, features: Tensor) -> Tensor:
        """The head."""
        return self.encoder.project(features)


def load_encoder(run: Path | str) -> TrainedEncoder:
    """Model, transform and class names of a run of ``tricouple train``, ``clip`` or ``text``.

    The model of an image-text run embeds images; its method ``texts`` embeds texts beside them.
    That of a text run takes a list of texts.

    Its data are not needed. A run that is not finished gives the weights of its last epoch.

    Args:
        run: The folder of the run.

    Raises:
        ValueError: If this is no run, or its weights are damaged.
        ImportError: If a package is missing; it names the extra that brings it.

    Example:
        >>> model, transform, classes = load_encoder("runs/digits-scl-…")  # doctest: +SKIP
        >>> model(transform("photo.jpg")[None])  # doctest: +SKIP
        tensor([[ 0.8, …]])
        >>> load_encoder("runs/text-…").model(["where is my card?"])  # doctest: +SKIP
        tensor([[ 0.1, …]])
    """
    with _extra_named("train"):
        from tricouple_lab.conf.schema import Clip, Text, Train
        from tricouple_lab.experiments.runs.folder import RunError, RunFolder

        folder = RunFolder(Path(run).expanduser())
        loaders: list[tuple[str, type, Any]] = [
            ("train,clip", Clip, _of_pairs),
            ("train,text", Text, _of_texts),
        ]
        for extra, kind, load in loaders:
            try:
                config: Any = folder.read(kind)
            except RunError:
                continue
            with _extra_named(extra):
                return cast(TrainedEncoder, load(folder, config))
        return _of_images(folder, folder.read(Train))


def _of_images(folder: RunFolder, config: Train) -> TrainedEncoder:
    from tricouple_lab.data.images.sets import Normalisation
    from tricouple_lab.experiments.vision import about, load_images
    from tricouple_lab.files import CheckpointError
    from tricouple_lab.models.encoders import build_encoder

    trained = folder.read_trained(config)
    # Neither a checkpoint nor the version before says what the data were.
    found = trained.about or about(config, load_images(config))
    try:
        normalisation = Normalisation(**found["normalisation"])
        model = build_encoder(
            config.backbone.name,
            channels=len(normalisation.mean),
            image_size=normalisation.size,
            head_dim=int(found["head_dim"]),
        )
        transform = Transform(normalisation, int(found["side"]))
        classes = tuple(map(str, found["classes"]))
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{folder.encoder} is damaged, it lacks {error}") from error
    trained.restore(model, folder)
    return TrainedEncoder(model.eval(), transform, classes)


def _of_pairs(folder: RunFolder, config: Clip) -> TrainedEncoder:
    from tricouple_lab.experiments import clip

    model, normalisation = clip.make_encoder(config), clip.normalisation_of(config)
    folder.read_trained(config).restore(model, folder)
    both = ImageTextModel(model, clip.context_length(config)).eval()
    return TrainedEncoder(both, Transform(normalisation, normalisation.size), ())


def _of_texts(folder: RunFolder, config: Text) -> TrainedEncoder:
    from tricouple_lab.experiments.text import about, load_texts, place_of
    from tricouple_lab.files import CheckpointError
    from tricouple_lab.models.sentences import SentenceEncoder, build_backbone

    trained = folder.read_trained(config)
    found = trained.about or about(config, load_texts(config))
    backbone = build_backbone(place_of(config.model))
    tuned = backbone if config.model.finetune else None
    try:
        encoder = SentenceEncoder(int(found["width"]), config.model.head_dim, tuned)
        classes = tuple(map(str, found["classes"]))
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{folder.encoder} is damaged, it lacks {error}") from error
    trained.restore(encoder, folder)
    return TrainedEncoder(TextModel(backbone, encoder).eval(), str, classes)


@contextmanager
def _extra_named(extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"load_encoder needs {error.name}: pip install '.[{extra}]' in a clone of tricouple"
        ) from error
