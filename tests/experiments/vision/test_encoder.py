"""A trained encoder is used in one line, and embeds one's own images by one command."""

import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import tricouple as tc
from image_files import write_classes
from tricouple_lab import cli
from tricouple_lab.data.images.sets import ImageSet
from tricouple_lab.evaluation.features import extract
from tricouple_lab.experiments.encoder import load_encoder
from tricouple_lab.experiments.runs.run import run_once
from tricouple_lab.experiments.vision import VISION, load_images
from tricouple_lab.files import CheckpointError
from tricouple_lab.report.command import read_known, write_report


@pytest.fixture
def trained(tiny, console, tmp_path):
    """A run on 16 images of one's own, and its configuration."""
    write_classes(tmp_path / "pics", {"cat": 8, "dog": 8}, side=(20, 16))
    config = tiny(
        "data=folder", f"data.root={tmp_path / 'pics'}", "data.train_size=null",
        "data.image_size=12", "training.epochs=1", "training.batch_size=8",
        "evaluation.neighbours=3",
    )  # fmt: skip
    return run_once(VISION, config, console).folder, config


def test_the_encoder_of_a_run_gives_the_features_of_its_evaluation(trained, tmp_path):
    folder, config = trained
    data = load_images(config).data
    encoder = tc.load_encoder(folder.path)
    expected = extract(encoder.model, data.test, data.normalisation).embedding
    found = {image: encoder.transform(image) for image in sorted(tmp_path.rglob("pics/*/*.png"))}
    seen = data.normalisation(data.test.images)
    places = [
        next(image for image, own in found.items() if torch.equal(own, each)) for each in seen
    ]
    with torch.no_grad():
        embedded = encoder.model(torch.stack([found[place] for place in places]))
    torch.testing.assert_close(embedded, expected)
    assert encoder.classes == ("cat", "dog")
    assert not encoder.model.training
    with Image.open(places[0]) as picture:
        assert torch.equal(encoder.transform(picture), found[places[0]])
    shutil.rmtree(tmp_path / "pics")
    assert load_encoder(str(folder.path)).classes == ("cat", "dog")  # the images are not needed


def test_a_run_of_the_version_before_is_loaded_with_the_help_of_its_data(trained):
    folder, config = trained
    content = vars(folder.read_trained(config))
    torch.save({name: content[name] for name in ("identity", "weights", "rows")}, folder.encoder)
    assert load_encoder(folder.path).classes == ("cat", "dog")


def test_what_is_no_run_is_told_in_a_sentence(tmp_path, trained, monkeypatch):
    with pytest.raises(ValueError, match=r"is not a run: it has no config\.yaml"):
        load_encoder(tmp_path)
    folder, config = trained
    content = vars(folder.read_trained(config))
    torch.save(content | {"about": {"side": 12}}, folder.encoder)
    with pytest.raises(CheckpointError, match=r"encoder\.pt is damaged, it lacks 'normalisation'"):
        load_encoder(folder.path)
    monkeypatch.setitem(sys.modules, "tricouple_lab.experiments.runs.folder", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[train\]' in a clone"):
        load_encoder(folder.path)


def test_embed_writes_an_entry_an_image_and_finds_those_that_are_alike(
    trained, tmp_path, monkeypatch, capsys
):
    folder, _ = trained
    shutil.copy(tmp_path / "pics/cat/0.png", tmp_path / "pics/dog/twin[b].png")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["embed", str(folder.path), "pics", "--neighbours", "3"]) == 0
    shown = capsys.readouterr().out
    assert "17 images: pics-embeddings.npz" in shown
    with np.load("pics-embeddings.npz") as file:
        found = dict(file)
    names = list(found["names"])
    assert names[0] == "cat/0.png"
    assert found["embedding"].shape == (17, 2)
    assert found["penultimate"].shape[0] == 17
    twin = names.index("dog/twin[b].png")
    equal = {0, names.index("dog/0.png"), twin}  # pictures of one number are equal
    assert {0, *found["neighbours"][0][:2]} == {twin, *found["neighbours"][twin][:2]} == equal
    assert found["cosines"][0][0] == pytest.approx(1, abs=1e-5)
    page = (tmp_path / "pics-embeddings.html").read_text()
    assert page.count("data:image/png") == 17 * 4
    encoder = load_encoder(folder.path)
    with torch.no_grad():
        first = encoder.model(encoder.transform("pics/cat/0.png")[None])
    torch.testing.assert_close(torch.from_numpy(found["embedding"][:1]), first)


def test_embed_writes_parquet_for_tables(trained, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    folder, _ = trained
    out = tmp_path / "a.parquet"
    assert cli.main(["embed", str(folder.path), str(tmp_path / "pics"), "--out", str(out)]) == 0
    table = parquet.read_table(out)
    assert table.column_names == ["names", "embedding", "penultimate"]
    assert len(table) == 16


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere", "pics"], "nowhere is not a run"),
        (["nowhere", "nothing"], "nothing: there is no such folder"),
        (["nowhere", "empty"], "empty holds no images"),
        (["nowhere", "pics", "--out", "a.txt"], "ends in .npz or .parquet"),
    ],
)
def test_embed_refuses_in_a_line(words, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "pics", {"cat": 1})
    (tmp_path / "empty").mkdir()
    assert cli.main(["embed", *words]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_the_report_of_a_run_shows_confusion_map_and_neighbours(trained, tmp_path, capsys):
    folder, _ = trained
    page = write_report(folder.path).read_text()
    for title in ("What is confused", "A map of the test images", "Nearest neighbours"):
        assert f"{title}</h2>" in page
    assert page.count("data:image/png") >= 4
    assert cli.main(["report", str(folder.path), "--figures", str(tmp_path / "figures")]) == 0
    drawn = {path.name for path in (tmp_path / "figures").glob("*.png")}
    assert {"vision-confusion.png", "vision-map.png"} <= drawn
    together = write_report(folder.path.parent, tmp_path / "all.html").read_text()
    assert "Nearest neighbours</h2>" in together
    (folder.path / "gallery.npz").write_bytes(b"damaged")
    assert cli.main(["report", str(folder.path)]) == 2
    assert "gallery.npz: not a gallery" in capsys.readouterr().err
    assert read_known(folder.path).kind == "vision"


def test_the_line_to_use_is_printed_after_training(words, tiny, capsys):
    assert cli.main(["train", *words, "training.epochs=1"]) == 0
    folder = VISION.folder(tiny("training.epochs=1")).path
    shown = capsys.readouterr().out
    assert f'tricouple.load_encoder("{folder}"), or tricouple embed {folder} FOLDER' in shown


def test_grey_images_and_labels_that_are_not_there(tiny, console, tmp_path):
    config = tiny("training.epochs=1")
    encoder = load_encoder(run_once(VISION, config, console).folder.path)
    assert encoder.transform.channels == 1
    colour = Image.new("RGB", (30, 20), (200, 10, 10))
    assert encoder.transform(colour).shape == (1, 8, 8)
    assert encoder.classes == tuple("0123456789")
    assert isinstance(load_images(config).data.test, ImageSet)
