"""Image-text: CLIP's two towers, trained on images and their captions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import tricouple as tc
from tricouple_lab.config import schema
from tricouple_lab.data.augment import Recipe, random_view
from tricouple_lab.data.captions import CaptionSplit, caption_identities, load_captions
from tricouple_lab.data.images import pixels_of
from tricouple_lab.data.sources import Sets, load_images
from tricouple_lab.evaluation import retrieval
from tricouple_lab.evaluation.probe import examples
from tricouple_lab.files import derived_seed
from tricouple_lab.models import clip
from tricouple_lab.names import UserError
from tricouple_lab.tasks.base import Data, Evaluation, Header, Model, Step, contrast, make_loss

CROPS = Recipe(scale=(0.9, 1.0), flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0)  # CLIP's
EXAMPLES = 6  # queries on the page
DRAWN = 2000  # rows of embeddings that are kept for the page
ZERO_SHOT_IMAGES = 2000
AT_A_TIME = 256


class PairBatch(NamedTuple):
    """Images and all captions that each may be shown with."""

    images: Tensor  # uint8 (n, 3, side, side)
    tokens: Tensor  # int64 (n, k, context length); of the k captions the first ``counts`` are real
    identities: Tensor  # int64 (n, k): equal ones are never negatives
    counts: Tensor  # int64 (n,)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Images with tokenised captions. A sample is an image, or a caption with its image."""

    split: CaptionSplit
    tokens: Tensor  # int64 (m, context length)
    identities: Tensor  # int64 (m,)
    each_caption: bool = False

    def __len__(self) -> int:
        return len(self.tokens) if self.each_caption else len(self.split)

    def __getitems__(self, indices: Sequence[int]) -> PairBatch:
        chosen, image_index = torch.as_tensor(indices), self.split.image_index
        if self.each_caption:
            images, places = image_index[chosen], chosen[:, None]
            counts = torch.ones_like(chosen)
        else:
            images = chosen
            first = torch.searchsorted(image_index, chosen)
            counts = torch.searchsorted(image_index, chosen, right=True) - first
            steps = torch.arange(int(counts.max())).minimum(counts[:, None] - 1)
            places = first[:, None] + steps  # (n, k)
        pixels = self.split.pixels[self.split.index[images]]
        return PairBatch(pixels, self.tokens[places], self.identities[places], counts)


class Clip:
    """Learn image and text towers with a contrastive loss in both directions."""

    name = "clip"
    metric = "recall/mean@1"

    def load(self, config: schema.Clip) -> Data:
        """Decode the images and tokenise the captions."""
        name, training = config.model.name, config.training
        found = load_captions(config.data, clip.image_side(name))
        notes, splits = list(found.notes), {}
        for split, pairs in found.splits.items():
            tokens, cut = clip.tokenise(pairs.captions, name)
            identities, note = caption_identities(pairs, config.data.identity)
            each = split == "train" and training.captions == "all"
            splits[split] = Pairs(pairs, tokens, identities, each)
            if note and split == "train":
                notes.append(note)
            if cut:
                first = shorten(cut[0], 60, placeholder=" …")
                notes.append(f"{len(cut)} {split} captions are cut, such as “{first}”")
        if config.evaluation.zero_shot:  # an error comes before training
            zero_shot_images(config.evaluation.zero_shot, clip.image_side(name))
        return Data(splits["train"], splits, (), found.digest(), tuple(notes))

    def build(self, config: schema.Clip, data: Data) -> Model:
        """Both towers; the sharpness belongs to the loss, which may learn it."""
        loss = make_loss(config.loss)
        try:
            objective = tc.BothDirections(loss, learn=config.training.learn_sharpness)  # type: ignore[arg-type]
        except ValueError as error:
            raise UserError(f"training.learn_sharpness=true: {error}") from None
        model = Model(clip.build_clip(config.model.name), objective)
        _copy_sharpness(model)
        return model

    def loss(self, config: schema.Clip, model: Model, batch: PairBatch, step: Step) -> Tensor:
        """A random crop and a random caption of each image."""
        n, share = len(batch.images), step.share
        if config.training.augment:
            seed, side = derived_seed(step.seed, "crop"), batch.images.shape[-1]
            images = random_view(batch.images, seed, CROPS, side, share)
        else:
            images = batch.images
        generator = torch.Generator().manual_seed(derived_seed(step.seed, "captions"))
        drawn = torch.rand(n * share.world, generator=generator)[share.rows]
        which = (drawn.to(batch.counts.device) * batch.counts).long()
        rows = torch.arange(n, device=which.device)
        towers = model.encoder.encode_image, model.encoder.encode_text
        inputs = clip.normalise(images), batch.tokens[rows, which]
        loss = contrast(config, model, towers, inputs, batch.identities[rows, which])
        if config.training.learn_sharpness:
            _copy_sharpness(model)
        return loss

    def evaluate(
        self, config: schema.Clip, data: Data, encoder: Any, split: str, *, full: bool
    ) -> Evaluation:
        """Recall in both directions; with ``full`` also in batches, geometry and zero-shot."""
        pairs: Pairs = data.splits[split]
        index = pairs.split.image_index
        images = embed_images(encoder, pairs.split.pixels, pairs.split.index)
        texts = embed_tokens(encoder, pairs.tokens)
        metrics, chance = retrieval.both_ways(images, texts, index, ("image", "text"))
        if not full:
            return Evaluation(metrics, chance)
        batches = retrieval.in_batches(images, texts, index, config.training.batch_size)
        if config.evaluation.zero_shot:
            shot = zero_shot(config, encoder)
            metrics, chance = metrics | shot[0], chance | shot[1]
        metrics |= batches[0] | retrieval.modalities(images, texts, index)
        chance |= batches[1]
        if config.training.learn_sharpness:
            metrics["sharpness"] = float(encoder.logit_scale.exp())
        first = torch.searchsorted(index, torch.arange(min(len(images), DRAWN)))
        arrays = {"image": images[:DRAWN].numpy(), "text": texts[first].numpy()}
        if config.evaluation.figures:
            arrays |= _examples(pairs.split, images, texts)
        return Evaluation(metrics, chance, arrays)

    def restore(self, config: schema.Clip, header: Header) -> tuple[Any, Any]:
        """The towers, and the transform of an image, a path or a PIL image."""
        model = clip.build_clip(config.model.name)
        return model, lambda item: clip.normalise(_pixels(config, [item]))[0]

    def embed(self, config: schema.Clip, encoder: Any, items: Sequence[Any]) -> np.ndarray:
        """Embed PIL images and paths with the image tower, texts with the text tower.

        A text that names an existing file is a path.
        """
        images = [row for row, item in enumerate(items) if _is_image(item)]
        texts = [row for row, item in enumerate(items) if not _is_image(item)]
        found = np.empty((len(items), clip.TOWERS[config.model.name].embed_dim), np.float32)
        for start in range(0, len(images), AT_A_TIME):
            rows = images[start : start + AT_A_TIME]
            pixels = _pixels(config, [items[row] for row in rows])
            found[rows] = embed_images(encoder, pixels, torch.arange(len(rows))).numpy()
        if texts:
            tokens = clip.tokenise([items[row] for row in texts], config.model.name)[0]
            found[texts] = embed_tokens(encoder, tokens).numpy()
        return found


@cache
def zero_shot_images(name: str, side: int) -> Sets:
    """The test images that ``evaluation.zero_shot`` names."""
    found = load_images(schema.ImageData(name=name, image_size=side, test_size=ZERO_SHOT_IMAGES))
    if found.splits["test"].pixels.shape[1] != 3 or not found.classes:
        raise UserError(f"evaluation.zero_shot={name}: needs colour images with class names")
    return found


def zero_shot(config: schema.Clip, encoder: Any) -> tuple[dict[str, float], ...]:
    """Accuracy of classifying images by the names of their classes, and chance."""
    side = clip.image_side(config.model.name)
    found = zero_shot_images(config.evaluation.zero_shot, side)
    test = found.splits["test"]
    images = embed_images(encoder, test.pixels, test.index)
    with torch.inference_mode():
        classes = retrieval.class_embeddings(
            encoder, found.classes, lambda texts: clip.tokenise(texts, config.model.name)[0]
        )
    numbers = torch.arange(len(found.classes))
    ranked = retrieval.retrieve(images, classes.cpu(), test.labels, numbers)
    keys = [f"zero_shot/{config.evaluation.zero_shot}@{rank}" for rank in retrieval.RANKS]
    return tuple(dict(zip(keys, values.tolist(), strict=True)) for values in ranked)


def _copy_sharpness(model: Model) -> None:
    """Set ``logit_scale``, with which open_clip's users multiply cosines, to that of the loss."""
    sharpness: Any = model.objective.sharpness
    if sharpness is not None:
        with torch.no_grad():
            model.encoder.logit_scale.fill_(math.log(sharpness))  # type: ignore[operator]


def embed_images(encoder: Any, pixels: Tensor, index: Tensor) -> Tensor:
    """Return embeddings (n, d) of the rows ``index`` of uint8 pixels, float32 on the CPU."""
    parts = (clip.normalise(pixels[part]) for part in index.split(AT_A_TIME))
    return _each(encoder, encoder.encode_image, parts)


def embed_tokens(encoder: Any, tokens: Tensor) -> Tensor:
    """Return embeddings (m, d) of tokens (m, context length), float32 on the CPU."""
    return _each(encoder, encoder.encode_text, tokens.split(AT_A_TIME))


@torch.inference_mode()
def _each(encoder: Any, tower: Callable[[Tensor], Tensor], parts: Any) -> Tensor:
    device = next(encoder.parameters()).device
    return torch.cat([tower(part.to(device)).float().cpu() for part in parts])


def _is_image(item: Any) -> bool:
    if not isinstance(item, str):
        return True
    return len(item) < 1000 and "\n" not in item and Path(item).expanduser().is_file()


def _pixels(config: schema.Clip, items: Sequence[Any]) -> Tensor:
    """Return uint8 images (n, 3, side, side) of paths or PIL images."""
    side = clip.image_side(config.model.name)
    return torch.stack([pixels_of(item, 3, side) for item in items])


def _examples(split: CaptionSplit, images: Tensor, texts: Tensor) -> dict[str, np.ndarray]:
    """A few images with the captions retrieved for each, and captions with their images."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(split))[:EXAMPLES])
    index, captions = split.image_index.numpy(), np.array(split.captions)
    first = np.searchsorted(index, chosen)  # a caption of each
    z, w = images.numpy(), texts.numpy()

    def pixels(rows: np.ndarray) -> np.ndarray:  # (…, side, side, 3)
        return split.pixels[split.index[torch.from_numpy(rows)]].movedim(-3, -1).numpy()

    return examples(
        "examples_image_to_text", z[chosen], w, pixels(chosen), captions.__getitem__, chosen, index
    ) | examples(
        "examples_text_to_image", w[first], z, captions[first], pixels, chosen, np.arange(len(z))
    )
