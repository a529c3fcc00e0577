"""Batches with equally many samples of each class (the paper's Algorithm 4), and shares of batches.

Several processes draw the same batches and take a share of each: together they have the batch that
one process would have had, and no sample is in it twice. (torch's ``DistributedSampler`` fills up
by repeating samples, which a contrastive loss takes for negatives of themselves.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from tricouple import checks


def shuffled(n: int, seed: int) -> Tensor:
    """The numbers from 0 to n − 1 in a random order that depends on the seed alone."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Share:
    """One process's part of a batch: every R-th sample, as cards are dealt.

    Example:
        >>> torch.arange(7)[Share(7, rank=1, n_processes=3).rows]
        tensor([1, 4])
    """

    total: int  # samples of the batch, of all processes together
    rank: int = 0  # of the process
    n_processes: int = 1  # R

    @property
    def rows(self) -> slice:
        """Which of the samples are its own."""
        return slice(self.rank, self.total, self.n_processes)


class SharedBatches(BatchSampler):
    """One process's share of every batch; shares differ by one sample at most.

    Any sampler of batches will do that draws the same ones in every process. Of batches with
    equally many samples of each class, every process has equally many of each, up to one.

    Example:
        >>> batches = BatchSampler(range(10), batch_size=5, drop_last=True)
        >>> [list(SharedBatches(batches, rank, 2)) for rank in range(2)]
        [[[0, 2, 4], [5, 7, 9]], [[1, 3], [6, 8]]]
    """

    def __init__(self, batches: BatchSampler, rank: int, n_processes: int) -> None:
        # Trainers tell the epoch to its sampler.
        super().__init__(batches.sampler, batches.batch_size, batches.drop_last)
        self.batches = batches
        self.rank = rank
        self.n_processes = n_processes

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            yield batch[Share(len(batch), self.rank, self.n_processes).rows]


class ClassUniformBatchSampler(BatchSampler):
    """Class-uniform batches that keep a share of the last batch and cover each class in cycles.

    Each batch holds b samples of every class. ⌊ρb⌋ of them are kept from the batch before, the
    rest are new: drawn from those that the current coverage cycle has not shown yet. When these run
    out, the batch takes all that are left, starts a new cycle and fills up from it.

    Coverage goes on from one pass to the next. ``state_dict`` taken between two batches continues
    exactly there after ``load_state_dict``, in the middle of a pass too; a data loader with worker
    processes draws batches ahead, so its sampler is further than the training.

    Args:
        labels: Class of each sample of the dataset, shape (n,).
        per_class: b, samples of each class in a batch; every class must have as many.
        carry_over: ρ, between 0 (all new) and 1 (the same batch for ever).
        n_batches: T, batches in a pass.
        seed: Seed of all draws.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 1, 1, 1])
        >>> sampler = ClassUniformBatchSampler(labels, per_class=2, carry_over=0.5, n_batches=3)
        >>> [labels[batch].tolist() for batch in sampler]
        [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]
    """

    def __init__(
        self,
        labels: Tensor,
        per_class: int,
        carry_over: float = 0.5,
        *,
        n_batches: int,
        seed: int = 0,
    ) -> None:
        checks.labels("labels", labels, len(labels), labels.device)
        checks.count("per_class", per_class)
        checks.count("n_batches", n_batches)
        if not 0 <= carry_over <= 1:
            raise ValueError(f"carry_over must be between 0 and 1, got {carry_over}")
        classes, counts = torch.unique(labels, return_counts=True)
        if not len(classes):
            raise ValueError("labels is empty: there is nothing to sample from")
        if int(counts.min()) < per_class:
            smallest = int(counts.argmin())
            raise ValueError(
                f"per_class is {per_class}, but class {int(classes[smallest])} has only "
                f"{int(counts[smallest])} samples: use {int(counts[smallest])} or fewer"
            )
        super().__init__(range(len(labels)), batch_size=len(classes) * per_class, drop_last=False)
        self.per_class = per_class
        self.n_batches = n_batches
        # m = ⌊ρb⌋; without the margin 0.29 · 100 would be 28 in floating point.
        self.n_kept = math.floor(carry_over * per_class + 1e-9)
        self._members = [(labels == label).nonzero()[:, 0].tolist() for label in classes]  # I_c
        self._last: list[list[int]] = [[] for _ in self._members]  # S_c
        self._remaining = [list(members) for members in self._members]  # R_c
        self._position = 0
        self._generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[list[int]]:
        while self._position < self.n_batches:
            self._position += 1
            for number in range(len(self._members)):
                self._advance(number)
            yield [index for indices in self._last for index in indices]
        self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """All that the next batches depend on."""
        return {
            "last": [list(indices) for indices in self._last],
            "remaining": [list(indices) for indices in self._remaining],
            "position": self._position,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another sampler of the same labels and settings was."""
        if len(state["last"]) != len(self._members):
            raise ValueError(
                f"the state is that of a sampler of {len(state['last'])} classes, "
                f"this one has {len(self._members)}"
            )
        self._last = [list(indices) for indices in state["last"]]
        self._remaining = [list(indices) for indices in state["remaining"]]
        self._position = int(state["position"])
        self._generator.set_state(state["generator"])

    def _advance(self, number: int) -> None:
        """Lines of the algorithm for one class; its first batch has nothing to keep."""
        remaining = self._remaining[number]
        kept = self._draw(self._last[number], min(self.n_kept, len(self._last[number])))  # K_c
        n_new = self.per_class - len(kept)  # ℓ
        candidates = _without(remaining, kept)  # A_c
        if len(candidates) >= n_new:
            new = self._draw(candidates, n_new)  # N_c
        else:  # use all that is left, then reset the coverage cycle
            remaining = _without(self._members[number], kept + candidates)
            new = candidates + self._draw(remaining, n_new - len(candidates))
        self._remaining[number] = _without(remaining, new)
        self._last[number] = kept + new

    def _draw(self, indices: list[int], count: int) -> list[int]:
        """`count` of the indices, uniformly and without replacement."""
        order = torch.randperm(len(indices), generator=self._generator)[:count]
        return [indices[place] for place in order.tolist()]


def _without(indices: list[int], others: list[int]) -> list[int]:
    excluded = set(others)
    return [index for index in indices if index not in excluded]
