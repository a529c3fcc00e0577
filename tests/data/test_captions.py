"""Captioned images: every format gives the same pairs, and bad input is named and counted."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from caption_files import CAPTIONS, write_coco, write_csv, write_shard, write_shards
from image_files import truncate, write_image
from tricouple.torchvision_ops import declare_missing
from tricouple_lab.conf.compose import configure
from tricouple_lab.conf.schema import Clip
from tricouple_lab.data import CaptionSource, captions
from tricouple_lab.data.images import DataError
from tricouple_lab.data.pairs import COLOURS, CaptionedImages, PairSamples, draw_shapes, tokenise

FORMATS = {
    "json": (write_coco, "coco", "captions.json"),
    "csv": (write_csv, "csv", "captions.csv"),
    "shards": (write_shards, "shards", "train-*.tar"),
}


def load(root, form="json", *, side=8, seed=0, **changes):
    _, kind, train = FORMATS[form]
    plain = CaptionSource(
        form, kind, str(root), train=train, train_images="images", test_size=1,
        cache=str(root / "cache"),
    )  # fmt: skip
    return captions.load(replace(plain, **changes), side, seed)


def pairs(found: CaptionedImages) -> set:
    """Each image by its pixels, with its captions."""
    images = found.images[torch.arange(len(found))]
    return {
        (images[n].numpy().tobytes(), text)
        for n, text in zip(found.owners.tolist(), found.captions, strict=True)
    }


@pytest.mark.parametrize("cached", [True, False])
def test_every_format_gives_the_same_images_and_captions(tmp_path, cached):
    found = {}
    for form, (write, *_) in FORMATS.items():
        root = tmp_path / form
        root.mkdir()
        write(root)
        data = load(root, form, side=16, **({} if cached else {"cache": None}))
        assert (len(data.train), len(data.test), data.validation) == (2, 1, None)
        assert isinstance(data.train.images, torch.Tensor) is cached
        found[form] = pairs(data.train) | pairs(data.test)
    assert found["json"] == found["csv"] == found["shards"]
    assert sorted(text for _, text in found["json"]) == sorted(t for own in CAPTIONS for t in own)


def test_pictures_are_decoded_once_and_again_when_they_change(tmp_path, monkeypatch):
    write_coco(tmp_path)
    first = load(tmp_path)
    with monkeypatch.context() as context:
        context.setattr("tricouple_lab.data.images.files.decode", None)
        again = load(tmp_path)
    assert torch.equal(first.train.images, again.train.images)
    for number in range(3):
        write_image(tmp_path / "images" / f"{number}.png", side=(20, 24), seed=9 + number)
    assert not torch.equal(first.train.images, load(tmp_path).train.images)


def test_the_test_set_is_the_same_for_every_seed_and_subsets_are_not(tmp_path):
    write_coco(tmp_path, [[f"caption {n}"] for n in range(12)])
    one, two = (load(tmp_path, seed=seed, train_size=4, validation_size=3) for seed in (1, 2))
    assert one.test.captions == two.test.captions
    assert one.train.captions != two.train.captions
    parts = [set(part.captions) for part in (one.train, one.validation, one.test)]
    assert [len(part) for part in parts] == [4, 3, 1]
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]


# --- bad input: the first offender, the count, and an option to skip -----------------------------


def caption(image_id, text="x"):
    return {"image_id": image_id, "caption": text}


UNUSABLE = {
    r"captions of unknown images, the first is annotations\[6\], image_id 999": {
        "annotations": [caption(999), caption(1000)]
    },
    r"empty captions, the first is annotations\[6\] of image_id 100": {
        "annotations": [caption(100, "  ")] * 2
    },
    r"missing image files, the first is .*gone1\.png": {
        "images": [{"id": n, "file_name": f"gone{n}.png"} for n in (1, 2)],
        "annotations": [caption(1)],
    },
    r"captions that are no text, the first is annotations\[6\]: None": {
        "annotations": [caption(100, None), caption(101, 5)]
    },
    r"images with the id of another, the first is images\[3\], id 101": {
        "images": [{"id": 101, "file_name": f"{n}.png"} for n in (0, 2)]
    },
}


@pytest.mark.parametrize("complaint", UNUSABLE)
def test_unusable_captions_are_refused_or_left_out_with_a_word(tmp_path, complaint):
    path = write_coco(tmp_path)
    content = json.loads(path.read_text())
    for name, more in UNUSABLE[complaint].items():
        content[name] += more
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=f"2 {complaint}.*data.skip=true"):
        load(tmp_path)
    data = load(tmp_path, skip=True)
    (note,) = data.notes
    assert "left out 2" in note
    assert len(data.train.captions) + len(data.test.captions) == 6


def test_a_table_names_its_first_bad_line(tmp_path):
    path = write_csv(tmp_path)
    path.write_text(path.read_text() + "gone.png,a ghost\n0.png,\n0.png,  \n")
    with pytest.raises(DataError) as refused:
        load(tmp_path, "csv")
    for words in ("1 missing image files, the first is", "gone.png (line 8)",
                  "2 empty captions, the first is line 9"):  # fmt: skip
        assert words in str(refused.value)
    assert len(load(tmp_path, "csv", skip=True).notes) == 2


def test_a_table_without_the_named_columns_tells_which_it_has(tmp_path):
    write_csv(tmp_path, head=("filepath", "title"), separator="\t")
    complaint = (
        r"no column 'path' and no 'caption' but 'filepath\\ttitle': set data.image_column and"
    )
    with pytest.raises(DataError, match=complaint):
        load(tmp_path, "csv")
    columns = {"caption_column": "title", "separator": "\t"}
    with pytest.raises(DataError, match="no column 'name' but 'filepath', 'title'"):
        load(tmp_path, "csv", image_column="name", **columns)
    assert len(load(tmp_path, "csv", image_column="filepath", **columns).train) == 2


def test_a_quote_that_is_not_closed_swallows_no_rows(tmp_path):
    path = write_csv(tmp_path)
    path.write_text('path,caption\n0.png,"a dog\n1.png,a cat\n2.png,a "bird"\n')
    with pytest.raises(
        DataError, match=r"captions\.csv is not a readable table: .*\(line \d or before"
    ):
        load(tmp_path, "csv")
    with pytest.raises(ValueError, match=r"data\.separator must be one character, got '::'"):
        load(tmp_path, "csv", separator="::")


def test_what_is_wrong_with_several_files_is_said_at_once(tmp_path):
    write_csv(tmp_path)
    (tmp_path / "test.csv").write_text("file,text\n")
    with pytest.raises(DataError) as refused:
        load(tmp_path, "csv", image_column="name", test="test.csv", validation="gone.csv")
    for complaint in ("captions.csv has no column 'name'", "test.csv has no column 'name' and no",
                      "gone.csv: there is no such file"):  # fmt: skip
        assert complaint in str(refused.value)


def test_hold_outs_scale_with_small_sets(tmp_path):
    write_coco(tmp_path, [[f"caption {n}"] for n in range(20)])
    data = load(tmp_path, test_size=None, validation_size=None)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [12, 4, 4]
    assert "4 of 20 images are held out for the test" in data.notes
    assert captions.HELD_OUT == 500
    own = configure(["data=csv"], Clip).data
    assert (own.test_size, own.validation_size) == (None, None)


def test_captions_from_the_web_can_be_written(tmp_path):
    path = write_coco(tmp_path)
    path.write_text(path.read_text().replace("a cat on a mat", "a \\ud83d cat\x01\\u0000 \t[/b]"))
    data = load(tmp_path)
    (text,) = [t for t in data.train.captions + data.test.captions if "cat" in t]
    assert text == "a \ufffd cat    [/b]"
    assert text.encode()


def test_a_damaged_cache_is_named_and_made_again(tmp_path):
    write_coco(tmp_path)
    whole = load(tmp_path).train.images.clone()
    for damage in (lambda file: truncate(file, 0.5), lambda file: file.write_bytes(b"")):
        for file in (tmp_path / "cache").iterdir():
            damage(file)
        again = load(tmp_path)
        assert torch.equal(again.train.images, whole)
        assert sum("was damaged and has been made again" in note for note in again.notes) == 2
    assert load(tmp_path).notes == ()


def test_a_damaged_picture_is_named_and_counted(tmp_path):
    write_coco(tmp_path)
    truncate(tmp_path / "images" / "1.png", 0.3)
    with pytest.raises(DataError, match=r"1\.png is not a readable image.*1 of \d are damaged"):
        load(tmp_path)
    assert not list((tmp_path / "cache").glob(".*"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "there is no such file"),
        ("{", "not a readable JSON"),
        ("[]", 'no list "images"'),
        ("[" * 100_000, "not a readable JSON file: .*recursion"),
        (json.dumps({"images": []}), 'no list "annotations"'),
        (json.dumps({"images": [{"id": 1}], "annotations": []}), r"images\[0\] has no text"),
        (
            json.dumps({"images": [{"file_name": "0.png"}], "annotations": []}),
            r'images\[0\] has no number or text "id"',
        ),
        (json.dumps({"images": [], "annotations": []}), "no image with a caption"),
    ],
)
def test_files_that_are_no_annotations_are_named(tmp_path, text, complaint):
    if text is not None:
        (tmp_path / "captions.json").write_text(text)
    with pytest.raises(DataError, match=rf"captions\.json.*{complaint}"):
        load(tmp_path)


def test_shards_take_json_captions_and_refuse_what_is_no_shard(tmp_path):
    write_image(tmp_path / "a.png", side=20)
    pixels = (tmp_path / "a.png").read_bytes()
    members = {"d/1.png": pixels, "d/1.json": b'{"caption": ["one", "two\t"]}', "d/2.png": pixels,
               "d/3.txt": b"no image", "d/4.png": pixels, "d/4.txt": b" \n", "d/6.png": pixels,
               "d/6.json": b'{"caption": null}', "d/7.png": pixels,
               "d/7.json": b'{"caption": ["seven", 7]}'}  # fmt: skip
    write_shard(tmp_path / "train-0.tar", members)
    with pytest.raises(DataError) as refused:
        load(tmp_path, "shards")
    for complaint in ("1 captions of unknown images", "1 images without a caption", "2 empty",
                      "2 captions that are no text, the first is "):  # fmt: skip
        assert complaint in str(refused.value)
    write_shard(tmp_path / "train-1.tar", {"5.png": pixels, "5.txt": b"five"})
    data = load(tmp_path, "shards", skip=True)
    assert sorted(data.train.captions + data.test.captions) == ["five", "one", "seven", "two"]
    write_shard(tmp_path / "train-2.tar", members, mode="w:gz")
    with pytest.raises(DataError, match=r"train-2\.tar is not a readable, uncompressed tar"):
        load(tmp_path, "shards")
    with pytest.raises(DataError, match="no shard has such a name"):
        load(tmp_path, "shards", train="none-*.tar")


def test_impossible_sizes_and_missing_files_of_captions_are_told(tmp_path):
    write_coco(tmp_path)
    with pytest.raises(ValueError, match=r"data\.test_size is 3 .*of 3 images: name files as"):
        load(tmp_path, test_size=3)
    with pytest.raises(ValueError, match=r"data=json needs data\.train"):
        load(tmp_path, train=None)


def test_a_missing_folder_tells_where_to_say_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"flickr8k: there is no such folder: set data\.root, or"):
        captions.load(CaptionSource("flickr8k", "csv", folder="flickr8k", train="x"), 8, 0)
    with pytest.raises(DataError, match=r"gone: there is no such folder: set data\.root$"):
        load(tmp_path / "gone", "csv")


# --- tokens, samples, shapes ---------------------------------------------------------------------


def test_tokens_are_open_clips_and_long_texts_are_counted():
    declare_missing()
    from open_clip import tokenize

    texts = ["A photo of a dog.", "word " * 100, "", "naïve café ☕"]
    for length in (77, 12):
        found = tokenise(texts, length)
        assert torch.equal(found.ids.long(), tokenize(texts, context_length=length))
        assert (found.truncated, found.first_truncated) == (1, texts[1])
    assert tokenise(texts[:1], 77).first_truncated == ""


@pytest.mark.parametrize("all_captions", [False, True])
def test_samples_show_an_image_with_its_own_captions(all_captions):
    images = torch.arange(3, dtype=torch.uint8)[:, None, None, None].expand(3, 3, 2, 2)
    owners = torch.tensor([0, 0, 1, 2, 2, 2])
    tokens = 10 + torch.arange(6)[:, None].expand(6, 4)
    samples = PairSamples(images, tokens, owners, all_captions)
    assert len(samples) == (6 if all_captions else 3)
    batch = samples.__getitems__([2, 0, 1])
    for image, options, count, identity in zip(*batch, strict=True):
        shown = owners[(options[:count, 0] - 10)]
        assert (shown == identity).all()
        assert (image == identity).all()
        assert (options[count:] == 0).all()
    assert batch.counts.tolist() == ([1, 1, 1] if all_captions else [3, 2, 1])


def test_shapes_are_all_different_and_look_like_their_captions():
    train, test = draw_shapes((60, 30), side=32)
    again, _ = draw_shapes((60, 30), side=32)
    assert torch.equal(train.images, again.images)
    assert len({*train.captions, *test.captions}) == 3 * 90
    for image, text in zip(train.images, train.captions[::3], strict=True):
        _, colour, _, _, _, ground, _, _, _, frame, _ = text.split()
        for name, place in ((frame, np.s_[:, 1, 1:5]), (ground, np.s_[:, 6, 5:8])):
            seen = image[place].double().mean(1)
            nearest = min(COLOURS, key=lambda n: (seen - torch.tensor(COLOURS[n])).norm())
            assert nearest == name, text
        assert colour not in (ground, frame)
    with pytest.raises(ValueError, match=r"has 2016 different images, 2017 were asked for"):
        draw_shapes((2017,), side=4)


def test_shapes_have_as_many_parts_as_are_asked_for():
    data = captions.load(CaptionSource("shapes", "shapes", test_size=16), side=4, seed=0)
    assert (len(data.train), data.validation, len(data.test)) == (2000, None, 16)
    with pytest.raises(ValueError, match=r"data\.test_size must be at least 1, got 0"):
        captions.load(CaptionSource("shapes", "shapes"), side=4, seed=0)
