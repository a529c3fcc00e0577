"""Zero-shot classification: an image belongs to the class whose name, in a sentence, is nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.functional import normalize

from tricouple.data.captions import tokenise
from tricouple.evaluation.features import evaluating
from tricouple.torchvision_ops import declare_missing

if TYPE_CHECKING:
    from open_clip import CLIP

# Sentences of many kinds, since captions have no single one; their embeddings are averaged.
TEMPLATES = (
    "a photo of a {}.",
    "a picture of a {}.",
    "a blurry photo of a {}.",
    "a close-up of a {}.",
    "a small {}.",
    "a large {}.",
    "there is a {} in the picture.",
    "the {} is outside.",
)


@dataclass(frozen=True)
class ZeroShot:
    """Accuracy without any training on the classes."""

    top1: float  # the right class is the nearest
    top5: float  # it is among the five nearest
    chance: float  # of top1 by guessing
    n_images: int  # how many images were classified
    n_classes: int  # how many classes there are


def class_embeddings(model: CLIP, names: Sequence[str], context_length: int) -> Tensor:
    """A unit vector for each class, by open_clip: the mean of its sentences' unit embeddings.

    Args:
        model: Its text encoder.
        names: Of the classes; underscores become spaces.
        context_length: Tokens that the text encoder takes.

    Returns:
        Shape (K, d), float32 on the CPU.

    Example:
        >>> from tricouple.models.clip import build_clip
        >>> vision = {"layers": 1, "width": 64, "patch_size": 8, "image_size": 16}
        >>> model = build_clip(4, vision, {"context_length": 12, "width": 64, "layers": 1})
        >>> class_embeddings(model, ["cat", "aquarium_fish"], context_length=12).shape
        torch.Size([2, 4])
    """
    declare_missing()
    from open_clip import build_zero_shot_classifier

    with evaluating(model) as (device, _):
        found: Tensor = build_zero_shot_classifier(
            model,
            lambda texts: tokenise(texts, context_length).ids.long(),
            [name.replace("_", " ") for name in names],
            TEMPLATES,
            num_classes_per_batch=32,
            device=device,
        )
    return found.T.float().cpu()


def classify(images: Tensor, classes: Tensor, labels: Tensor) -> ZeroShot:
    """Compare images with classes.

    Args:
        images: Embeddings, shape (n, d).
        classes: Unit embeddings, shape (K, d).
        labels: Class of each image, shape (n,).

    Example:
        >>> classify(torch.eye(3), torch.eye(3), torch.arange(3)).top1
        1.0
    """
    scores = normalize(images.float(), dim=1) @ classes.T
    right = scores.gather(1, labels[:, None])
    # Classes that are as near as the right one count as before it: a collapse knows nothing.
    before = (scores >= right).sum(1) - 1
    k = len(classes)
    return ZeroShot(
        float((before < 1).double().mean()),
        float((before < 5).double().mean()),
        1 / k,
        len(images),
        k,
    )
