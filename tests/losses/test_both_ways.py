"""A loss across two sets in both directions: one kernel, one gather, the mean of two losses."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import tricouple as tc
from processes import messages
from test_group import shares
from tricouple.distributed import own
from tricouple.losses import BothDirections
from tricouple.ot import engine
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.parts import two_rings

compiled = pytest.mark.skipif(native.compiled is None, reason="built without a compiler")


def sets(dtype: torch.dtype = torch.float64, n: int = 18, d: int = 6):
    """Images, texts of them, and which image a text belongs to."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(n, d, generator=generator, dtype=dtype)
    texts = images + 0.5 * torch.randn(n, d, generator=generator, dtype=dtype)
    return images, texts, torch.arange(n) % 12


def in_turn(criterion, images, texts, labels, temperature):
    """Two calls of the loss."""
    there = criterion(images, labels, ref_emb=texts, ref_labels=labels, temperature=temperature)
    back = criterion(texts, labels, ref_emb=images, ref_labels=labels, temperature=temperature)
    return (there + back) / 2


def at_once(criterion, images, texts, labels, temperature):
    """One call; tau is criterion's own times the ratio of sharpnesses."""
    both = BothDirections(criterion)
    return both(
        images, texts, labels, sharpness=both.initial * both.initial_sharpness / temperature
    )


def differentiated(loss, make, settings, samples, temperature=0.5):
    """The value, and the gradients of both sets and of the temperature."""
    images, texts = (part.clone().requires_grad_() for part in samples[:2])
    tau = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
    value = loss(make(**settings), images, texts, samples[2], tau)
    return value.detach(), torch.autograd.grad(value, (images, texts, tau))


def farthest(found, wanted):
    """The largest errors, relative to the largest of each."""
    (value, gradients), (exact, expected) = found, wanted
    return max(
        float(abs(value - exact) / abs(exact)),
        *(
            float((x - y).abs().max() / y.abs().max())
            for x, y in zip(gradients, expected, strict=True)
        ),
    )


@pytest.mark.parametrize(
    ("settings", "temperature", "tolerance"),
    [
        ({}, 0.5, 1e-12),
        ({"memory": "streamed"}, 0.5, 1e-12),
        ({"marginals": "target"}, 0.5, 1e-12),
        ({"marginals": "classes"}, 0.5, 1e-12),
        ({"gradient": "envelope"}, 0.5, 1e-12),
        ({"tol": 1e-6, "n_iters": 50}, 0.5, 1e-12),
        ({"shaping": "log_sigmoid"}, 0.5, 1e-12),
        ({"n_iters": 3}, 2e-3, 1e-9),  # in logarithms
    ],
)
def test_both_ways_at_once_are_the_mean_of_two_losses(settings, temperature, tolerance):
    wanted = differentiated(in_turn, tc.NegMMIOT, settings, sets(), temperature)
    with mock.patch.object(engine, "LARGEST", 0):
        found = differentiated(at_once, tc.NegMMIOT, settings, sets(), temperature)
    assert farthest(found, wanted) < tolerance


@pytest.mark.parametrize("make", [tc.PushPull, tc.IOT, tc.InfoNCE, tc.FusedGromov, tc.InvaSpread])
def test_so_are_those_of_other_losses(make):
    wanted = differentiated(in_turn, make, {}, sets())
    assert farthest(differentiated(at_once, make, {}, sets()), wanted) < 1e-12


@compiled
def test_in_single_precision_a_hard_batch_is_computed_with_more_digits():
    samples, settings = sets(torch.float32, n=80), {"n_iters": 5}
    wide = [part.double() if part.is_floating_point() else part for part in samples]
    dtypes = []

    class Noted(engine.BothTriplet):
        def solve(self, *args):
            dtypes.append(self.dtype)
            return super().solve(*args)

    with mock.patch.object(engine, "LARGEST", 0), mock.patch.object(engine, "BothTriplet", Noted):
        for temperature, tried in ((0.1, [torch.float32]), (8e-3, [torch.float32, torch.float64])):
            dtypes.clear()
            found = differentiated(at_once, tc.NegMMIOT, settings, samples, temperature)
            assert dtypes == tried
            wanted = differentiated(in_turn, tc.NegMMIOT, settings, wide, temperature)
            assert farthest(found, wanted) < 2e-4


@pytest.mark.parametrize(
    ("counts", "partners"),
    [
        ([1], [1]),
        ([9], [5]),
        ([4, 4], [4, 4]),
        ([8, 7, 8], [2, 9, 1]),
        ([0, 5, 1, 0], [3, 0, 0, 4]),
    ],
)
@pytest.mark.parametrize("height", [1, 3, 4])
def test_processes_cover_every_pair_once_and_their_own_rows_whole(counts, partners, height):
    n, size = sum(counts), sum(counts) + sum(partners)
    wanted = torch.zeros(size, size, dtype=torch.int8)
    wanted[:n, n:] = wanted[n:, :n] = 1
    seen = torch.zeros_like(wanted)
    for rank in range(len(counts)):
        tiles, others = two_rings(counts, partners, rank, height)
        mine = torch.zeros_like(wanted)
        for part in tiles:
            mine[part.rows, part.columns] += 1
            mine[part.columns, part.rows] += 1
        seen += mine
        for part in others:
            mine[part.rows, part.columns] += 1
        second = own(partners, rank)
        for rows in (own(counts, rank), slice(n + second.start, n + second.stop)):
            assert torch.equal(mine[rows], wanted[rows])
    assert torch.equal(seen, wanted)


def together(rank, settings, parts, temperature):
    with mock.patch.object(engine, "LARGEST", 0):
        settings = settings | {"group": "world"}
        return differentiated(at_once, tc.NegMMIOT, settings, parts[rank], temperature)


@pytest.mark.parametrize("sizes", [[9, 9], [10, 0, 8], [1, 7, 6, 4]], ids=str)
@pytest.mark.parametrize(
    ("settings", "temperature"), [({}, 0.5), ({"memory": "streamed"}, 0.5), ({"n_iters": 3}, 2e-3)]
)
def test_both_ways_over_several_processes_are_those_of_one(pools, sizes, settings, temperature):
    wanted = differentiated(in_turn, tc.NegMMIOT, settings, sets(), temperature)
    parts = shares(sets(), sizes)
    answers = pools(len(sizes)).run(together, settings, parts, temperature)
    for rank, (value, gradients) in enumerate(answers):
        few = own(sizes, rank)
        expected = [wanted[1][0][few], wanted[1][1][few], wanted[1][2]]
        scale = [len(sizes), len(sizes), 1]
        assert float(abs(value - wanted[0]) / abs(wanted[0])) < 1e-12
        for found, exact, times, whole in zip(gradients, expected, scale, wanted[1], strict=True):
            errors = (found / times - exact).abs() / whole.abs().max()
            assert not errors.numel() or float(errors.max()) < (
                1e-12 if temperature > 0.1 else 1e-9
            )


def counted(rank, settings, parts):
    images, texts, labels = parts[rank]
    leaves = [images.clone().requires_grad_(), texts.clone().requires_grad_()]
    with mock.patch.object(engine, "LARGEST", 0):
        both = BothDirections(tc.NegMMIOT(**settings, temperature=0.5, group="world"))
        with messages() as forward:
            value = both(*leaves, labels)
        with messages() as backward:
            value.backward()
    return forward, backward


@compiled
def test_each_set_is_gathered_once_and_a_sweep_sends_four_messages_for_both_ways(pools):
    n, d = 32, 64
    parts = shares(sets(n=n, d=d), [16, 16])
    few, more = (pools(2).run(counted, {"n_iters": number}, parts)[0] for number in (2, 4))
    for before, after in zip(few, more, strict=True):
        assert len(after) - len(before) == 2 * 4
    forward, backward = more
    assert [size for size in forward if size >= n * d // 2] == [n * d // 2] * 2
    assert max(backward) == 2 * n
