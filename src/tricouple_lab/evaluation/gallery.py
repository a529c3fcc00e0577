"""What the report shows of trained encoders: nearest samples, confusions, maps, plans.

Each gallery is an archive of arrays, for ``tricouple report``.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from tricouple.ot import triplet_sinkhorn
from tricouple_lab.data.images.sets import ImageSet, Normalisation
from tricouple_lab.data.pairs import CaptionedImages
from tricouple_lab.data.sampler import shuffled
from tricouple_lab.data.texts import Texts
from tricouple_lab.evaluation.features import Features, embed_images, embed_texts, sample
from tricouple_lab.evaluation.probe import Evaluation, nearest_mean

if TYPE_CHECKING:
    from open_clip import CLIP

MAPPED = 300  # samples of a map: enough to see classes, few enough for t-SNE in a second
QUERIES = 8
ANSWERS = 4
THUMBNAIL = 64  # pixels


def image_gallery(
    result: Evaluation,
    train: Features,
    test: Features,
    images: tuple[ImageSet, ImageSet],
    seed: int = 0,
) -> bytes:
    """Confusion, features for a map, and test images with their nearest training images.

    `result` is of ``evaluate_features``, `images` are those of `train` and of `test`.
    """
    mapped = sample(test.labels, MAPPED, seed)
    queries = sample(test.labels, max(QUERIES, min(len(result.classes), 2 * QUERIES)), seed + 1)
    near = nearest(test.embedding[queries], train.embedding, ANSWERS)
    arrays = {
        "classes": np.array(result.classes, dtype=str),
        "labels": test.labels[mapped].numpy(),
        "query_labels": test.labels[queries].numpy(),
        "queries": thumbnails(images[1].images[queries]).numpy(),
        "answer_labels": train.labels[near.indices].numpy(),
        "answers": thumbnails(images[0].images[near.indices.flatten()]).numpy(),
        "scores": near.values.numpy(),
    }
    for found, (kind, features) in zip(
        (result.penultimate, result.embedding), test.kinds(), strict=True
    ):
        arrays[f"confusion_{kind}"] = np.array(found.confusion)
        arrays[f"features_{kind}"] = features[mapped].to(torch.float32).numpy()
    return packed(arrays)


def thumbnails(images: Tensor) -> Tensor:
    """Images (n, c, h, w) of 8 bits, small enough for a page."""
    if images.shape[-1] <= THUMBNAIL:
        return images
    small = interpolate(images.float(), THUMBNAIL, mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8)


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """Arrays as the bytes of an NPZ file."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    return content.getvalue()


def nearest(queries: Tensor, items: Tensor, count: int) -> torch.return_types.topk:
    """Cosines and positions of the items (n, d) that are nearest to each query, best first."""
    z, w = (normalize(part.double(), dim=1) for part in (queries, items))
    return (z @ w.T).topk(min(count, len(w)), 1)


# --- images and captions --------------------------------------------------------------------------

PAIR_ANSWERS = 5
SHOWN = 16  # pairs of the similarity matrix and of the plan: more could not be told apart


def pair_gallery(
    pairs: CaptionedImages,
    tokens: Tensor,
    images: Tensor,
    texts: Tensor,
    models: Mapping[str, CLIP],
    normalisation: Normalisation,
    *,
    count: int,
    sharpness: float,
) -> bytes:
    """Queries at random and their answers; similarities and plans of a batch.

    `tokens` (m, length) and `texts` (m, d) are of all captions, `images` (n, d) embeddings too;
    `models` are ``before`` and ``after`` training. The plan has the sharpness c of the run's loss.
    """
    order = shuffled(len(pairs), 0)  # the same queries for every loss and seed
    firsts = torch.searchsorted(pairs.owners, order)  # the first caption of each image
    arrays: dict[str, np.ndarray] = {}
    for when, model in models.items():
        shown = embed_images(model, pairs.images[order[:SHOWN]], normalisation)
        told = embed_texts(model, tokens[firsts[:SHOWN]])
        arrays |= {
            f"{name}_{when}": value for name, value in _matrices(shown, told, sharpness).items()
        }
    queries, firsts = order[:count], firsts[:count]
    if count:
        by_image = nearest(images[queries], texts, PAIR_ANSWERS)
        by_text = nearest(texts[firsts], images, PAIR_ANSWERS)
        seen = torch.cat([queries, by_text.indices.flatten()]).unique()
        captions = np.array(pairs.captions, dtype=object)
        arrays |= {
            "queries": queries.numpy(),
            "own_captions": captions[firsts.numpy()].astype(str),
            "answer_captions": captions[by_image.indices.numpy()].astype(str),
            "answer_owners": pairs.owners[by_image.indices].numpy(),
            "answer_captions_score": by_image.values.numpy(),
            "answer_images": by_text.indices.numpy(),
            "answer_images_score": by_text.values.numpy(),
            "thumbnail_of": seen.numpy(),
            "thumbnails": thumbnails(pairs.images[seen]).numpy(),
        }
    return packed(arrays)


def _matrices(images: Tensor, texts: Tensor, sharpness: float) -> dict[str, np.ndarray]:
    """Similarities of a few pairs, and the pair marginals of their three-marginal plan."""
    similarity = normalize(images, dim=1) @ normalize(texts, dim=1).T
    plan = triplet_sinkhorn(
        similarity.double(), 1.0, 1 / sharpness, n_iters=200, tol=1e-9, within=False
    )
    return {
        "similarity": similarity.numpy(),
        "plan_positive": plan.pair_marginal(0, 1).numpy(),
        "plan_negative": plan.pair_marginal(0, 2).numpy(),
    }


# --- texts ----------------------------------------------------------------------------------------

CONFUSED = 12  # pairs of classes, and classes of a map: as many as can be told apart
DIMENSIONS = 50  # of a map before t-SNE: what is dropped is noise, and the file stays small

# Of one kind of features: of the training texts and of those that are measured, each column (n, d).
Embedded = tuple[Sequence[Tensor], Sequence[Tensor]]


def text_gallery(
    texts: tuple[Texts, Texts],
    features: Mapping[str, Embedded],
    classes: Sequence[str],
    count: int,
) -> bytes:
    """Nearest texts, confused classes, a map; the same texts for every run.

    `texts` are those of the training and those that are measured, `features` are ``penultimate``
    and ``embedding``; pairs have no `classes`.
    """
    train, test = texts
    known, unseen = features["embedding"]
    order = shuffled(len(test), 0)
    queries = order[:count]
    items, names = (known[0], train.texts) if classes else (unseen[1], test.answers)
    near = nearest(unseen[0][queries], items, ANSWERS)
    answers = [[names[place] for place in row] for row in near.indices.tolist()]
    arrays: dict[str, np.ndarray] = {
        "answers": np.array(answers, dtype=str),
        "scores": near.values.numpy(),
    }
    if classes:
        predicted = nearest_mean(known[0], train.labels, unseen[0])[0]
        arrays |= {
            "query_labels": test.labels[queries].numpy(),
            "answer_labels": train.labels[near.indices].numpy(),
            **_confused(test, predicted, len(classes)),
        }
        shown = _shown_classes(arrays, test.labels)
        mapped = order[torch.isin(test.labels[order], shown)][:MAPPED]
        labels = torch.searchsorted(shown, test.labels[mapped])
        groups = [classes[code] for code in shown.tolist()]
        parts = {kind: own[1][0][mapped] for kind, own in features.items()}
    else:
        arrays["right"] = (test.labels[near.indices] == test.labels[queries][:, None]).numpy()
        mapped = order[: MAPPED // 2]
        labels = torch.arange(2).repeat_interleave(len(mapped))
        groups = ["texts", "their pairs"]
        parts = {
            kind: torch.cat([column[mapped] for column in own[1]]) for kind, own in features.items()
        }
    arrays |= {
        "classes": np.array(classes, dtype=str),
        "queries": np.array([test.texts[place] for place in queries], dtype=str),
        "map_labels": labels.numpy(),
        "map_names": np.array(groups, dtype=str),
        **{f"map_{kind}": reduced(part).half().numpy() for kind, part in parts.items()},
    }
    return packed(arrays)


def _confused(test: Texts, predicted: Tensor, n_classes: int) -> dict[str, np.ndarray]:
    """Which class is taken for which most often, how often, of how many, and a text for each."""
    pairs = test.labels * n_classes + predicted
    counts = pairs.bincount(minlength=n_classes**2).reshape(n_classes, n_classes)
    wrong = counts.clone().fill_diagonal_(0).flatten()
    top = wrong.argsort(descending=True, stable=True)[:CONFUSED]
    top = top[wrong[top] > 0]
    first = [int((pairs == pair).nonzero()[0, 0]) for pair in top]
    return {
        "confused": torch.stack([top // n_classes, top % n_classes], 1).numpy(),
        "confused_count": wrong[top].numpy(),
        "confused_of": counts.sum(1)[top // n_classes].numpy(),
        "confused_text": np.array([test.texts[place] for place in first], dtype=str),
    }


def _shown_classes(arrays: Mapping[str, np.ndarray], labels: Tensor) -> Tensor:
    """The classes that are confused most, then others; in ascending order."""
    first = dict.fromkeys([*arrays["confused"].flatten().tolist(), *labels.unique().tolist()])
    return torch.tensor(sorted(list(first)[:CONFUSED]))


def reduced(features: Tensor) -> Tensor:
    """Unit vectors in their leading dimensions, which keep their cosines.

    Example:
        >>> z = normalize(torch.randn(9, 60), dim=1)
        >>> torch.allclose(reduced(z) @ reduced(z).T, z @ z.T, atol=1e-5)
        True
    """
    z = normalize(features.float(), dim=1)
    directions: Tensor = torch.linalg.svd(z, full_matrices=False)[2][:DIMENSIONS]
    return z @ directions.T
