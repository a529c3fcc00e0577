"""Retrieval between two sets of embeddings, zero-shot classification, geometry of modalities."""

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


Metrics = tuple[dict[str, float], dict[str, float]]  # of the embeddings, and of chance


class Retrieved(NamedTuple):
    """Recall at each of ``RANKS``, and what a random order of the items has."""

    recall: Tensor  # shape (3,)
    chance: Tensor  # shape (3,)


def retrieve(queries: Tensor, items: Tensor, query_ids: Tensor, item_ids: Tensor) -> Retrieved:
    """Rank all items by their cosine with each query; an item of the same id is a right answer.

    Equal items are ranked in random order, in expectation: embeddings that have collapsed to one
    point have the recall of chance. Queries (n, d) with ids (n,), items (m, d) with ids (m,).
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

    ``ahead`` wrong items come first, then ``wrong`` and ``right`` items in random order, all (n,).
    No right one is drawn in the k − ahead places left with probability
    ∏ⱼ (wrong − j) / (wrong + right − j). Returns (n, 3).
    """
    missed = torch.ones(len(ahead), max(RANKS) + 1, dtype=torch.float64, device=ahead.device)
    for drawn in range(max(RANKS)):
        factor = (wrong - drawn).clamp(min=0) / (wrong + right - drawn).clamp(min=1)
        missed[:, drawn + 1] = missed[:, drawn] * factor
    places = torch.tensor(RANKS, device=ahead.device) - ahead[:, None]  # (n, 3)
    return 1 - missed.gather(1, places.clamp(min=0))


def both_ways(first: Tensor, second: Tensor, ids: Tensor, names: tuple[str, str]) -> Metrics:
    """Recall in both directions; ``ids`` (m,) say which row of ``first`` each row of ``second`` is.

    Returns ``recall/A_to_B@k``, ``recall/B_to_A@k``, ``recall/mean@1``, and the same of chance.
    """
    own = torch.arange(len(first), device=ids.device)
    found = {
        f"{names[0]}_to_{names[1]}": retrieve(first, second, own, ids),
        f"{names[1]}_to_{names[0]}": retrieve(second, first, ids, own),
    }
    return _named("recall", found)


def in_batches(images: Tensor, texts: Tensor, image_index: Tensor, batch_size: int) -> Metrics:
    """Recall among the pairs of a batch, as in training: random images, one caption of each.

    Image i has its first caption in the first round, its second in the second, and so on, as many
    rounds as every image has captions. A last, smaller batch is left out. ``image_index`` ascends.
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


def _named(place: str, found: dict[str, Retrieved]) -> Metrics:
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


def class_embeddings(model: Any, classes: Sequence[str], tokenise: Any) -> Tensor:
    """Return the mean of the embeddings of each class's sentences, unit vectors (K, d)."""
    from open_clip import SIMPLE_IMAGENET_TEMPLATES, build_zero_shot_classifier

    device = next(model.parameters()).device
    words = [name.replace("_", " ") for name in classes]
    options: Any = {"num_classes_per_batch": 32, "device": device}
    given = model, tokenise, words, SIMPLE_IMAGENET_TEMPLATES
    found: Tensor = build_zero_shot_classifier(*given, **options)
    return found.T.float()
