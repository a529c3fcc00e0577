"""Encoders: any backbone of timm, fitted to the images, with the paper's initialisation."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from tricouple_lab.models.encoders import (
    LARGEST,
    SmallMapConv2d,
    adapt_to_small_maps,
    build_encoder,
    check_name,
    fitting_size,
    three_layer_mlp,
)


@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [("resnet18", 1, 28), ("test_resnet", 3, 32), ("test_vit", 1, 32), ("test_efficientnet", 3, 8)],
)
def test_any_backbone_takes_the_images_of_any_data_set(name, channels, size):
    encoder = build_encoder(name, channels=channels, image_size=size, head_dim=7).eval()
    images = torch.randn(2, channels, size, size)
    with torch.no_grad():
        features = encoder.features(images)
        assert encoder(images).shape == (2, 7)
        torch.testing.assert_close(encoder(images), encoder.project(features))
    assert features.shape == (2, encoder.head.in_features)


def test_resnet18_has_the_paper_s_architecture_and_initialisation():
    torch.manual_seed(0)
    encoder = build_encoder("resnet18", channels=3, image_size=32, head_dim=10)
    # torchvision's ResNet-18 has 11 689 512 parameters, 513 000 of them in its classifier.
    assert sum(p.numel() for p in encoder.parameters()) == 11_689_512 - 513_000 + 512 * 10 + 10
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1]
            found = float(layer.weight.detach().std())
            assert found == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
        elif isinstance(layer, nn.BatchNorm2d):
            assert bool((layer.weight == 1).all())
            assert bool((layer.bias == 0).all())
    assert float(encoder.head.weight.detach().std()) == pytest.approx(512**-0.5, rel=0.1)
    assert bool((encoder.head.bias == 0).all())


def test_small_maps_change_the_speed_of_a_resnet_and_not_its_values():
    torch.manual_seed(0)
    encoder = build_encoder("test_resnet", channels=3, image_size=32, head_dim=4).eval()
    images = torch.randn(2, 3, 32, 32)
    adapted = [layer for layer in encoder.modules() if isinstance(layer, SmallMapConv2d)]
    assert adapted
    with torch.no_grad():
        fast = encoder(images)
        for layer in adapted:
            layer.forward = nn.Conv2d.forward.__get__(layer)
        torch.testing.assert_close(fast, encoder(images))


def test_pretrained_weights_come_from_a_file_and_the_head_is_new(tmp_path):
    first = build_encoder("test_resnet", channels=3, image_size=32, head_dim=4)
    path = tmp_path / "weights.pth"
    torch.save(first.backbone.state_dict(), path)
    second = build_encoder("test_resnet", channels=3, image_size=32, head_dim=64, weights=path)
    for name, value in first.backbone.state_dict().items():
        assert torch.equal(value, second.backbone.state_dict()[name]), name
    assert float(second.head.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
    assert bool((second.head.bias == 0).all())


def test_a_file_without_these_weights_is_refused_by_name(tmp_path):
    path = tmp_path / "weights.pth"
    options = {"channels": 3, "image_size": 32, "head_dim": 4}
    torch.save({"conv1.0.weight": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"weights\.pth lacks \d+ of the \d+ parameters"):
        build_encoder("test_resnet", weights=path, **options)
    path.write_text("no weights")
    with pytest.raises(ValueError, match=r"weights\.pth is no file of weights"):
        build_encoder("test_resnet", weights=path, **options)
    with pytest.raises(ValueError, match=r"missing\.pth is not a file"):
        build_encoder("test_resnet", weights="missing.pth", **options)


def test_unknown_names_are_answered_with_the_nearest_ones():
    with pytest.raises(ValueError, match=r"'resnet19' is not a model of timm: did you mean res"):
        check_name("resnet19")


def test_images_that_vanish_in_the_network_are_refused():
    with pytest.raises(ValueError, match=r"cannot take images of 8×8, it is made for 224×224"):
        build_encoder("convnext_atto", channels=3, image_size=8, head_dim=4)


def test_transformers_get_images_that_their_patches_tile():
    assert fitting_size("vit_base_patch16_224", 28) == 32
    assert fitting_size("vit_base_patch16_224", 32) == 32
    assert fitting_size("resnet50", 28) == 28


def test_the_perceptron_has_three_linear_layers_of_the_given_widths():
    encoder = three_layer_mlp(7, hidden=11, out_dim=3)
    shapes = [tuple(layer.weight.shape) for layer in encoder if isinstance(layer, nn.Linear)]
    assert shapes == [(11, 7), (11, 11), (3, 11)]


def test_an_embedding_of_the_perceptron_depends_on_its_own_input_alone():
    encoder = three_layer_mlp(5, hidden=8, out_dim=4)
    inputs = torch.randn(6, 5)
    torch.testing.assert_close(encoder(inputs)[2:3], encoder(inputs[2:3]))


def test_widths_of_the_perceptron_must_be_positive():
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        three_layer_mlp(5, hidden=0, out_dim=4)


# --- convolutions of small maps are convolutions, whatever computes them --------------------------


def both(stride: int = 1, bias: bool = False) -> tuple[nn.Conv2d, SmallMapConv2d]:
    torch.manual_seed(0)
    usual = nn.Conv2d(6, 5, 3, stride=stride, padding=1, bias=bias).double()
    ours = adapt_to_small_maps(nn.Sequential(deepcopy(usual)))[0]
    assert isinstance(ours, SmallMapConv2d)
    return usual, ours


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (1, 3), (4, 1), (3, 3)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_of_the_convolution(shape, stride, bias):
    usual, ours = both(stride, bias)
    images = torch.randn(4, 6, *shape, dtype=torch.float64)
    found = []
    for layer in (usual, ours):
        inputs = images.clone().requires_grad_()
        layer.zero_grad()
        outputs = layer(inputs)
        (outputs * torch.arange(outputs.numel()).view_as(outputs)).sum().backward()
        found.append([outputs.detach(), inputs.grad, *(p.grad.clone() for p in layer.parameters())])
    for expected, computed in zip(*found, strict=True):
        torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-12)


def test_parameters_are_shared_and_keep_their_names():
    network = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU())
    before = dict(network.named_parameters())
    after = dict(adapt_to_small_maps(network).named_parameters())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 3, stride=(1, 2), padding=1),
    ],
)
def test_other_convolutions_are_left_alone(layer):
    assert adapt_to_small_maps(nn.Sequential(layer))[0] is layer


def test_large_maps_take_the_usual_path(monkeypatch):
    _, ours = both()
    monkeypatch.setattr("tricouple_lab.models.encoders.unfold", None)
    side = int(LARGEST**0.5) + 1
    assert ours(torch.randn(1, 6, side, side, dtype=torch.float64)).shape == (1, 5, side, side)
    with pytest.raises(TypeError):
        ours(torch.randn(1, 6, 2, 2, dtype=torch.float64))
