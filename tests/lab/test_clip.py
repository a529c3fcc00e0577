"""Image-text: towers, batches, captions, a whole run, zero-shot, embedding."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tricouple_lab.cli import main
from tricouple_lab.config.compose import compose
from tricouple_lab.data.sources import ImageSplit, Sets
from tricouple_lab.models import clip
from tricouple_lab.names import UserError
from tricouple_lab.runs.encoder import load_encoder
from tricouple_lab.runs.execute import build, execute
from tricouple_lab.tasks import clip as clip_task
from tricouple_lab.tasks.base import Model, Share, Step, task_of

TASK = task_of("clip")
SMALL = ("scale=smoke", "data.train_size=24", "data.validation_size=8", "data.test_size=8")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The smoke scale with 6 of 10 epochs and half the images: 48 steps, about 5 s."""
    words = ("scale=smoke", "data.train_size=256", "training.epochs=6", "logger=none")
    folder = tmp_path_factory.mktemp("run")
    return execute(TASK, compose("clip", [*words, f"run={folder}"]), say=lambda line: None), folder


def test_a_run_beats_chance_and_what_it_was_before(run):
    record, folder = run
    for key in ("recall/mean@1", "recall/image_to_text@1", "recall_in_batch/text_to_image@5"):
        assert record.before[key] == pytest.approx(record.chance[key], abs=0.06)
    assert record.after["recall/mean@1"] > 5 * record.chance["recall/mean@1"]
    assert record.chance["recall/image_to_text@10"] == pytest.approx(0.0975, abs=1e-3)
    assert record.after["geometry/alignment"] < record.before["geometry/alignment"]
    assert record.curves[-1]["recall/mean@1"] == record.validation
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "image to text" in page
    assert "background" in page


def test_images_and_texts_are_embedded_into_one_space(run, tmp_path):
    encoder = load_encoder(run[1])
    found = TASK.load(compose("clip", ["scale=smoke", "data.train_size=256"])).splits["test"].split
    pictures = [Image.fromarray(found.pixels[n].movedim(0, -1).numpy()) for n in range(20)]
    pictures[0].save(tmp_path / "picture.png")
    items = [
        str(tmp_path / "picture.png"),
        *pictures[1:],
        *(texts[0] for texts in found.texts[:20]),
    ]
    unit = encoder.embed(items)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    cosines = unit[:20] @ unit[20:].T
    assert unit.shape == (40, 64)
    assert np.diag(cosines).mean() > cosines.mean() + 0.1  # images are near their own captions
    one = encoder.transform(pictures[0])[None]
    with torch.inference_mode():
        row = torch.nn.functional.normalize(encoder.model.encode_image(one), dim=1)
    np.testing.assert_allclose(row[0], unit[0], atol=1e-5)


def test_examples_name_the_retrieved_captions_and_images():
    config, data, model = loaded()
    found = TASK.evaluate(config, data, model.encoder.eval(), "test", full=True).arrays
    assert found["image"].shape == found["text"].shape == (8, 64)
    assert found["examples_image_to_text_queries"].shape == (6, 32, 32, 3)
    assert found["examples_text_to_image_answers"].shape == (6, 5, 32, 32, 3)
    captions = found["examples_image_to_text_answers"]
    assert set(captions.flatten()) <= set(data.splits["test"].split.captions)
    scores = found["examples_text_to_image_scores"]
    assert (np.diff(scores, axis=1) <= 0).all()
    assert not TASK.evaluate(config, data, model.encoder, "test", full=False).arrays


@pytest.mark.parametrize(("captions", "length"), [("one", 24), ("all", 72)])
def test_an_epoch_has_each_image_or_each_caption(captions, length):
    train = TASK.load(compose("clip", [*SMALL, f"training.captions={captions}"])).train
    assert len(train) == length
    batch = train.__getitems__([4, 5, 1])
    if captions == "all":
        assert batch.counts.tolist() == [1, 1, 1]
        assert torch.equal(batch.tokens[:, 0], train.tokens[[4, 5, 1]])
        assert torch.equal(batch.images[0], batch.images[1])  # captions of the second image
    else:
        assert batch.counts.tolist() == [3, 3, 3]
        assert torch.equal(batch.tokens[2], train.tokens[3:6])
        assert torch.equal(batch.images[2], train.split.pixels[1])


def test_images_with_fewer_captions_repeat_none_of_another():
    whole = TASK.load(compose("clip", SMALL)).train
    texts = (whole.split.texts[0][:1], *whole.split.texts[1:])
    split = type(whole.split)(whole.split.pixels, whole.split.index, texts)
    tokens = torch.cat([whole.tokens[:1], whole.tokens[3:]])
    pairs = clip_task.Pairs(split, tokens, torch.arange(len(tokens)))
    batch = pairs.__getitems__([0, 2])
    assert batch.counts.tolist() == [1, 3]
    assert batch.identities.tolist() == [[0, 0, 0], [4, 5, 6]]


def loaded(*words):
    """A configuration, its data and an untrained model."""
    config = compose("clip", [*SMALL, *words])
    data = TASK.load(config)
    return config, data, build(TASK, config, data)


def seen(config, model, batch, step):
    """What the loss is given: crops, tokens and identities."""
    found = {}

    class Recorder(torch.nn.Module):
        sharpness = None

        def encode_image(self, images):
            found["images"] = images
            return images.flatten(1)

        def encode_text(self, tokens):
            found["tokens"] = tokens
            return tokens.float()

        def forward(self, images, texts, identities):
            found["identities"] = identities
            return texts.sum()

    TASK.loss(config, Model(Recorder(), Recorder()), batch, step)
    return found


def test_processes_draw_the_crops_and_captions_of_the_whole_batch():
    config = compose("clip", [*SMALL, "data.identity=caption"])
    train = TASK.load(config).train
    whole = seen(config, None, train.__getitems__(range(8)), Step(3, 0, 1))
    for rank in range(2):
        step = Step(3, 0, 1, Share(rank, 2))
        part = seen(config, None, train.__getitems__(range(rank, 8, 2)), step)
        for name, value in part.items():
            assert torch.equal(value, whole[name][rank::2])
    other = seen(config, None, train.__getitems__(range(8)), Step(4, 0, 1))
    assert not torch.equal(other["tokens"], whole["tokens"])
    assert not torch.equal(other["images"], whole["images"])
    config.training.augment = False
    plain = seen(config, None, train.__getitems__(range(8)), Step(3, 0, 1))["images"]
    assert torch.equal(plain, clip.normalise(train.split.pixels[:8]))


@pytest.mark.parametrize("learn", [False, True])
def test_the_saved_towers_have_the_sharpness_of_the_loss(learn):
    words = "loss.sharpness=7", f"training.learn_sharpness={learn}".lower()
    config, data, model = loaded(*words)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    for number in range(2):
        TASK.loss(config, model, data.train.__getitems__(range(12)), Step(number, 0, 2)).backward()
        optimizer.step()
    found = float(model.encoder.logit_scale.exp())
    metrics = TASK.evaluate(config, data, model.encoder.eval(), "test", full=True).metrics
    if learn:
        assert found != pytest.approx(7.0, abs=1e-4)
        assert metrics["sharpness"] == pytest.approx(found)
    else:
        assert found == pytest.approx(7.0)
        assert "sharpness" not in metrics


def test_zero_shot_classifies_images_by_the_names_of_their_classes(monkeypatch):
    images = ImageSplit.whole(
        torch.randint(0, 256, (12, 3, 32, 32), dtype=torch.uint8), torch.arange(12) % 4
    )
    classes = ("red_circle", "ring", "cross", "square")
    clip_task.zero_shot_images.cache_clear()
    sets = Sets({"train": images, "test": images}, classes)
    monkeypatch.setattr(clip_task, "load_images", lambda config: sets)
    config, data, model = loaded("evaluation.zero_shot=cifar10")
    found = TASK.evaluate(config, data, model.encoder.eval(), "test", full=True)
    assert found.chance["zero_shot/cifar10@1"] == pytest.approx(0.25)
    assert found.metrics["zero_shot/cifar10@5"] == 1.0
    assert data.digest == TASK.load(compose("clip", SMALL)).digest
    grey = Sets({"test": ImageSplit.whole(images.pixels[:, :1], images.labels)}, classes)
    monkeypatch.setattr(clip_task, "load_images", lambda config: grey)
    clip_task.zero_shot_images.cache_clear()
    with pytest.raises(UserError, match=r"evaluation.zero_shot=cifar10: needs colour images"):
        TASK.load(config)


@pytest.mark.parametrize("name", clip.TOWERS)
def test_towers_take_images_of_their_side_to_one_space(name):
    with torch.device("meta"):
        model = clip.build_clip(name)
        side, dim = clip.image_side(name), clip.TOWERS[name].embed_dim
        assert model.encode_image(torch.zeros(2, 3, side, side)).shape == (2, dim)
        length = clip.TOWERS[name].text["context_length"]
        assert model.encode_text(torch.ones(2, length, dtype=torch.int64)).shape == (2, dim)
    assert not model.logit_scale.requires_grad


def test_long_captions_are_cut_and_counted(tmp_path):
    ids, cut = clip.tokenise(["short", "word " * 40], "tiny")
    assert cut == ["word " * 40]
    assert ids.shape == (2, 16)
    assert (ids[1] > 0).all()
    assert ids[0, 3:].sum() == 0
    assert ids[1, -1] == ids[0].max()  # the mark of the end is kept
    for number in range(10):
        Image.new("RGB", (9, 9), (number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = "".join(f"{number}.png,{'very ' * 20}red\n" for number in range(10))
    (tmp_path / "own.csv").write_text(f"image,caption\n{rows}")
    data = TASK.load(compose("clip", ["scale=smoke", "data=csv", f"data.root={tmp_path}/own.csv"]))
    assert any(note.startswith("5 train captions are cut, such as “very") for note in data.notes)
    assert sum("captions belong to several images" in note for note in data.notes) == 1
    assert data.train.identities.unique().tolist() == [0]


@pytest.mark.parametrize("command", ["clip", "evaluate"])
def test_a_missing_library_is_named_with_its_extra(command, run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    for name in ("tricouple_lab.models.clip", "tricouple_lab.tasks.clip"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("tricouple_lab.models.clip")
    assert main([command, *(SMALL if command == "clip" else [str(run[1])])]) == 2
    assert "open_clip is missing: pip install '.[clip]'" in capsys.readouterr().err
