"""Random numbers are functions of the place in a run: nothing has to be saved to continue."""

from types import SimpleNamespace

import pytest
import torch

from tricouple.data.images import ImageSet
from tricouple.training.module import EpochOrder, ShuffledBatches, derived_seed


def test_seeds_differ_between_all_places():
    places = [
        (seed, what, epoch, step)
        for seed in range(3)
        for what in ("order", "views")
        for epoch in range(4)
        for step in range(4)
    ]
    seeds = {derived_seed(*place) for place in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_an_order_depends_on_seed_and_epoch_alone():
    first, again, other = EpochOrder(50, 0), EpochOrder(50, 0), EpochOrder(50, 1)
    list(first)  # drawing one epoch does not change the next
    for order in (first, again, other):
        order.set_epoch(3)
    assert list(first) == list(again) != list(other)
    again.set_epoch(4)
    assert list(first) != list(again)
    assert sorted(first) == list(range(50))


def test_processes_share_an_epoch_without_overlap():
    shares = [list(EpochOrder(11, 0, rank, 3)) for rank in range(3)]
    assert [len(share) for share in shares] == [3, 3, 3]
    assert len({index for share in shares for index in share}) == 9


def test_a_share_that_fills_no_batch_is_refused():
    few = ImageSet(torch.zeros(7, 1, 1, 1, dtype=torch.uint8))
    batches = ShuffledBatches(few, 4, 0)
    batches.trainer = SimpleNamespace(global_rank=1, world_size=2)
    with pytest.raises(ValueError, match="each of 2 processes has only 3 training images"):
        batches.train_dataloader()


def test_batches_are_full_and_hold_images_with_their_labels():
    images = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1)
    batches = list(ShuffledBatches(ImageSet(images, torch.arange(10)), 4, 0).train_dataloader())
    assert [len(labels) for _, labels in batches] == [4, 4]
    for pixels, labels in batches:
        assert torch.equal(pixels.flatten().long(), labels)
