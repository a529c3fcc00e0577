"""Shuffled batches and random numbers, as functions of where training is.

No state of a random generator is ever saved: whatever is drawn for a step depends on the seed, the
epoch, the step and the process alone. A run that was interrupted continues as if it had not been.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, Sampler

from tricouple.data.images.sets import BatchedSet, loader


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
                f"has only {len(order)} training images: use fewer trainer.devices"
            )
        return loader(self.samples, self.batch_size, order=order, drop_last=True)
