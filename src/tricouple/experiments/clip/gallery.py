"""What the report shows of a run: queries with their answers, similarities, the plan."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from tricouple.conf.schema import Clip
from tricouple.evaluation.features import embed_images, embed_texts
from tricouple.experiments.clip.captions import RunCaptions
from tricouple.experiments.clip.method import build_model, normalisation_of
from tricouple.ot import triplet_sinkhorn

if TYPE_CHECKING:
    from open_clip import CLIP

ANSWERS = 5
SHOWN = 16  # pairs of the similarity matrix and of the plan: more could not be told apart
THUMBNAIL = 64  # pixels


def draw_gallery(
    config: Clip,
    found: RunCaptions,
    trained: CLIP,
    images: Tensor,
    texts: Tensor,
    sharpness: float,
) -> bytes:
    """Choose queries at random and find their answers; an archive of arrays.

    Args:
        config: Of the run; it says how many queries to show.
        found: The data.
        trained: The trained model.
        images: Embeddings of the evaluated part, shape (n, d).
        texts: Embeddings of its captions, shape (m, d).
        sharpness: c of the plan: that of the run's loss, whatever loss it is.

    Returns:
        ``queries`` and ``answers`` (positions of images), captions and thumbnails of all that is
        shown; ``similarity`` and ``plan`` of a batch, before and after training.
    """
    pairs = found.part(config.evaluation.part)
    generator = torch.Generator().manual_seed(0)  # the same queries for every loss and seed
    order = torch.randperm(len(pairs), generator=generator)
    arrays = _matrices(config, found, trained, order[:SHOWN], sharpness)
    count = min(config.evaluation.gallery, len(pairs))
    if count:
        z, w = normalize(images, dim=1), normalize(texts, dim=1)
        queries = order[:count]
        by_image = (z[queries] @ w.T).topk(min(ANSWERS, len(w)), 1)
        firsts = torch.searchsorted(pairs.owners, queries)  # the first caption of each query
        by_text = (w[firsts] @ z.T).topk(min(ANSWERS, len(z)), 1)
        shown = torch.cat([queries, by_text.indices.flatten()]).unique()
        captions = np.array(pairs.captions, dtype=object)
        arrays |= {
            "queries": queries.numpy(),
            "own_captions": captions[firsts.numpy()].astype(str),
            "answer_captions": captions[by_image.indices.numpy()].astype(str),
            "answer_owners": pairs.owners[by_image.indices].numpy(),
            "answer_captions_score": by_image.values.numpy(),
            "answer_images": by_text.indices.numpy(),
            "answer_images_score": by_text.values.numpy(),
            "thumbnail_of": shown.numpy(),
            "thumbnails": _thumbnails(pairs.images[shown]).numpy(),
        }
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    return content.getvalue()


def _matrices(
    config: Clip, found: RunCaptions, trained: CLIP, chosen: Tensor, sharpness: float
) -> dict[str, np.ndarray]:
    """Similarities of a few pairs, and the pair marginals of their three-marginal plan."""
    part = config.evaluation.part
    pairs, tokens = found.part(part), found.tokens[part]
    firsts = torch.searchsorted(pairs.owners, chosen)
    arrays = {}
    for when, model in (("before", build_model(config)), ("after", trained)):
        z = normalize(embed_images(model, pairs.images[chosen], normalisation_of(config)), dim=1)
        w = normalize(embed_texts(model, tokens[firsts]), dim=1)
        similarity = z @ w.T
        plan = triplet_sinkhorn(
            similarity.double(), 1.0, 1 / sharpness, n_iters=200, tol=1e-9, within=False
        )
        arrays[f"similarity_{when}"] = similarity.numpy()
        arrays[f"plan_positive_{when}"] = plan.pair_marginal(0, 1).numpy()
        arrays[f"plan_negative_{when}"] = plan.pair_marginal(0, 2).numpy()
    return arrays


def _thumbnails(images: Tensor) -> Tensor:
    if images.shape[-1] <= THUMBNAIL:
        return images
    small = interpolate(images.float(), THUMBNAIL, mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8)
