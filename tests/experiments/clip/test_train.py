"""Image-text runs: trained, evaluated, skipped, continued, refused; on the base of all runs."""

import json
import math
import re
import shutil

import numpy as np
import pytest
import torch

from caption_files import write_coco, write_csv
from experiments.conftest import rows
from image_files import write_cifar10
from tricouple_lab import names
from tricouple_lab.experiments.clip import CLIP, load_captions
from tricouple_lab.experiments.runs.run import initial_encoder, run_once
from tricouple_lab.training.module import Training

LOSSES = [key for key, loss in names.LOSSES.items() if loss.across]


def train(config, console):
    return run_once(CLIP, config, console)


def build_training(config, found):
    options = {"learning_rate": 1e-3, "weight_decay": 0.1, "seed": 0, "identity": "me"}
    return CLIP.method(config, found, initial_encoder(CLIP, config, found), options)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_with_a_sharpness_that_learns(tiny, loss):
    config = tiny(f"loss={loss}", "training.captions=all", "training.learn_temperature=true")
    found = load_captions(config)
    module = build_training(config, found)
    batch = found.samples.__getitems__(list(range(32)))
    learning = (
        module.encoder.visual.attnpool.c_proj.weight,
        module.encoder.text_projection,
        module.criterion.log_factor,
    )
    before = [parameter.detach().clone() for parameter in learning]
    optimiser = module.configure_optimizers()
    module.log = lambda *_, **__: None
    loss_value = module.batch_loss(batch, seed=0)
    loss_value.backward()
    optimiser.step()
    assert math.isfinite(loss_value.item())
    assert not any(torch.equal(old, new) for old, new in zip(before, learning, strict=True))


def test_a_run_leaves_its_settings_curves_weights_evaluation_and_gallery(tiny, console):
    config = tiny("loss=infonce")
    finished = train(config, console)
    folder = finished.folder
    assert folder == CLIP.folder(config)
    left = {path.name for path in folder.path.iterdir()}
    assert left == {
        "config.yaml", "metrics.csv", "tensorboard", "encoder.pt", "evaluation.json",
        "gallery.npz", "study.json", "runs.jsonl",
    }  # fmt: skip
    table = rows(folder.path)
    assert [row["epoch"] for row in table] == ["0", "1", "2"]
    for name in ("image_to_text", "text_to_image", "gap", "alignment", "image_uniformity"):
        assert all(math.isfinite(float(row[name])) for row in table), name
    result = finished.evaluation["result"]
    assert (result["n_images"], result["n_captions"], result["batch_size"]) == (44, 132, 32)
    assert result["whole_split"]["candidates"] == [132, 44]
    with np.load(folder.path / "gallery.npz") as gallery:
        assert gallery["thumbnails"].dtype == np.uint8
        assert gallery["answer_captions"].shape == (2, 5)
        for when in ("before", "after"):
            for axis in ("positive", "negative"):
                marginal = gallery[f"plan_{axis}_{when}"]
                assert marginal.shape == (16, 16)
                assert marginal.sum() == pytest.approx(1, abs=1e-6)
        assert not np.array_equal(gallery["similarity_before"], gallery["similarity_after"])

    monkey = train(config, console)
    assert monkey.skipped
    assert monkey.evaluation == finished.evaluation
    again = train(tiny("loss=infonce", "evaluation.part=validation"), console)
    assert again.evaluation["epoch"] == 2
    assert again.evaluation["settings"]["part"] == "validation"
    result = again.evaluation["result"]
    assert (result["n_images"], result["whole_split"]["candidates"]) == (40, [120, 40])


def test_an_interrupted_run_continues_to_the_same_numbers(tiny, console, tmp_path, monkeypatch):
    whole = train(tiny("training.captions=all"), console)
    elsewhere = tiny("training.captions=all", f"runs={tmp_path / 'elsewhere'}")
    real = Training.training_step

    def interrupted(self, batch, batch_idx):
        if self.current_epoch == 1:
            raise RuntimeError("power cut")
        return real(self, batch, batch_idx)

    with monkeypatch.context() as context:
        context.setattr(Training, "training_step", interrupted)
        with pytest.raises(RuntimeError, match="power cut"):
            train(elsewhere, console)
    resumed = train(elsewhere, console)
    assert "Continuing" in console.file.getvalue()
    assert rows(resumed.folder.path) == rows(whole.folder.path)
    assert resumed.evaluation["metrics"] == whole.evaluation["metrics"]


def test_own_captions_and_zero_shot_images_make_a_run(tiny, console, tmp_path, monkeypatch):
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    write_cifar10(tmp_path)
    many = [[f"picture {n}", f"a photo of number {n} " * 9] for n in range(60)]
    write_csv(tmp_path, many)
    words = [
        "data=csv", f"data.root={tmp_path}", "data.train=captions.csv", "data.train_images=images",
        "data.train_size=null", "data.validation_size=0", "data.test_size=12",
        "training.epochs=1", "evaluation.zero_shot=[cifar10]", "evaluation.zero_shot_size=10",
        "trainer.precision=bf16-mixed",
    ]  # fmt: skip
    result = train(tiny(*words), console).evaluation
    assert result["result"]["zero_shot"]["cifar10"]["n_images"] == 10
    assert set(result["metrics"]) >= {"zero_shot/cifar10/top1", "zero_shot/cifar10/top5"}
    shown = console.file.getvalue()
    assert shown.count("captions of more than 16 tokens were cut (48 train, 12 test)") == 1
    assert CLIP.folder(tiny(*words)).path.name.startswith(f"clip-{tmp_path.name}-")
    assert train(tiny(*words), console).skipped
    (tmp_path / "images/0.png").touch()
    with pytest.raises(ValueError, match=r"images have other names, sizes or dates"):
        train(tiny(*words), console)


def test_a_published_set_of_captions_is_known_by_its_files(tiny, tmp_path):
    annotations = tmp_path / "flickr8k/annotations"
    annotations.mkdir(parents=True)
    config = tiny("data=flickr8k", f"data.root={tmp_path}/flickr8k")
    assert CLIP.listing(config) == {}  # nothing is there yet: loading says so
    for part in ("train", "val", "test"):
        write_coco(tmp_path / "flickr8k", name=f"annotations/captions_{part}.json")
    found = CLIP.listing(config)
    assert found["flickr8k"]["files"] == 6
    shutil.copytree(tmp_path / "flickr8k", tmp_path / "copy")
    assert CLIP.listing(tiny("data=flickr8k", f"data.root={tmp_path}/copy")) == found
    (tmp_path / "copy/images/0.png").unlink()
    assert CLIP.listing(tiny("data=flickr8k", f"data.root={tmp_path}/copy")) != found


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (["training.batch_size=1000"], "training.batch_size is 1000, but there are 96 training"),
        (["training.captions=two"], "training.captions must be one of 'one', 'all'"),
        (["evaluation.part=train"], "evaluation.part must be one of 'test', 'validation'"),
        (["training.epochs=0"], "training.epochs must be at least 1"),
        (["data.format=xml"], "data.format must be one of 'shapes', 'coco', 'csv', 'shards'"),
        (["evaluation.zero_shot=[digits]"], "evaluation.zero_shot=digits: images must have colour"),
        (["evaluation.zero_shot=[cifar]"], "evaluation.zero_shot=cifar: data must be one of"),
        (["model.vision.image_size=big"], "model.vision.image_size must be a whole number"),
        (["loss.temperature=-1"], "loss.temperature must be finite and > 0"),
        (["+trainer.max_epochs=3"], "trainer.max_epochs cannot be set"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_computed(tiny, console, wrong, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        train(tiny(*wrong), console)
    assert not CLIP.folder(tiny(*wrong)).path.exists()


def test_a_missing_validation_part_is_refused(tiny, console, tmp_path):
    write_coco(tmp_path, [[f"picture {n}"] for n in range(50)])
    words = [
        "data=json", f"data.root={tmp_path}", "data.train=captions.json", "data.test_size=5",
        "data.train_images=images", "data.train_size=null", "data.validation_size=0",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"evaluation\.part=validation needs data\.validation"):
        train(tiny(*words, "evaluation.part=validation"), console)


def test_captions_are_drawn_anew_in_every_epoch(tiny):
    found = load_captions(tiny())
    module = build_training(tiny(), found)
    batch = found.samples.__getitems__(list(range(32)))
    seen = []
    module.encoder.encode_text = lambda tokens: seen.append(tokens) or torch.randn(32, 64)
    for seed in (1, 1, 2):
        module.batch_loss(batch, seed)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_a_sharpness_that_learns_is_followed_and_reported(tiny, console):
    finished = train(tiny("training.learn_temperature=true"), console)
    table = rows(finished.folder.path)
    assert table[0]["sharpness"] == ""
    assert float(table[1]["sharpness"]) != float(table[2]["sharpness"])
    assert finished.evaluation["sharpness"] == float(table[2]["sharpness"]) != 10


def test_evaluation_is_json_with_provenance(tiny, console):
    folder = train(tiny("training.epochs=1"), console).folder
    record = json.loads(folder.evaluation.read_text())
    assert record["provenance"]["versions"]["torch"]
    assert record["config"]["model"]["name"] == "tiny"
    assert record["sharpness"] == 10
