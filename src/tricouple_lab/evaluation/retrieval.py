"""Retrieval across modalities, recall@k and in batches, and zero-shot classification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple import checks
from tricouple.torchvision_ops import declare_missing
from tricouple_lab.data.pairs import tokenise
from tricouple_lab.evaluation.features import evaluating

if TYPE_CHECKING:
    from open_clip import CLIP

RANKS = (1, 5, 10)


@dataclass(frozen=True)
class Recall:
    """How often a right answer is among the first k."""

    at1: float  # k = 1
    at5: float  # k = 5
    at10: float  # k = 10


@dataclass(frozen=True)
class Retrieval:
    """Both directions, and what guessing would give."""

    image_to_text: Recall  # an image is the query, any of its captions a right answer
    text_to_image: Recall  # a caption is the query, its image the right answer
    chance: Recall  # recall of random rankings, image to text
    chance_text: Recall  # recall of random rankings, text to image
    candidates: tuple[int, int]  # how many texts and how many images there are to choose from


def whole_split(images: Tensor, texts: Tensor, owners: Tensor) -> Retrieval:
    """Retrieval among all images (n, d) and captions (m, d); owners (m,) say whose a caption is.

    Example:
        >>> z = torch.eye(3)
        >>> whole_split(z, z, torch.arange(3)).image_to_text.at1
        1.0
    """
    checks.labels("owners", owners, len(texts), texts.device)
    similarity = _unit(images) @ _unit(texts).T  # (n, m)
    own = owners == torch.arange(len(images), device=owners.device)[:, None]
    sizes, times = (part.tolist() for part in own.sum(1).unique(return_counts=True))
    guesses = zip(*(_guess(size, len(texts)) for size in sizes), strict=True)
    return Retrieval(
        _recall(best_rank(similarity, own)),
        _recall(best_rank(similarity.T, own.T)),
        Recall(*(sum(map(mul, times, guess)) / len(images) for guess in guesses)),
        Recall(*_guess(1, len(images))),
        (len(texts), len(images)),
    )


def in_batches(
    images: Tensor, texts: Tensor, owners: Tensor, batch_size: int, seed: int = 0
) -> Retrieval:
    """Retrieval among the pairs of a batch: images in random batches, a caption of each.

    Every caption takes part once or never: image i brings its first caption in the first round, its
    second in the second, as many rounds as every image has captions. A last, smaller batch is left
    out; of fewer images than a batch, all are one. These figures are higher than those of the whole
    split: there are fewer wrong answers. Owners ascend.

    Example:
        >>> z = torch.eye(4)
        >>> in_batches(z, z, torch.arange(4), batch_size=2).text_to_image.at1
        1.0
    """
    checks.labels("owners", owners, len(texts), texts.device)
    checks.count("batch_size", batch_size)
    n, size = len(images), min(batch_size, len(images))
    counts = torch.bincount(owners, minlength=n)
    first = counts.cumsum(0) - counts
    generator = torch.Generator().manual_seed(seed)
    z, w = _unit(images), _unit(texts)
    diagonal = torch.eye(size, dtype=torch.bool, device=z.device)
    ranks: tuple[list[Tensor], list[Tensor]] = ([], [])
    for turn in range(int(counts.min())):
        order = torch.randperm(n, generator=generator)[: n // size * size]
        for chosen in order.to(z.device).split(size):
            similarity = z[chosen] @ w[first[chosen] + turn].T
            ranks[0].append(best_rank(similarity, diagonal))
            ranks[1].append(best_rank(similarity.T, diagonal))
    guess = Recall(*_guess(1, size))
    there, back = (_recall(torch.cat(part)) for part in ranks)
    return Retrieval(there, back, guess, guess, (size, size))


def best_rank(similarity: Tensor, right: Tensor) -> Tensor:
    """How many wrong candidates are before the best right one, for each query (row).

    Wrong candidates that are as similar as the right one count as before it: embeddings that
    collapsed to a point find nothing.

    Example:
        >>> best_rank(torch.tensor([[0.9, 0.5, 0.1]]), torch.tensor([[False, True, False]]))
        tensor([1])
    """
    best = similarity.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
    return ((similarity >= best) & ~right).sum(1)


def _recall(ranks: Tensor) -> Recall:
    return Recall(*(float((ranks < k).double().mean()) for k in RANKS))


def _guess(right: int, candidates: int) -> list[float]:
    """Chance that a random order has one of ``right`` answers among the first k, for each k."""
    found = []
    for k in RANKS:
        missed = 1.0
        for drawn in range(min(k, candidates)):
            missed *= max(0, candidates - right - drawn) / (candidates - drawn)
        found.append(1 - missed)
    return found


def _unit(embeddings: Tensor) -> Tensor:
    checks.matrix("embeddings", embeddings)
    return normalize(embeddings.float(), dim=1)


# --- zero-shot: an image belongs to the class whose name, in a sentence, is nearest ---------------


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

    Underscores of names become spaces. Shape (K, d), float32 on the CPU.

    Example:
        >>> from tricouple_lab.models.encoders import build_clip
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
    """Compare images (n, d) with unit embeddings of classes (K, d); labels are of the images.

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
