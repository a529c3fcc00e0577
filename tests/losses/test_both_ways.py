"""A loss across two sets in both directions: one product, the mean of two losses."""

import pytest
import torch

import tricouple as tc
from batches import draw
from reference import assert_same


def compared(make, settings, temperature, n, dtype=torch.float64):
    """Values and gradients, also of the temperature: of one call, and of two calls' mean."""
    images, noise = draw(2, n, 6).to(dtype)
    texts = (images + noise / 2).requires_grad_()
    images.requires_grad_()
    labels, criterion = torch.arange(n) % (2 * n // 3), make(**settings)
    tau = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
    ways = [
        criterion(one, labels, ref_emb=other, ref_labels=labels, temperature=tau)
        for one, other in ((images, texts), (texts, images))
    ]
    both = tc.BothDirections(criterion)
    # τ is the criterion's own times the ratio of sharpnesses.
    value = both(images, texts, labels, sharpness=both.initial * both.initial_sharpness / tau)
    learnt = images, texts, tau
    return [(loss, *torch.autograd.grad(loss, learnt)) for loss in (value, sum(ways) / 2)]


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
    assert_same(*compared(tc.NegMMIOT, settings, temperature, 18), tolerance)


@pytest.mark.parametrize(
    ("n", "temperature", "dtype", "tolerance"),
    [
        (18, 0.5, torch.float64, 1e-12),
        (70, 0.5, torch.float64, 1e-12),
        (70, 0.5, torch.float32, 1e-5),
        (70, 5e-3, torch.float64, 1e-9),
        (1060, 0.5, torch.float64, 1e-12),
    ],
)
@pytest.mark.parametrize(
    "make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE, tc.FusedGromov, tc.InvaSpread]
)
def test_so_are_those_of_other_losses_and_sizes(make, n, temperature, dtype, tolerance):
    if make in (tc.FusedGromov, tc.InvaSpread) and n > 70:
        return  # two calls, whatever the size
    settings = {"n_iters": 2} if make in (tc.NegMMIOT, tc.PushPull, tc.IOT) else {}
    assert_same(*compared(make, settings, temperature, n, dtype), tolerance)


def test_without_identities_row_i_belongs_to_row_i():
    images, texts = draw(2, 9, 4)
    both = tc.BothDirections(tc.PushPull())
    assert both(images, texts).equal(both(images, texts, torch.arange(9)))
    with pytest.raises(ValueError, match="9 images and 8 texts"):
        both(images, texts[:8])
