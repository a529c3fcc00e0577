"""What Lightning trains: an encoder, and a loss of what it makes of a batch; and the batches.

No state of a random generator is ever saved: whatever is drawn for a step depends on the seed, the
epoch and the step alone. A run that was interrupted continues as if it had not been, and several
processes, which share each batch, train as one would: the same samples, views and loss.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from tricouple import BothDirections
from tricouple.losses.base import ContrastiveLoss
from tricouple_lab.data.augment import Recipe, random_view
from tricouple_lab.data.images.sets import BatchedSet, Normalisation, loader
from tricouple_lab.data.pairs import PairBatch
from tricouple_lab.data.sampler import Share, shuffled
from tricouple_lab.training.byol import BYOL, class_pairs, momentum_at, predictor_head

if TYPE_CHECKING:
    from open_clip import CLIP


def derived_seed(seed: int, *place: int | str) -> int:
    """A seed, below 2⁶³, for one place in a run: a purpose, an epoch, a step, a rank.

    Unequal places give unrelated seeds.
    """
    text = repr((seed, *place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class EpochOrder(Sampler[int]):
    """A random order of samples for each epoch."""

    def __init__(self, n_samples: int, seed: int) -> None:
        self.n_samples = n_samples
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; Lightning calls this before each."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        seed = derived_seed(self.seed, "order", self.epoch)
        return iter(shuffled(self.n_samples, seed).tolist())

    def __len__(self) -> int:
        return self.n_samples


class ShuffledBatches(L.LightningDataModule):
    """Shuffled batches for Lightning, shared by all processes; an incomplete last one is left out.

    All batches then have the same size, which the scale of a contrastive loss depends on.
    """

    def __init__(self, samples: BatchedSet, batch_size: int, seed: int) -> None:
        super().__init__()
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed

    def train_dataloader(self) -> DataLoader[Any]:
        """This process's share of the batches."""
        share = self.share
        if self.batch_size < share.n_processes:
            raise ValueError(
                f"training.batch_size is {self.batch_size}, but {share.n_processes} processes "
                "share each batch: use fewer trainer.devices, or larger batches"
            )
        return loader(
            self.samples,
            self.batch_size,
            order=EpochOrder(len(self.samples), self.seed),
            drop_last=True,
            rank=share.rank,
            n_processes=share.n_processes,
        )

    @property
    def share(self) -> Share:
        """What this process has of each batch."""
        if self.trainer is None:
            return Share(self.batch_size)
        return Share(self.batch_size, self.trainer.global_rank, self.trainer.world_size)


class DivergenceError(FloatingPointError):
    """The loss or the embeddings stopped being numbers."""


@dataclass(frozen=True)
class Views:
    """How many views of an image a batch holds, and how they are made."""

    count: int  # of each image
    recipe: Recipe  # ends with the normalisation, which is all that happens to plain images
    random: bool  # whether the views are random
    # Whether images of one class are positives (scl), or only views of one image (ucl).
    by_class: bool

    def draw(self, images: Tensor, seed: int, share: Share) -> list[Tensor]:
        """The views of a share of a batch: ``count`` tensors of shape (n, c, size, size)."""
        if not self.random:
            return [self.recipe.normalisation(images)] * self.count
        generator = torch.Generator().manual_seed(seed)
        return [random_view(images, self.recipe, generator, share) for _ in range(self.count)]

    def identities(self, labels: Tensor, share: Share) -> Tensor:
        """Who is whose positive, for one view, shape (n,)."""
        if self.by_class:
            return labels
        return torch.arange(share.total, device=labels.device)[share.rows]


class Training(L.LightningModule):
    """The parts that all methods share; subclasses give the loss of a batch.

    The encoder is what is kept; a checkpoint carries the identity of its run.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        learning_rate: float,
        weight_decay: float,
        seed: int,
        identity: str,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.seed = seed
        self.identity = identity

    @abstractmethod
    def batch_loss(self, batch: Any, seed: int) -> Tensor:
        """The loss of a batch as the loader gives it; the seed draws its views."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Compute the loss, and stop if it is no number."""
        place = self.current_epoch, batch_idx
        # For dropout and its like, which draw from the global generators.
        torch.manual_seed(derived_seed(self.seed, "network", *place, self.global_rank))
        # The zero was a rank when stored studies were made.
        loss = self.batch_loss(batch, derived_seed(self.seed, "views", *place, 0))
        if not self.everywhere(torch.isfinite(loss)):
            raise self.diverged(f"the loss is {float(loss)}")
        self.log(
            "loss",
            loss,
            on_step=True,
            on_epoch=True,
            prog_bar=True,
            batch_size=self.share(len(batch[-1])).total,
            sync_dist=True,
        )
        return loss

    def finite(self, embeddings: Tensor) -> Tensor:
        """The embeddings, or an error if some are no numbers."""
        if not self.everywhere(torch.isfinite(embeddings).all()):
            raise self.diverged("embeddings are not finite")
        return embeddings

    def everywhere(self, found: Tensor) -> bool:
        """Whether it is so in all processes, which go on, or stop, together."""
        if self._trainer is None:
            return bool(found)
        return self.trainer.strategy.reduce_boolean_decision(bool(found))

    def share(self, n: int) -> Share:
        """Which of the batch of all processes this process's n samples are."""
        if self._trainer is None or self.trainer.world_size == 1:
            return Share(n)
        batches: ShuffledBatches = self.trainer.datamodule  # type: ignore[attr-defined]
        return batches.share

    def diverged(self, what: str) -> DivergenceError:
        """The error that says where training broke, and what may help."""
        return DivergenceError(
            f"{what} in epoch {self.current_epoch + 1}, step {self.global_step + 1}: lower "
            "training.learning_rate or loss.sharpness"
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, as in the paper."""
        return torch.optim.Adam(
            [parameter for parameter in self.parameters() if parameter.requires_grad],
            self.learning_rate,
            weight_decay=self.weight_decay,
            # All parameters in one pass; on a CPU this is half the time of a small step.
            fused=self.device.type in ("cpu", "cuda"),
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say whose checkpoint it is."""
        checkpoint["identity"] = self.identity


# --- views of images ------------------------------------------------------------------------------


class ViewTraining(Training):
    """Training on views of images; subclasses give their loss. The options are ``Training``'s."""

    def __init__(self, encoder: nn.Module, views: Views, **options: Any) -> None:
        super().__init__(encoder, **options)
        self.views = views

    @abstractmethod
    def loss(self, views: list[Tensor], identities: Tensor) -> Tensor:
        """The loss of views, each (n, c, h, w), of images with these identities, shape (n,)."""

    def batch_loss(self, batch: tuple[Tensor, Tensor], seed: int) -> Tensor:
        """Draw views of the images, compute their loss."""
        images, labels = batch
        share = self.share(len(images))
        views = [view.to(self.dtype) for view in self.views.draw(images, seed, share)]
        return self.loss(views, self.views.identities(labels, share))


class LossTraining(ViewTraining):
    """Training with a loss of the embeddings of all views, shape (v·n, d), and identities."""

    def __init__(
        self, encoder: nn.Module, views: Views, criterion: Callable[..., Tensor], **options: Any
    ) -> None:
        super().__init__(encoder, views, **options)
        self.criterion = criterion

    def loss(self, views: list[Tensor], identities: Tensor) -> Tensor:
        """The criterion of all views together."""
        embeddings = self.finite(self.encoder(torch.cat(views)))
        return self.criterion(embeddings, identities.repeat(len(views)))


class BYOLTraining(ViewTraining):
    """Training by prediction of a slowly moving target.

    In the supervised setting the two views are two images of one class, paired as VICReg pairs
    them, each process among its own; with several views of an image the first two are taken. The
    momentum of the target rises to 1 along half a cosine.
    """

    def __init__(
        self,
        encoder: nn.Module,
        views: Views,
        *,
        head_dim: int,
        hidden: int,
        momentum: float,
        **options: Any,
    ) -> None:
        super().__init__(encoder, views, **options)
        # The encoder is part of it as the online network: one set of parameters, two names.
        self.byol = BYOL(encoder, predictor_head(head_dim, hidden))
        self.momentum = momentum

    def loss(self, views: list[Tensor], identities: Tensor) -> Tensor:
        """The symmetric prediction error of the two views."""
        n, share = len(identities), self.share(len(identities))
        # Of an uneven share, so that the mean over processes is the mean over images.
        weight = n * share.n_processes / share.total
        if len(views) > 1:
            return weight * self.byol.loss(views[0], views[1])
        first, second = class_pairs(identities)
        return weight * self.byol.loss(views[0][first], views[0][second])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let the target follow."""
        n_steps = int(self.trainer.estimated_stepping_batches)
        self.byol.update_target(momentum_at(self.global_step - 1, n_steps, self.momentum))


# --- pairs of an image and its caption, or of two texts; texts with classes too -------------------


class PairTraining(Training):
    """A loss between images and one caption of each, in both directions.

    Augmented images are random crops of 90 % of an image or more, as CLIP's. Decoupled decay is
    AdamW instead of Adam; the options are ``Training``'s.
    """

    def __init__(
        self,
        encoder: CLIP,
        criterion: BothDirections,
        normalisation: Normalisation,
        *,
        augment: bool,
        decoupled_decay: bool,
        **options: Any,
    ) -> None:
        super().__init__(encoder, **options)
        self.criterion = criterion
        self.recipe = Recipe(
            normalisation, scale=(0.9, 1.0), flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0
        )
        self.augment = augment
        self.decoupled_decay = decoupled_decay

    def batch_loss(self, batch: PairBatch, seed: int) -> Tensor:
        """Draw a crop and a caption for each image, compute their loss."""
        generator = torch.Generator().manual_seed(seed)
        share = self.share(len(batch.images))
        if self.augment:
            view = random_view(batch.images, self.recipe, generator, share)
        else:
            view = self.recipe.normalisation(batch.images)
        which = torch.rand(share.total, generator=generator)[share.rows]
        chosen = (which.to(batch.counts.device) * batch.counts).long()
        tokens = batch.tokens[torch.arange(len(chosen), device=chosen.device), chosen]
        view = view.to(self.dtype).contiguous(memory_format=torch.channels_last)
        towers = cast("CLIP", self.encoder)
        images = self.finite(towers.encode_image(view))
        texts = self.finite(towers.encode_text(tokens))
        loss: Tensor = self.criterion(images, texts, batch.identities)
        if self.criterion.log_factor is not None:
            self.log("sharpness", cast(float, self.criterion.sharpness), prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam or AdamW; a sharpness that learns is not decayed towards its start."""
        learnt = [p for p in self.criterion.parameters() if p.requires_grad]
        weights = [p for p in self.encoder.parameters() if p.requires_grad]
        kind = torch.optim.AdamW if self.decoupled_decay else torch.optim.Adam
        return kind(
            [
                {"params": weights, "weight_decay": self.weight_decay},
                *([{"params": learnt, "weight_decay": 0.0}] if learnt else []),
            ],
            self.learning_rate,
            fused=self.device.type in ("cpu", "cuda"),
        )


class TextTraining(Training):
    """A loss of the embeddings of texts and their classes; of pairs, in both directions.

    A batch is (inputs, classes), or (inputs, inputs of what belongs to them, identities). The
    options are ``Training``'s.
    """

    def __init__(self, encoder: nn.Module, criterion: ContrastiveLoss, **options: Any) -> None:
        super().__init__(encoder, **options)
        self.criterion = criterion
        self.both_directions = BothDirections(criterion)

    def batch_loss(self, batch: tuple[Any, ...], seed: int) -> Tensor:
        """The loss of a batch; nothing is drawn."""
        *columns, identities = batch
        embeddings = [self.finite(self.encoder(column)) for column in columns]
        if len(embeddings) == 1:
            loss: Tensor = self.criterion(embeddings[0], identities)
        else:
            loss = self.both_directions(*embeddings, identities)
        return loss
