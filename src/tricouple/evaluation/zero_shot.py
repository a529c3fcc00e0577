"""Zero-shot classification: an image belongs to the class whose name, in a sentence, is nearest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from torch import Tensor
from torch.nn.functional import normalize

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
    """Accuracy without any training on the classes.

    Attributes:
        top1: The right class is the nearest.
        top5: It is among the five nearest.
        chance: Of top1 by guessing.
        n_images: How many images were classified.
        n_classes: How many classes there are.
    """

    top1: float
    top5: float
    chance: float
    n_images: int
    n_classes: int

    def row(self) -> dict[str, float]:
        """The figures as a table row."""
        return asdict(self)


def class_embeddings(
    names: Sequence[str],
    encode: Callable[[list[str]], Tensor],
    templates: Sequence[str] = TEMPLATES,
) -> Tensor:
    """A unit vector for each class: the mean of its sentences' unit embeddings.

    Args:
        names: Of the classes; underscores become spaces.
        encode: Texts to embeddings, shape (n, d).
        templates: Sentences with ``{}`` where the name goes.

    Returns:
        Shape (K, d).

    Example:
        >>> lengths = lambda texts: torch.tensor([[len(text), 1.0] for text in texts])
        >>> class_embeddings(["cat", "aquarium_fish"], lengths).shape
        torch.Size([2, 2])
    """
    sentences = [text.format(name.replace("_", " ")) for name in names for text in templates]
    embeddings = normalize(encode(sentences).float(), dim=1)
    means = embeddings.reshape(len(names), len(templates), -1).mean(1)
    return normalize(means, dim=1)


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
