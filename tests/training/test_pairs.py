"""Losses across modalities: the mean of both directions, exact, with a sharpness that may learn."""

import pytest
import torch
from torch import nn

import tricouple as tc
from baseline_reference import loop_dbot, loop_fused_gromov
from reference import relative_error
from tricouple.losses.both_directions import MAX_SHARPNESS, BothDirections
from tricouple.ot import dense
from tricouple.torchvision_ops import declare_missing

LOSSES = {
    "infonce": lambda: tc.InfoNCE(0.2),
    "neg_mmiot": lambda: tc.NegMMIOT(0.5, 0.3),
    "pushpull": lambda: tc.PushPull(0.5, 0.3, 0.3),
    "iot": lambda: tc.IOT(0.2),
    "iot_uniformity": lambda: tc.IOT(0.2, uniformity=0.2),
    "dbot": lambda: tc.DBOT(0.3),
    "dbot_published": lambda: tc.DBOT(0.3, variant="published"),
    "fused_gromov": lambda: tc.FusedGromov(0.2),
    "fused_gromov_published": lambda: tc.FusedGromov(0.2, variant="published"),
}


def pairs(n: int = 10, d: int = 5):
    generator = torch.Generator().manual_seed(0)
    images, texts = (torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in "ab")
    identities = torch.tensor([4, 0, 1, 0, 2, 2, 2, 3, 5, 9])[:n]  # captions of one image
    return images.requires_grad_(), texts.requires_grad_(), identities


def both(reference, images, texts, identities, **options):
    there = reference(images, identities, texts, identities, **options)
    back = reference(texts, identities, images, identities, **options)
    return (there + back) / 2


def gradients(loss, *leaves):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)])


REFERENCES = {
    "neg_mmiot": (dense.neg_mmiot, {"temperature": 0.5, "epsilon": 0.3, "n_iters": 10}),
    "pushpull": (
        dense.push_pull,
        {"temperature": 0.5, "epsilon_pos": 0.3, "epsilon_neg": 0.3, "n_iters": 10},
    ),
    "iot": (dense.iot, {"epsilon": 0.2, "n_iters": 10}),
    "dbot": (loop_dbot, {"regularisation": 0.3, "variant": "formula"}),
    "dbot_published": (loop_dbot, {"regularisation": 0.3, "variant": "published"}),
    "fused_gromov": (loop_fused_gromov, {"epsilon": 0.2, "variant": "formula"}),
    "fused_gromov_published": (loop_fused_gromov, {"epsilon": 0.2, "variant": "published"}),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_both_directions_equal_the_dense_reference_with_repeated_identities(name):
    images, texts, identities = pairs()
    loss = BothDirections(LOSSES[name]())(images, texts, identities)
    reference, options = REFERENCES[name]
    expected = both(reference, images, texts, identities, **options)
    assert relative_error(loss, expected) <= 1e-12
    found, wanted = (gradients(value, images, texts) for value in (loss, expected))
    assert relative_error(found, wanted) <= 1e-9


def test_infonce_in_both_directions_is_open_clips_loss():
    declare_missing()
    from open_clip.loss import ClipLoss

    images, texts, _ = pairs()
    normal = [nn.functional.normalize(part, dim=1) for part in (images, texts)]
    expected = ClipLoss()(*normal, logit_scale=1 / 0.2)
    loss = BothDirections(tc.InfoNCE(0.2))(images, texts, torch.arange(10))
    assert relative_error(loss, expected) <= 1e-12


@pytest.mark.parametrize("name", LOSSES)
def test_captions_of_one_image_are_never_negatives_of_each_other(name):
    # Moving a caption towards another image of the same identity must not be punished more than
    # moving it away; what is pushed apart are other identities alone.
    images, texts, _ = pairs(4)
    same = torch.tensor([7, 7, 1, 2])
    loss = BothDirections(LOSSES[name]())
    swapped = loss(images, texts[[1, 0, 2, 3]], same)
    assert relative_error(loss(images, texts, same), swapped) <= 1e-12
    apart = loss(images, texts[[2, 1, 0, 3]], same)
    assert relative_error(loss(images, texts, same), apart) > 1e-9


@pytest.mark.parametrize("name", LOSSES)
def test_the_sharpness_of_every_loss_can_learn(name):
    images, texts, identities = pairs()
    fixed = BothDirections(LOSSES[name]())
    assert not list(fixed.parameters())
    learnt = BothDirections(LOSSES[name](), learn=True).double()
    assert relative_error(learnt(images, texts, identities), fixed(images, texts, identities)) == 0
    (parameter,) = learnt.parameters()
    (slope,) = torch.autograd.grad(learnt(images, texts, identities), parameter)
    values = []
    for step in (1e-5, -1e-5):
        nn.init.constant_(parameter, step)
        values.append(float(learnt(images, texts, identities).detach()))
    assert float(slope) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-9)


def test_a_learnt_sharpness_stays_below_clips_limit():
    images, texts, identities = pairs()
    learnt = BothDirections(tc.NegMMIOT(0.5, 0.2), learn=True).double()
    assert learnt.sharpness == pytest.approx(10)
    nn.init.constant_(learnt.log_factor, 9.0)
    limited = learnt(images, texts, identities)
    assert learnt.sharpness == MAX_SHARPNESS
    expected = BothDirections(tc.NegMMIOT(0.05, 0.2))(images, texts, identities)
    assert relative_error(limited, expected) <= 1e-9
    sharp = BothDirections(tc.NegMMIOT(0.01, 0.1), learn=True)
    assert sharp.sharpness == pytest.approx(1000)  # where it started


def test_a_sharpness_at_its_limit_can_come_down_again():
    images, _, _ = pairs()
    wrong, identities = images.detach().flip(0), torch.arange(10)  # every caption is another's
    learnt = BothDirections(tc.InfoNCE(0.1), learn=True).double()
    optimizer = torch.optim.Adam(learnt.parameters(), lr=0.3)
    nn.init.constant_(learnt.log_factor, 9.0)
    for step in range(10):
        optimizer.zero_grad()
        learnt(images.detach(), wrong, identities).backward()
        if step == 0:
            assert learnt.sharpness == pytest.approx(MAX_SHARPNESS)
            assert float(learnt.log_factor.grad) > 0
        optimizer.step()
    assert learnt.sharpness < MAX_SHARPNESS / 5
