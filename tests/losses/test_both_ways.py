"""A loss across two sets in both directions: one product, one gather, the mean of two losses."""

from __future__ import annotations

import pytest
import torch

import tricouple as tc
from processes import messages
from test_group import shares


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
    both = tc.BothDirections(criterion)
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
        ({"memory": "streamed"}, 0.5, 1e-12),
        ({"marginals": "target"}, 0.5, 1e-12),
        ({"marginals": "classes"}, 0.5, 1e-12),
        ({"gradient": "envelope"}, 0.5, 1e-12),
        ({"tol": 1e-6, "n_iters": 50}, 0.5, 1e-12),
        ({"shaping": "log_sigmoid"}, 0.5, 1e-12),
        ({"shaping": "hinge"}, 0.5, 1e-12),
        ({"shaping": "exponential"}, 1.0, 1e-12),
        ({"n_iters": 3}, 2e-3, 1e-9),  # by rows
    ],
)
def test_both_ways_at_once_are_the_mean_of_two_losses(settings, temperature, tolerance):
    wanted = differentiated(in_turn, tc.NegMMIOT, settings, sets(), temperature)
    found = differentiated(at_once, tc.NegMMIOT, settings, sets(), temperature)
    assert farthest(found, wanted) < tolerance


@pytest.mark.parametrize("make", [tc.PushPull, tc.IOT, tc.InfoNCE, tc.FusedGromov, tc.InvaSpread])
def test_so_are_those_of_other_losses(make):
    wanted = differentiated(in_turn, make, {}, sets())
    assert farthest(differentiated(at_once, make, {}, sets()), wanted) < 1e-12


def together(rank, settings, parts, temperature):
    settings = settings | {"group": "world"}
    return differentiated(at_once, tc.NegMMIOT, settings, parts[rank], temperature)


@pytest.mark.parametrize("sizes", [[9, 9], [10, 0, 8]], ids=str)
@pytest.mark.parametrize(
    ("settings", "temperature"), [({}, 0.5), ({"memory": "streamed"}, 0.5), ({"n_iters": 3}, 2e-3)]
)
def test_both_ways_over_several_processes_are_those_of_one(pools, sizes, settings, temperature):
    wanted = differentiated(in_turn, tc.NegMMIOT, settings, sets(), temperature)
    parts = shares(sets(), sizes)
    answers = pools(len(sizes)).run(together, settings, parts, temperature)
    limit = 1e-12 if temperature > 0.1 else 1e-9
    first = 0
    for size, (value, gradients) in zip(sizes, answers, strict=True):
        few = slice(first, first + size)
        expected = [wanted[1][0][few], wanted[1][1][few], wanted[1][2]]
        scale = [len(sizes), len(sizes), 1]
        assert float(abs(value - wanted[0]) / abs(wanted[0])) < limit
        for found, exact, times, whole in zip(gradients, expected, scale, wanted[1], strict=True):
            errors = (found / times - exact).abs() / whole.abs().max()
            assert not errors.numel() or float(errors.max()) < limit
        first += size


def counted(rank, parts):
    images, texts, labels = parts[rank]
    leaves = [images.clone().requires_grad_(), texts.clone().requires_grad_()]
    both = tc.BothDirections(tc.NegMMIOT(temperature=0.5, n_iters=2, group="world"))
    with messages() as forward:
        value = both(*leaves, labels)
    with messages() as backward:
        value.backward()
    return forward, backward


def test_each_set_is_gathered_once_and_nothing_is_sent_backwards(pools):
    n, d = 32, 64
    forward, backward = pools(2).run(counted, shares(sets(n=n, d=d), [16, 16]))[0]
    assert forward.count(n * d // 2) == 2
    assert backward == []
