"""Tables of texts: classes or pairs, mistakes counted and told at once, splits that do not leak."""

import re

import pytest
import torch

from tricouple_lab.data import TextSource
from tricouple_lab.data.images.files import DataError
from tricouple_lab.data.texts import Texts, draw_shots, load, make_phrases


def table(path, *lines, head="text,label"):
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return str(path)


def source(path, **more):
    return TextSource("csv", path=path, **more)


def test_a_table_of_classes_holds_out_a_fifth_of_each(tmp_path):
    lines = [f'"{c}, {n}",{c}' for c in ("late", "lost") for n in range(10)]
    data = load(source(table(tmp_path / "a.csv", *lines)), seed=0)
    assert data.classes == ("late", "lost")
    assert data.test.labels.bincount().tolist() == [2, 2]
    assert data.train.labels.bincount().tolist() == [8, 8]
    assert data.notes == ("4 of 20 rows are held out for the test",)
    again = load(source(str(tmp_path / "a.csv")), seed=5)
    assert again.test.texts == data.test.texts


def test_a_second_table_is_the_test(tmp_path):
    train = table(tmp_path / "a.csv", "one,a", "two,b")
    test = table(tmp_path / "b.csv", "three,b")
    data = load(source(train, test_path=test), seed=0)
    assert (data.train.texts, data.test.texts) == (("one", "two"), ("three",))
    table(tmp_path / "b.csv", "three,c", "four,d")
    with pytest.raises(DataError, match="class without training texts: c, d"):
        load(source(train, test_path=test), seed=0)
    table(tmp_path / "b.csv", "three,c", head="text,pair")
    with pytest.raises(DataError, match=r"a\.csv has the column 'label', .*b\.csv has 'pair'"):
        load(source(train, test_path=test), seed=0)


def test_all_that_is_wrong_with_tables_is_said_at_once(tmp_path):
    train = table(tmp_path / "a.csv", "one,a", ",a", "two,", "   ,b", "three")
    test = table(tmp_path / "b.csv", "x,y", head="sentence,intent")
    with pytest.raises(DataError) as caught:
        load(source(train, test_path=test), seed=0)
    found = str(caught.value)
    assert "a.csv has 2 empty texts, the first is line 3" in found
    assert "2 texts without class, the first is line 4" in found
    assert "data.skip=true" in found
    assert "b.csv has no column 'text' and no 'label' but 'sentence', 'intent'" in found
    assert "set data.text_column and data.label_column for classes, data.pair_column for" in found
    table(tmp_path / "b.csv", "four,a")
    table(tmp_path / "a.csv", "one,a", ",a", "two,b")
    data = load(source(train, test_path=test, skip=True), seed=0)
    assert len(data.train) == 2
    assert data.notes == (f"{train}: left out 1 empty texts, the first is line 3",)


@pytest.mark.parametrize(
    ("lines", "head", "more", "complaint"),
    [
        (["a,b,c"], "text,label,pair", {}, "has both 'label' and 'pair'"),
        (["a,b"], "text;label", {}, "has no column 'text' and no 'label' but 'text;label'"),
        (["a,b"], "text,label", {"separator": ";;"}, "data.separator must be one character"),
        ([], "text,label", {}, "has no row with a text"),
        (["a,b", "c,b"], "text,label", {}, "has the class 'b' only: two are needed"),
        (['"a,b'], "text,label", {}, "is not a readable table"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(tmp_path, lines, head, more, complaint):
    path = table(tmp_path / "mine.csv", *lines, head=head)
    with pytest.raises(ValueError, match=re.escape(complaint)):
        load(source(path, **more), seed=0)


def test_pairs_of_one_text_stay_together(tmp_path):
    lines = [f"q{n // 2},a{n}" for n in range(20)]
    path = table(tmp_path / "a.csv", *lines, head="text,pair")
    data = load(source(path, validation_size=2, test_size=3), seed=0)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [10, 4, 6]
    parts = [set(part.texts) for part in (data.train, data.validation, data.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 10
    assert data.train.labels.unique(return_counts=True)[1].tolist() == [2] * 5
    with pytest.raises(ValueError, match=r"data\.test_size is 10, but there are pairs of 10 texts"):
        load(source(path, test_size=10), seed=0)


def test_classes_with_too_few_texts_are_all_named():
    texts = Texts(tuple("abcdefg"), torch.tensor([0, 0, 0, 1, 1, 2, 2]))
    assert draw_shots(texts, ("x", "y", "z"), 2, seed=3).labels.tolist() == [0, 0, 1, 1, 2, 2]
    complaint = r"2 of 3 classes have fewer training texts: y \(2\), z \(2\); use 2 or less"
    with pytest.raises(ValueError, match=complaint):
        draw_shots(texts, ("x", "y", "z"), 3, seed=0)


def test_phrases_are_the_same_every_time_and_no_test_phrase_is_trained_on():
    first, second = make_phrases(), make_phrases()
    assert first.train.texts == second.train.texts
    assert not {*first.test.texts, *first.out_of_scope} & {*first.train.texts}
    assert len(first.classes) == 10
