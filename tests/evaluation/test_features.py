"""Features are extracted in order, once, in evaluation mode."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tricouple_lab.data.images import ImageSet
from tricouple_lab.data.images.sets import Normalisation
from tricouple_lab.evaluation.features import extract

NORMALISATION = Normalisation((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), size=8)


class Small(nn.Module):
    """A convolution, batch norm, pooling and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Dropout(0.5))
        self.head = nn.Linear(5, 2)
        self.calls = 0

    def features(self, images: Tensor) -> Tensor:
        self.calls += 1
        return self.backbone(images).mean((2, 3))

    def project(self, features: Tensor) -> Tensor:
        return self.head(features)


def images(n: int = 11, side: int = 6) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=generator)
    return ImageSet(pixels, torch.arange(n) % 3)


@pytest.mark.parametrize("batch_size", [1, 4, 11, 50])
def test_features_do_not_depend_on_batches(batch_size):
    torch.manual_seed(0)
    model, inputs = Small(), images()
    found = extract(model, inputs, NORMALISATION, batch_size=batch_size)
    assert model.calls == math.ceil(11 / batch_size)  # one pass serves both kinds
    model.eval()
    with torch.no_grad():
        wanted = model.features(NORMALISATION(inputs.images))
        torch.testing.assert_close(found.penultimate, wanted)
        torch.testing.assert_close(found.embedding, model.project(wanted))
    assert torch.equal(found.labels, inputs.labels)
    assert [kind for kind, _ in found.kinds()] == ["penultimate", "embedding"]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_and_the_global_generator_return_as_they_were(training):
    model = Small().train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    extract(model, images(), NORMALISATION)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.training is training
    assert model.backbone[1].training is training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_mode_is_restored_after_an_error():
    model = Small().train()
    with pytest.raises(ValueError, match="1 channels, the normalisation 3"):
        extract(model, ImageSet(images().images[:, :1]), NORMALISATION)
    assert model.training


def test_half_precision_features_are_kept_in_float32():
    class Half(Small):
        def features(self, images: Tensor) -> Tensor:
            return super().features(images).bfloat16()

        def project(self, features: Tensor) -> Tensor:
            return features

    found = extract(Half(), images(), NORMALISATION)
    assert found.penultimate.dtype == found.embedding.dtype == torch.float32
    assert not found.penultimate.requires_grad


def test_unlabelled_images_have_features_too():
    found = extract(Small(), ImageSet(images().images), NORMALISATION)
    assert found.penultimate.shape == (11, 5)
    assert found.labels.tolist() == [-1] * 11


def test_a_model_that_is_no_encoder_is_refused():
    with pytest.raises(TypeError, match=r"no method features\(\)"):
        extract(nn.Linear(2, 2), images(), NORMALISATION)
