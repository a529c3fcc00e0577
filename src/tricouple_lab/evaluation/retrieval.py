"""Retrieval between two sets of embeddings, zero-shot classification, geometry of modalities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple import geometry

RANKS = (1, 5, 10)
TIE = 1e-6  # cosines that differ by less are equal: float32 has seven digits
AT_A_TIME = 1024  # queries, so that the similarities fit into memory
UNIFORMITY_SAMPLES = 4096  # its cost is quadratic


class Retrieved(NamedTuple):
    """Recall at each of ``RANKS``, and what a random order of the items has."""

    recall: Tensor  # shape (3,)
    chance: Tensor  # shape (3,)


def retrieve(queries: Tensor, items: Tensor, query_ids: Tensor, item_ids: Tensor) -> Retrieved:
    """Rank all items by their cosine with each query; an item of the same id is a right answer.

    Equal items are ranked in random order, in expectation: embeddings that have collapsed to one
    point have the recall of chance, neither 0 nor 1.

    Shape:
        queries (n, d), items (m, d), query_ids (n,), item_ids (m,).

    Example:
        >>> z, ids = torch.eye(20), torch.arange(20)
        >>> retrieve(z, z, ids, ids).recall.tolist()
        [1.0, 1.0, 1.0]
        >>> retrieve(torch.ones(20, 2), torch.ones(20, 2), ids, ids).recall[0]
        tensor(0.0500, dtype=torch.float64)
    """
    z, w = (normalize(part.float(), dim=1) for part in (queries, items))
    recalls, chances = [], []
    for part in torch.arange(len(z), device=z.device).split(AT_A_TIME):
        similarity = z[part] @ w.T  # (part, m)
        right = query_ids[part][:, None] == item_ids
        best = similarity.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
        ahead = (~right & (similarity > best + TIE)).sum(1)
        tied = (~right & ((similarity - best).abs() <= TIE)).sum(1)
        tied_right = (right & (similarity >= best - TIE)).sum(1)
        recalls.append(_share_found(ahead, tied, tied_right))
        chances.append(_share_found(torch.zeros_like(ahead), (~right).sum(1), right.sum(1)))
    return Retrieved(torch.cat(recalls).mean(0).cpu(), torch.cat(chances).mean(0).cpu())


def _share_found(ahead: Tensor, wrong: Tensor, right: Tensor) -> Tensor:
    """Return the probability that a right answer is among the first k, for each k of ``RANKS``.

    ``ahead`` wrong items come first, then ``wrong`` and ``right`` items in random order. No right
    one is drawn in the k − ahead places left with probability ∏ⱼ (wrong − j) / (wrong + right − j).

    Shape:
        All (n,); the result (n, 3).
    """
    missed = torch.ones(len(ahead), max(RANKS) + 1, dtype=torch.float64, device=ahead.device)
    for drawn in range(max(RANKS)):
        factor = (wrong - drawn).clamp(min=0) / (wrong + right - drawn).clamp(min=1)
        missed[:, drawn + 1] = missed[:, drawn] * factor
    places = torch.tensor(RANKS, device=ahead.device) - ahead[:, None]  # (n, 3)
    return 1 - missed.gather(1, places.clamp(min=0))


def both_ways(
    first: Tensor, second: Tensor, ids: Tensor, names: tuple[str, str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Recall in both directions; ``ids`` (m,) say which row of ``first`` each row of ``second`` is.

    Returns:
        ``recall/A_to_B@k``, ``recall/B_to_A@k`` and ``recall/mean@1`` of the embeddings, and the
        same of chance.
    """
    own = torch.arange(len(first), device=ids.device)
    found = {
        f"{names[0]}_to_{names[1]}": retrieve(first, second, own, ids),
        f"{names[1]}_to_{names[0]}": retrieve(second, first, ids, own),
    }
    return _named("recall", found)


def in_batches(
    images: Tensor, texts: Tensor, image_index: Tensor, batch_size: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Recall among the pairs of a batch, as in training: random images, one caption of each.

    Image i has its first caption in the first round, its second in the second, and so on, as many
    rounds as every image has captions. A last, smaller batch is left out. The values are higher
    than those of the whole split, because there are fewer wrong answers. ``image_index`` ascends.

    Returns:
        ``recall_in_batch/image_to_text@k`` and so on, and the same of chance.
    """
    n, size = len(images), min(batch_size, len(images))
    counts = torch.bincount(image_index, minlength=n)
    first = counts.cumsum(0) - counts
    generator, ids = torch.Generator().manual_seed(0), torch.arange(size)
    parts: dict[str, list[Retrieved]] = {"image_to_text": [], "text_to_image": []}
    for turn in range(int(counts.min())):
        for rows in torch.randperm(n, generator=generator)[: n // size * size].split(size):
            z, w = images[rows], texts[first[rows] + turn]
            parts["image_to_text"].append(retrieve(z, w, ids, ids))
            parts["text_to_image"].append(retrieve(w, z, ids, ids))
    means = {
        direction: Retrieved(*(torch.stack(part).mean(0) for part in zip(*found, strict=True)))
        for direction, found in parts.items()
    }
    return _named("recall_in_batch", means)


def _named(place: str, found: dict[str, Retrieved]) -> tuple[dict[str, float], dict[str, float]]:
    metrics, chance = {}, {}
    for index, rank in enumerate(RANKS):
        for direction, retrieved in found.items():
            metrics[f"{place}/{direction}@{rank}"] = float(retrieved.recall[index])
            chance[f"{place}/{direction}@{rank}"] = float(retrieved.chance[index])
    for values in (metrics, chance):
        values[f"{place}/mean@1"] = sum(values[f"{place}/{way}@1"] for way in found) / len(found)
    return metrics, chance


def modalities(images: Tensor, texts: Tensor, image_index: Tensor) -> dict[str, float]:
    """Geometry of image (n, d) and text (m, d) embeddings on the unit sphere.

    ``gap`` is the distance of the mean image from the mean text, ``alignment`` the mean squared
    distance of an image and its captions, ``uniformity`` log E exp(−2|z − z'|²): lower is more
    uniform. ``rank`` is the effective rank.
    """
    z, w = (normalize(part.float(), dim=1) for part in (images, texts))
    found = {
        "geometry/modality_gap": float((z.mean(0) - w.mean(0)).norm()),
        "geometry/alignment": float(2 - 2 * (z[image_index] * w).sum(1).mean()),
    }
    for name, part in (("image", z), ("text", w)):
        some = part[:: max(1, -(-len(part) // UNIFORMITY_SAMPLES))]
        found[f"geometry/{name}_uniformity"] = geometry.uniformity(some)
        found[f"geometry/{name}_rank"] = geometry.effective_rank(some)
    return found


# Captions have no single form: the embeddings of several sentences are averaged.
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


def class_embeddings(model: Any, classes: Sequence[str], tokenise: Any) -> Tensor:
    """Return a unit vector for each class, by open_clip: the mean of its sentences' embeddings.

    ``tokenise`` maps texts to token ids. Shape (K, d).
    """
    from open_clip import build_zero_shot_classifier

    device = next(model.parameters()).device
    words = [name.replace("_", " ") for name in classes]
    found: Tensor = build_zero_shot_classifier(
        model, tokenise, words, TEMPLATES, num_classes_per_batch=32, device=device
    )
    return found.T.float()
