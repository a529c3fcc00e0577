"""Reading texts: phrases, published intents, own tables; splits, shots, digests."""

import json

import pandas as pd
import pytest

from tricouple_lab.config.schema import TextData
from tricouple_lab.data.texts import OUT_OF_SCOPE, load_texts
from tricouple_lab.names import UserError

ROWS = [
    (f"text {number} of {label}", label) for label in ("01", "NA", "oos") for number in range(20)
]


def write_table(path, rows=ROWS, columns=("text", "label")):
    frame = pd.DataFrame(rows, columns=columns)
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return str(path)


def sizes(found):
    return {name: len(split) for name, split in found.splits.items()}


def test_phrases_have_classes_and_texts_out_of_scope():
    found = load_texts(TextData(), 0)
    assert sizes(found) == {"train": 901, "validation": 99, "test": 500, "out_of_scope": 200}
    assert len(found.classes) == 10
    assert found.splits["out_of_scope"].labels.unique().tolist() == [-1]
    assert not set(found.splits["train"].texts) & set(found.splits["test"].texts)
    assert found.digest() == load_texts(TextData(), 1).digest()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_own_tables_keep_labels_as_they_stand(tmp_path, suffix):
    config = TextData(name="csv", root=write_table(tmp_path / f"own{suffix}"))
    found = load_texts(config, 0)
    assert found.classes == ("01", "NA", "oos")
    assert sizes(found) == {"train": 42, "validation": 6, "test": 12}
    assert load_texts(config, 5).splits["test"].texts == found.splits["test"].texts


def test_a_folder_of_tables_has_its_own_test_set(tmp_path):
    write_table(tmp_path / "train.csv")
    write_table(tmp_path / "test.jsonl", ROWS[::10])
    found = load_texts(TextData(name="csv", root=str(tmp_path), validation_share=0.0), 0)
    assert sizes(found) == {"train": 60, "test": 6}
    assert found.notes == ("6 test texts also occur in the training texts",)
    write_table(tmp_path / "test.jsonl", [("new", "unknown class")])
    with pytest.raises(UserError, match="test texts of classes without training texts: unknown"):
        load_texts(TextData(name="csv", root=str(tmp_path)), 0)


def test_pairs_of_one_text_stay_together(tmp_path):
    rows = [(f"question {n // 2}", f"answer {n}") for n in range(40)]
    root = write_table(tmp_path / "pairs.csv", rows, ("text", "pair"))
    found = load_texts(TextData(name="csv", root=root), 0)
    assert found.classes == ()
    assert sizes(found) == {"train": 28, "validation": 4, "test": 8}
    train, test = found.splits["train"], found.splits["test"]
    assert not set(train.texts) & set(test.texts)
    assert train.labels.unique(return_counts=True)[1].tolist() == [2] * 14
    with pytest.raises(UserError, match="these are pairs"):
        load_texts(TextData(name="csv", root=root, shots=2), 0)


def test_the_seed_draws_the_shots_but_not_the_held_out_texts():
    first, second = (load_texts(TextData(shots=5), seed) for seed in (0, 1))
    assert first.splits["train"].labels.bincount().tolist() == [5] * 10
    assert first.splits["train"].texts != second.splits["train"].texts
    assert first.splits["validation"].texts == second.splits["validation"].texts
    assert first.digest() != second.digest()
    with pytest.raises(UserError, match=r"data.shots=99: 9 of 10 classes .* use 82 or less"):
        load_texts(TextData(shots=99), 0)


def test_classes_too_small_to_hold_out_leave_no_validation_split(tmp_path):
    rows = [(f"{label} {number}", label) for label in "abc" for number in range(2)]
    write_table(tmp_path / "train.csv", rows)
    write_table(tmp_path / "test.csv", rows[:1])
    found = load_texts(TextData(name="csv", root=str(tmp_path)), 0)
    assert sizes(found) == {"train": 6, "test": 1}


def test_sizes_are_exact_and_said():
    found = load_texts(TextData(train_size=123, test_size=45), 0)
    assert sizes(found) == {"train": 123, "validation": 99, "test": 45, "out_of_scope": 200}
    assert found.notes[0] == "123 of 901 train texts are used (data.train_size)"


def test_published_intents_are_read_below_intents(tmp_path, monkeypatch):
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    folder = tmp_path / "intents/banking77"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        write_table(folder / f"{split}.csv", ROWS, ("text", "category"))
    found = load_texts(TextData(name="banking77"), 0)
    assert found.classes == ("01", "NA")  # oos is a class in own tables only
    assert sizes(found) == {"train": 36, "validation": 4, "test": 40, "out_of_scope": 20}
    with pytest.raises(UserError, match="nor on the hub as clinc/clinc_oos:plus"):
        load_texts(TextData(name="clinc150"), 0)
    folder = tmp_path / "intents/clinc150"
    folder.mkdir()
    parts = {part: [list(row) for row in ROWS] for part in ("train", "val", "test")}
    outside = [["what is this", OUT_OF_SCOPE]]
    (folder / "data_full.json").write_text(json.dumps({**parts, "oos_test": outside}))
    found = load_texts(TextData(name="clinc150"), 0)
    assert sizes(found) == {"train": 40, "validation": 40, "test": 40, "out_of_scope": 21}
    (folder / "data_full.json").write_text(json.dumps(parts))
    with pytest.raises(UserError, match=r"data_full.json: is not CLINC150 as published"):
        load_texts(TextData(name="clinc150"), 0)


def test_parquet_of_the_hub_has_names_of_classes(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    datasets.disable_progress_bars()
    features = datasets.Features(
        {"text": datasets.Value("string"), "intent": datasets.ClassLabel(names=["a", "oos", "b"])}
    )
    rows = {"text": [f"t {n}" for n in range(30)], "intent": [0, 1, 2] * 10}
    (tmp_path / "clinc150").mkdir()
    for split in ("train", "validation", "test"):
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(tmp_path / f"clinc150/{split}.parquet")
    found = load_texts(TextData(name="clinc150"), 0)
    assert found.classes == ("a", "b")
    assert sizes(found) == {"train": 20, "validation": 20, "test": 20, "out_of_scope": 10}


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    def fails(sentence, root, **settings):
        with pytest.raises(UserError, match=sentence) as error:
            load_texts(TextData(name="csv", root=str(root), **settings), 0)
        assert "\n" not in str(error.value)

    fails("expected a table, or a folder", "")
    fails("expected a table, or a folder", tmp_path)
    root = write_table(tmp_path / "own.csv", ROWS, ("sentence", "intent"))
    fails("no column text .data.text_column. and no column label .*: sentence, intent", root)
    own = {"text_column": "sentence", "label_column": "intent"}
    assert len(load_texts(TextData(name="csv", root=root, **own), 0).classes) == 3
    write_table(tmp_path / "own.csv", [("text", "one"), ("other", "one")])
    fails("two classes are needed", root)
    write_table(tmp_path / "own.csv", [("", "one"), ("other", "")])
    fails("no row has a text and a label", root)
    (tmp_path / "own.csv").write_text('text,label\na,"open\n')
    fails("cannot be read as a table", root)
    (tmp_path / "own.jsonl").write_text('{"text": "a"\n')
    fails("own.jsonl: cannot be read as a table", tmp_path / "own.jsonl")
    (tmp_path / "own.csv").write_bytes(b"text,label\n\xff\xfe,a\n")
    fails("cannot be read as a table", root)
    write_table(tmp_path / "own.csv", [*ROWS, ("", "oos"), ("x\0y", "oos")])
    found = load_texts(TextData(name="csv", root=root), 0)
    assert "1 rows without a text or label are left out" in found.notes[0]
