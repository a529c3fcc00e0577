"""What Lightning trains: an encoder, and a loss of what it makes of a batch; and the batches.

No state of a random generator is ever saved: whatever is drawn for a step depends on the seed, the
epoch, the step and the process alone. A run that was interrupted continues as if it had not been.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from tricouple.data.augment import Recipe, random_view
from tricouple.data.images.sets import BatchedSet, loader
from tricouple.relations import Identities, view_pairs
from tricouple.training.byol import BYOL, momentum_at, predictor_head


def derived_seed(seed: int, *place: int | str) -> int:
    """A seed, below 2⁶³, for one place in a run: a purpose, an epoch, a step, a rank.

    Unequal places give unrelated seeds.

    Example:
        >>> derived_seed(0, "views", 3, 7) == derived_seed(0, "views", 3, 7)
        True
        >>> derived_seed(0, "views", 3, 7) == derived_seed(0, "views", 7, 3)
        False
    """
    text = repr((seed, *place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class EpochOrder(Sampler[int]):
    """A random order of samples for each epoch; with several processes, a share of it for each.

    The remainder of samples is left out of the epoch. Not torch's ``DistributedSampler``, which
    draws other orders than the stored studies had.

    Example:
        >>> order = EpochOrder(5, seed=0)
        >>> sorted(order)
        [0, 1, 2, 3, 4]
    """

    def __init__(self, n_samples: int, seed: int, rank: int = 0, n_processes: int = 1) -> None:
        self.n_samples = n_samples
        self.seed = seed
        self.rank = rank
        self.n_processes = n_processes
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; Lightning calls this before each."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "order", self.epoch))
        order = torch.randperm(self.n_samples, generator=generator)
        return iter(order[self.rank :: self.n_processes][: len(self)].tolist())

    def __len__(self) -> int:
        return self.n_samples // self.n_processes


class ShuffledBatches(L.LightningDataModule):
    """Shuffled batches for Lightning, of each process; the last, incomplete one is left out.

    All batches then have the same size, which the scale of a contrastive loss depends on.
    """

    def __init__(self, samples: BatchedSet, batch_size: int, seed: int) -> None:
        super().__init__()
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed

    def train_dataloader(self) -> DataLoader[Any]:
        """The batches of this process."""
        rank, n_processes = 0, 1
        if self.trainer is not None:
            rank, n_processes = self.trainer.global_rank, self.trainer.world_size
        order = EpochOrder(len(self.samples), self.seed, rank, n_processes)
        if len(order) < self.batch_size:
            raise ValueError(
                f"training.batch_size is {self.batch_size}, but each of {n_processes} processes "
                f"has only {len(order)} training {self.samples.noun}: use fewer trainer.devices"
            )
        return loader(self.samples, self.batch_size, order=order, drop_last=True)


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

    def draw(self, images: Tensor, seed: int) -> list[Tensor]:
        """The views of a batch: ``count`` tensors of shape (n, c, size, size)."""
        if not self.random:
            return [self.recipe.normalisation(images)] * self.count
        generator = torch.Generator().manual_seed(seed)
        return [random_view(images, self.recipe, generator) for _ in range(self.count)]

    def identities(self, labels: Tensor) -> Tensor:
        """Who is whose positive, for one view, shape (n,)."""
        return labels if self.by_class else torch.arange(len(labels), device=labels.device)


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
        place = self.current_epoch, batch_idx, self.global_rank
        # For dropout and its like, which draw from the global generators.
        torch.manual_seed(derived_seed(self.seed, "network", *place))
        loss = self.batch_loss(batch, derived_seed(self.seed, "views", *place))
        if not bool(torch.isfinite(loss)):
            raise self.diverged(f"the loss is {float(loss)}")
        self.log(
            "loss",
            loss,
            on_step=True,
            on_epoch=True,
            prog_bar=True,
            batch_size=len(batch[0]),
            sync_dist=True,
        )
        return loss

    def finite(self, embeddings: Tensor) -> Tensor:
        """The embeddings, or an error if some are no numbers."""
        if not bool(torch.isfinite(embeddings).all()):
            raise self.diverged("embeddings are not finite")
        return embeddings

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
        views = [view.to(self.dtype) for view in self.views.draw(images, seed)]
        return self.loss(views, self.views.identities(labels))


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
    them; with several views of an image the first two are taken. The momentum of the target rises
    to 1 along half a cosine.
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
        if len(views) > 1:
            return self.byol.loss(views[0], views[1])
        first, second = view_pairs(Identities.within_one_set(identities))
        return self.byol.loss(views[0][first], views[0][second])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let the target follow."""
        n_steps = int(self.trainer.estimated_stepping_batches)
        self.byol.update_target(momentum_at(self.global_step - 1, n_steps, self.momentum))
