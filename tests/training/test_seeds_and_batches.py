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


def numbered(n):
    return ImageSet(torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1), torch.arange(n))


def of_process(rank, world, n=23, batch_size=5):
    batches = ShuffledBatches(numbered(n), batch_size, 0)
    batches.trainer = SimpleNamespace(global_rank=rank, world_size=world)
    loader = batches.train_dataloader()
    loader.batch_sampler.sampler.set_epoch(2)  # as Lightning does
    return [labels for _, labels in loader]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_processes_share_the_batches_of_one_and_no_sample_is_in_a_batch_twice(world):
    whole, shares = of_process(0, 1), [of_process(rank, world) for rank in range(world)]
    assert len(whole) == 4  # of 23 samples three are left out
    for number, batch in enumerate(whole):
        parts = [share[number] for share in shares]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert sorted(torch.cat(parts).tolist()) == sorted(batch.tolist())
        assert len(set(batch.tolist())) == 5


def test_a_batch_that_leaves_processes_without_a_sample_is_refused():
    with pytest.raises(ValueError, match="batch_size is 5, but 6 processes share each batch"):
        of_process(0, 6)


def test_batches_are_full_and_hold_images_with_their_labels():
    images = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1)
    batches = list(ShuffledBatches(ImageSet(images, torch.arange(10)), 4, 0).train_dataloader())
    assert [len(labels) for _, labels in batches] == [4, 4]
    for pixels, labels in batches:
        assert torch.equal(pixels.flatten().long(), labels)
