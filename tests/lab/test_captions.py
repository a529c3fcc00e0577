"""Reading images with captions: shapes, COCO's JSON, tables, parquet; identities and digests."""

import json
import shutil

import pandas as pd
import pytest
import torch
from PIL import Image

from image_files import write_image
from tricouple_lab.config.schema import CaptionData
from tricouple_lab.data.captions import CaptionSplit, caption_identities, load_captions
from tricouple_lab.data.shapes import draw_shapes
from tricouple_lab.names import UserError

CAPTIONS = [[f"image {number}", f"picture {number}"] for number in range(10)]


def write_images(folder, n=10):
    for number in range(n):
        write_image(folder / f"{number}.png", (24, 20), seed=number)


def write_coco(file, images, captions=CAPTIONS):
    """``file`` in COCO's format; its images lie in ``images`` beside it, named by number."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_images(file.parent / images, len(captions))
    content = {
        "images": [{"id": 100 + n, "file_name": f"{n}.png"} for n in range(len(captions))],
        "annotations": [
            {"id": 10 * n + k, "image_id": 100 + n, "caption": text}
            for n, texts in enumerate(captions)
            for k, text in enumerate(texts)
        ],
    }
    file.write_text(json.dumps(content))


def write_table(root, columns=("image", "caption"), captions=CAPTIONS, **options):
    write_images(root, len(captions))
    rows = [(f"{n}.png", text) for n, texts in enumerate(captions) for text in texts]
    pd.DataFrame(rows, columns=columns).to_csv(root / "captions.csv", index=False, **options)
    return str(root / "captions.csv")


def test_shapes_are_disjoint_the_same_every_time_and_cut_to_size():
    config = CaptionData(train_size=50, validation_size=10, test_size=20)
    first, second = load_captions(config, 16), load_captions(config, 16)
    assert first.digest() == second.digest()
    assert {name: len(split) for name, split in first.splits.items()} == {
        "train": 50, "validation": 10, "test": 20,
    }  # fmt: skip
    captions = [set(split.captions) for split in first.splits.values()]
    assert [len(own) for own in captions] == [150, 30, 60]
    assert not captions[0] & captions[2]
    assert load_captions(CaptionData(train_size=49), 16).digest() != first.digest()
    with pytest.raises(UserError, match="2016 different images"):
        draw_shapes([2000, 100], 16)


def test_flickr8k_and_coco_are_read_in_their_layouts(tmp_path, monkeypatch):
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    for part in ("train", "val", "test"):
        write_coco(tmp_path / f"flickr8k/annotations/captions_{part}.json", "../images")
    found = load_captions(CaptionData(name="flickr8k", train_size=6), 8)
    assert [len(split) for split in found.splits.values()] == [6, 10, 10]
    assert found.splits["test"].captions[:3] == ("image 0", "picture 0", "image 1")
    assert found.splits["test"].image_index[:3].tolist() == [0, 0, 1]
    assert found.notes == ("6 of 10 train images are used (data.train_size)",)
    with pytest.raises(UserError, match=r"captions_train2017.json or .*; set TRICOUPLE_DATA"):
        load_captions(CaptionData(name="coco"), 8)
    for part in ("train2017", "val2017"):
        write_coco(tmp_path / f"own/annotations/captions_{part}.json", f"../{part}")
    own = CaptionData(name="coco", root=str(tmp_path / "own"), validation_size=3)
    assert [len(split) for split in load_captions(own, 8).splits.values()] == [7, 3, 10]
    own.validation_size = 0
    assert list(load_captions(own, 8).splits) == ["train", "test"]


def test_own_tables_hold_out_the_same_images_and_keep_texts_as_they_stand(tmp_path):
    captions = [["NA", "01"], ['a, "quoted"\nline'], *CAPTIONS[2:]]
    root = write_table(tmp_path / "photos [1]", captions=captions, encoding="utf-8-sig")
    found = load_captions(CaptionData(name="csv", root=root), 8)
    assert {name: len(split) for name, split in found.splits.items()} == {
        "train": 7, "validation": 1, "test": 2,
    }  # fmt: skip
    texts = {text for split in found.splits.values() for text in split.captions}
    assert {"NA", "01", 'a, "quoted" line'} < texts
    shutil.copytree(tmp_path / "photos [1]", tmp_path / "copy")
    copied = CaptionData(name="csv", root=str(tmp_path / "copy/captions.csv"))
    assert load_captions(copied, 8).digest() == found.digest()
    Image.new("RGB", (9, 9)).save(tmp_path / "copy/3.png")
    assert load_captions(copied, 8).digest() != found.digest()


def test_a_folder_of_tables_and_coco_files_of_ones_own_work(tmp_path):
    write_coco(tmp_path / "train.json", ".")
    write_table(tmp_path, ("file", "text"), CAPTIONS[:3], sep="\t")
    (tmp_path / "captions.csv").rename(tmp_path / "test.tsv")
    columns = {"image_column": "file", "caption_column": "text"}
    config = CaptionData(name="csv", root=str(tmp_path), validation_size=2, **columns)
    found = load_captions(config, 8).splits
    assert [len(split) for split in found.values()] == [8, 2, 3]
    assert found["test"].captions[-1] == "picture 2"


def test_parquet_of_the_hub_has_captions_in_columns_or_lists(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    datasets.disable_progress_bars()
    write_images(tmp_path / "made", 4)
    rows = {
        "image": [str(tmp_path / f"made/{n}.png") for n in range(4)],
        "caption_0": [f"a {n}" for n in range(4)],
        "caption_1": [f"b {n}" for n in range(4)],
    }
    for split in ("train", "validation", "test"):
        table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
        (tmp_path / "flickr8k/data").mkdir(parents=True, exist_ok=True)
        table.to_parquet(tmp_path / f"flickr8k/data/{split}-00000-of-00001.parquet")
    found = load_captions(CaptionData(name="flickr8k"), 8).splits
    assert [len(split) for split in found.values()] == [4, 4, 4]
    assert found["train"].captions[:3] == ("a 0", "b 0", "a 1")
    assert not torch.equal(found["test"].pixels[0], found["test"].pixels[1])


def test_images_may_lie_in_a_folder_beside_the_table(tmp_path):
    root = write_table(tmp_path)
    before = load_captions(CaptionData(name="csv", root=root), 8)
    (tmp_path / "images").mkdir()
    for file in tmp_path.glob("*.png"):
        file.rename(tmp_path / "images" / file.name)
    assert load_captions(CaptionData(name="csv", root=root), 8).digest() == before.digest()


def test_missing_images_and_empty_captions_are_left_out_and_counted(tmp_path):
    root = write_table(tmp_path, captions=[*CAPTIONS, ["kept", " "]])
    (tmp_path / "3.png").unlink()
    found = load_captions(CaptionData(name="csv", root=root), 8)
    assert sum(map(len, found.splits.values())) == 10
    assert any("1 empty captions are left out" in note for note in found.notes)
    assert any("1 of 11 images are missing, such as" in note for note in found.notes)


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    root = write_table(tmp_path, ("file", "text"))

    def fails(sentence, **settings):
        with pytest.raises(UserError, match=sentence) as error:
            load_captions(CaptionData(name="csv", **settings), 8)
        assert "\n" not in str(error.value)

    fails(
        "no column image .data.image_column. and no column caption.*columns: file, text", root=root
    )
    fails("expected a table, or a folder with train.csv", root=str(tmp_path / "nowhere"))
    fails("expected a table", root="")
    (tmp_path / "bad.csv").write_text('image,caption\na.png,"open\n')
    fails("bad.csv: cannot be read as a table", root=str(tmp_path / "bad.csv"))
    (tmp_path / "bad.json").write_text('{"images": []}')
    fails("bad.json: expected COCO's format", root=str(tmp_path / "bad.json"))
    (tmp_path / "3.png").write_bytes(b"no image")
    own = {"image_column": "file", "caption_column": "text"}
    fails("3.png: cannot be read as an image", root=root, **own)
    for number in range(10):
        (tmp_path / f"{number}.png").unlink()
    fails("10 of 10 images are missing", root=root, **own)


def test_at_most_a_third_is_held_out(tmp_path):
    root = write_table(tmp_path)
    found = load_captions(CaptionData(name="csv", root=root, test_size=10), 8)
    assert [len(split) for split in found.splits.values()] == [6, 1, 3]
    assert found.notes == ("3 of 10 images are held out for the test: a third at most",)
    few = write_table(tmp_path / "few", captions=CAPTIONS[:2])
    with pytest.raises(UserError, match="2 images: at least 3 are needed"):
        load_captions(CaptionData(name="csv", root=few), 8)


def test_identities_join_images_with_equal_captions_as_asked():
    texts = (("a dog", "x"), ("y",), ("a dog",), ("y", "z"), ("w",))
    split = CaptionSplit(torch.zeros(5, 3, 2, 2), torch.arange(5), texts)
    expected = {
        "image": [0, 0, 1, 2, 3, 3, 4],
        "caption": [0, 1, 2, 0, 2, 3, 4],
        "both": [0, 0, 1, 0, 1, 1, 2],
    }
    for kind, wanted in expected.items():
        found, note = caption_identities(split, kind)
        same = found[:, None] == found
        assert torch.equal(same, torch.tensor(wanted)[:, None] == torch.tensor(wanted))
        assert note.startswith("2 captions belong to several images")
    assert caption_identities(split.rows([0, 1]), "both")[1] == ""
