"""Algorithm 4: balanced batches, a carry-over, and every sample before any comes again."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from tricouple_lab.data.sampler import ClassUniformBatchSampler, SharedBatches


@st.composite
def samplers(draw):
    """Any number of classes, of any sizes, in any order, with any b and ρ that they allow."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    per_class = draw(st.integers(1, min(sizes)))
    labels = draw(st.permutations([7 * c for c, size in enumerate(sizes) for _ in range(size)]))
    carry_over = draw(st.floats(0, 1))
    return ClassUniformBatchSampler(
        torch.tensor(labels), per_class, carry_over, n_batches=25, seed=draw(st.integers(0, 99))
    ), torch.tensor(labels)


def by_class(batch: list[int], labels: torch.Tensor) -> dict[int, list[int]]:
    return {int(label): [i for i in batch if labels[i] == label] for label in torch.unique(labels)}


@given(samplers())
def test_every_class_has_exactly_b_different_samples(drawn):
    sampler, labels = drawn
    for batch in sampler:
        for chosen in by_class(batch, labels).values():
            assert len(set(chosen)) == len(chosen) == sampler.per_class


@given(samplers())
def test_the_kept_samples_come_from_the_last_batch(drawn):
    sampler, labels = drawn
    m = sampler.n_kept
    last = None
    for batch in sampler:
        now = by_class(batch, labels)
        for label, chosen in now.items() if last else ():
            assert set(chosen[:m]) <= set(last[label])
        last = now


@given(samplers())
def test_every_sample_is_seen_before_any_comes_again_but_for_the_carry_over(drawn):
    sampler, labels = drawn
    members = by_class(range(len(labels)), labels)
    seen = {label: set() for label in members}
    first = True
    for batch in sampler:
        for label, chosen in by_class(batch, labels).items():
            kept = set() if first else set(chosen[: sampler.n_kept])
            shown = set(kept)
            for index in chosen[len(kept) :]:
                if index in seen[label]:  # only a new cycle may show it again
                    assert seen[label] | kept == set(members[label])
                    seen[label] = set(shown)
                seen[label].add(index)
                shown.add(index)
        first = False


@given(samplers(), st.integers(0, 25))
def test_a_loaded_state_continues_with_the_same_batches(drawn, stop):
    sampler, labels = drawn
    fresh = ClassUniformBatchSampler(labels, sampler.per_class, n_batches=25, seed=12345)
    fresh.n_kept = sampler.n_kept
    batches = iter(sampler)
    for _ in range(stop):
        next(batches)
    fresh.load_state_dict(sampler.state_dict())
    rest = list(batches)
    assert list(fresh) == rest
    assert len(rest) == 25 - stop


@pytest.mark.parametrize(
    ("carry_over", "per_class", "kept"), [(0, 4, 0), (0.5, 5, 2), (0.29, 100, 29), (1, 4, 4)]
)
def test_carry_over_is_rounded_down(carry_over, per_class, kept):
    labels = torch.arange(2).repeat_interleave(600)
    sampler = ClassUniformBatchSampler(labels, per_class, carry_over, n_batches=5)
    batches = [by_class(batch, labels) for batch in sampler]
    for before, after in pairwise(batches):  # of all, the same batch for ever
        for label in (0, 1):
            assert len(set(before[label]) & set(after[label])) == kept


@pytest.mark.parametrize("world", [2, 3, 4])
def test_processes_share_class_uniform_batches_and_every_share_is_uniform_too(world):
    labels = torch.arange(3).repeat_interleave(20)

    def sampler():
        return ClassUniformBatchSampler(labels, 8, 0.5, n_batches=6, seed=1)

    shares = [list(SharedBatches(sampler(), rank, world)) for rank in range(world)]
    for batch, *parts in zip(sampler(), *shares, strict=True):
        assert sorted(index for part in parts for index in part) == sorted(batch)
        for part in parts:
            counts = torch.bincount(labels[part], minlength=3)
            assert int(counts.max() - counts.min()) <= 1


def test_coverage_goes_on_in_the_next_pass():
    labels = torch.zeros(8, dtype=torch.long)
    sampler = ClassUniformBatchSampler(labels, 2, 0.0, n_batches=2)
    assert len(sampler) == len(list(sampler)) == 2
    again = [index for batch in sampler for index in batch]
    assert len(set(again)) == 4
    four = [
        index for batch in ClassUniformBatchSampler(labels, 2, 0.0, n_batches=4) for index in batch
    ]
    assert sorted(four) == list(range(8))
    assert set(four[4:]) == set(again)


def test_new_samples_are_drawn_uniformly():
    labels = torch.zeros(6, dtype=torch.long)
    counts = torch.zeros(6)
    for seed in range(600):
        (batch,) = ClassUniformBatchSampler(labels, 2, n_batches=1, seed=seed)
        counts[batch] += 1
    assert (counts / 600 - 1 / 3).abs().max() < 0.08


def test_it_is_the_batch_sampler_of_a_data_loader():
    labels = torch.arange(3).repeat_interleave(10)
    sampler = ClassUniformBatchSampler(labels, 2, n_batches=4)
    assert isinstance(sampler, BatchSampler)
    loader = DataLoader(TensorDataset(torch.arange(30.0), labels), batch_sampler=sampler)
    assert len(loader) == 4
    for _, classes in loader:
        assert torch.bincount(classes).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("per_class", "carry_over", "message"),
    [
        (4, 0.5, "per_class is 4, but class 9 has only 3 samples: use 3 or fewer"),
        (0, 0.5, "per_class must be at least 1, got 0"),
        (2, -0.1, "carry_over must be between 0 and 1, got -0.1"),
        (2, 1.5, "carry_over must be between 0 and 1, got 1.5"),
        (2, math.nan, "carry_over must be between 0 and 1, got nan"),
    ],
)
def test_impossible_batches_are_refused(per_class, carry_over, message):
    labels = torch.tensor([4, 4, 4, 4, 9, 9, 9])
    with pytest.raises(ValueError, match=message):
        ClassUniformBatchSampler(labels, per_class, carry_over, n_batches=1)


def test_state_of_another_sampler_and_empty_labels_are_refused():
    two = ClassUniformBatchSampler(torch.tensor([0, 1]), 1, n_batches=1)
    one = ClassUniformBatchSampler(torch.tensor([0, 0]), 1, n_batches=1)
    with pytest.raises(ValueError, match="a sampler of 2 classes, this one has 1"):
        one.load_state_dict(two.state_dict())
    with pytest.raises(ValueError, match="labels is empty"):
        ClassUniformBatchSampler(torch.empty(0, dtype=torch.long), 1, n_batches=1)
