"""What the report shows of an image-text run: queries with answers, similarities, the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple.data.captions import CaptionedImages
from tricouple.data.images.sets import Normalisation
from tricouple.evaluation.evaluate import packed, thumbnails
from tricouple.evaluation.features import embed_images, embed_texts
from tricouple.ot import triplet_sinkhorn

if TYPE_CHECKING:
    from open_clip import CLIP

ANSWERS = 5
SHOWN = 16  # pairs of the similarity matrix and of the plan: more could not be told apart


def draw_gallery(
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
    """Choose queries at random and find their answers; an archive of arrays.

    Args:
        pairs: What was evaluated.
        tokens: Of its m captions.
        images: Embeddings of its images, shape (n, d).
        texts: Embeddings of its captions, shape (m, d).
        models: ``before`` and ``after`` training.
        normalisation: Of the images.
        count: How many queries to show.
        sharpness: c of the plan: that of the run's loss, whatever loss it is.

    Returns:
        ``queries`` and ``answers`` (positions of images), captions and thumbnails of all that is
        shown; ``similarity`` and ``plan`` of a batch, before and after training.
    """
    generator = torch.Generator().manual_seed(0)  # the same queries for every loss and seed
    order = torch.randperm(len(pairs), generator=generator)
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
        z, w = normalize(images, dim=1), normalize(texts, dim=1)
        by_image = (z[queries] @ w.T).topk(min(ANSWERS, len(w)), 1)
        by_text = (w[firsts] @ z.T).topk(min(ANSWERS, len(z)), 1)
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
