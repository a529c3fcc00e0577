"""Runs on texts: classes and pairs, frozen and trained, continued, evaluated, used, refused."""

import json
import re
import time

import numpy as np
import pytest
import torch

import tricouple as tc
from experiments.conftest import rows
from report.html_check import parse
from tricouple_lab import cli, names
from tricouple_lab.experiments.runs import run
from tricouple_lab.experiments.text import TEXT, load_texts
from tricouple_lab.files import load_tensors
from tricouple_lab.report.command import write_report

LOSSES = [key for key, loss in names.LOSSES.items() if loss.within and loss.target]


def train(config, console):
    return run.run_once(TEXT, config, console)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_on_classes(tiny, loss):
    config = tiny(f"loss={loss}")
    found = load_texts(config)
    options = {"learning_rate": 1e-3, "weight_decay": 0.0, "seed": 0, "identity": "me"}
    module = TEXT.method(config, found, run.initial_encoder(TEXT, config, found), options)
    batch = found.samples.__getitems__(range(80))
    first = module.batch_loss(batch, 0)
    first.backward()
    module.configure_optimizers().step()
    assert module.batch_loss(batch, 0) < first


def test_a_run_leaves_its_settings_curves_weights_evaluation_and_gallery(tiny, console):
    finished = train(tiny(), console)
    folder = finished.folder
    assert {path.name for path in folder.path.iterdir()} == {
        "config.yaml", "metrics.csv", "tensorboard", "encoder.pt", "evaluation.json",
        "gallery.npz", "study.json", "runs.jsonl",
    }  # fmt: skip
    assert [row["epoch"] for row in rows(folder.path)] == ["0", "1", "2", "3"]
    result = finished.evaluation["result"]
    for kind in ("penultimate", "embedding"):
        assert {"ncm", "knn", "linear", "auroc", "fpr95", "alpha"} <= set(result[kind])
    record = json.loads((folder.path / "runs.jsonl").read_text().splitlines()[-1])
    assert record["metrics"]["right"] == pytest.approx(result["embedding"]["ncm"], rel=1e-5)
    assert set(folder.read_trained(tiny()).weights) == {"head.weight", "head.bias"}
    other = train(tiny("data.validation_size=40", "evaluation.part=validation"), console)
    assert other.evaluation["result"]["n_test"] == 40


def test_a_smoke_run_learns_intents_in_seconds(tmp_path, capsys):
    place, started = tmp_path / "run", time.process_time()
    assert cli.main(["text", "scale=smoke", f"run={place}", "progress=false"]) == 0
    assert time.process_time() - started < 120
    result = json.loads((place / "evaluation.json").read_text())["result"]
    assert result["embedding"]["ncm"] > 0.95 > 0.9 > result["penultimate"]["ncm"]
    assert result["embedding"]["auroc"] > result["penultimate"]["auroc"] > 0.5
    shown = capsys.readouterr().out
    assert "after the head" in shown
    assert f"tricouple embed {place} FILE" in shown
    page = (place / "report.html").read_text()
    for title in ("Nearest texts", "Confused classes", "A map of the texts"):
        assert f"{title}</h2>" in page
    parse(page)


def test_a_killed_run_continues_to_the_same_numbers(words, tiny, console, tmp_path, killed):
    more = ["training.epochs=4", "model.finetune=true"]
    whole = train(tiny(*more, f"runs={tmp_path / 'whole'}"), console)
    folder = TEXT.folder(tiny(*more))
    killed(2, "text", *words, *more)
    assert not folder.evaluation.exists()
    assert len(load_tensors(folder.checkpoint)["callbacks"]["History"]["rows"]) - 1 == 2
    resumed = train(tiny(*more), console)
    assert "Continuing (80 texts, epochs: 4)" in console.file.getvalue()
    assert rows(resumed.folder.path) == rows(whole.folder.path)
    assert resumed.evaluation["result"] == whole.evaluation["result"]
    assert train(tiny(*more), console).skipped


def test_shots_are_the_seed_s_and_the_test_set_is_everybody_s(tiny):
    first, again, other = (load_texts(tiny(*more)) for more in ((), ("loss=infonce",), ("seed=1",)))
    assert first.data.train.texts == again.data.train.texts != other.data.train.texts
    assert first.data.train.labels.bincount().tolist() == [8] * 10
    assert first.data.test.texts == other.data.test.texts
    held = load_texts(tiny("data.validation_size=50")).data
    assert len(held.validation) == 50
    assert not set(held.validation.texts) & set(held.train.texts)


def test_pairs_are_retrieved_in_both_directions(tiny, console, faq):
    words = [
        "data=csv", f"data.path={faq}", "data.text_column=question", "data.pair_column=answer",
        "data.shots=null", "training.batch_size=16", "data.test_size=15",
    ]  # fmt: skip
    finished = train(tiny(*words), console)
    result = finished.evaluation["result"]
    assert set(result["embedding"]) == {
        *(f"{way}/at{k}" for way in ("there", "back") for k in (1, 5, 10)), "recall"
    }  # fmt: skip
    at1 = [result["embedding"][f"{way}/at1"] for way in ("there", "back")]
    assert result["embedding"]["recall"] == pytest.approx(sum(at1) / 2)
    data = load_texts(tiny(*words)).data
    assert not set(data.train.texts) & set(data.test.texts)  # no question is in both parts
    assert len(set(data.test.texts)) == 15
    assert finished.folder.path.name.startswith("text-faq-")
    with np.load(finished.folder.gallery) as gallery:
        assert set(gallery["answers"].flatten()) <= set(data.test.answers)
        assert gallery["right"].shape == (3, 4)
    page = write_report(finished.folder.path).read_text()
    assert "text → pair @1" in page
    assert "Confused classes" not in page
    encoder = tc.load_encoder(finished.folder.path)
    assert encoder.classes == ()
    with pytest.raises(ValueError, match="loss=vicreg compares texts of one set, and these are pa"):
        train(tiny(*words, "loss=vicreg"), console)
    with pytest.raises(ValueError, match=r"data\.shots counts texts of a class, and pairs have"):
        train(tiny(*words, "data.shots=2"), console)


@pytest.mark.parametrize("more", [[], ["model.finetune=true"], ["model.head_dim=12"]], ids=str)
def test_a_trained_encoder_is_loaded_and_embeds_texts(tiny, console, tmp_path, more, capsys):
    config = tiny("training.epochs=1", *more)
    folder = train(config, console).folder
    model, transform, classes = tc.load_encoder(folder.path)
    assert classes[:2] == ("buy", "clean")
    data = load_texts(config)
    encoder = run.initial_encoder(TEXT, config, data)
    folder.read_trained(config).restore(encoder, folder)
    wanted = data.parts["test"].embedded(encoder)["embedding"][0][:3]
    with torch.no_grad():
        found = model([transform(text) for text in data.data.test.texts[:3]])
    torch.testing.assert_close(found, wanted)
    file = tmp_path / "mine.txt"
    file.write_text("please buy a chair\n\nbuy a chair\nwash the lamp\n")
    out = tmp_path / "a.npz"
    command = ["embed", str(folder.path), str(file), "--out", str(out), "--neighbours", "1"]
    assert cli.main(command) == 0
    with np.load(out) as content:
        assert content["names"].tolist()[0] == "please buy a chair"
        assert content["neighbours"][0].tolist() == [1]
        assert content["penultimate"].shape == (3, 128)
    assert "wash the lamp" in out.with_suffix(".html").read_text()
    assert "3 texts: " in capsys.readouterr().out


def test_embed_says_what_a_run_embeds(tiny, console, tmp_path, refused):
    folder = train(tiny("training.epochs=1"), console).folder
    (tmp_path / "pics").mkdir()
    assert "pics holds no images" in refused("embed", str(folder.path), str(tmp_path / "pics"))
    table = tmp_path / "t.csv"
    table.write_text("a,b\n1,2\n")
    assert "has no column 'text'" in refused("embed", str(folder.path), str(table))
    (tmp_path / "empty.txt").write_text("\n")
    assert "holds no texts" in refused("embed", str(folder.path), str(tmp_path / "empty.txt"))


def test_a_sweep_s_page_compares_losses_at_equal_c(tiny, console, tmp_path):
    for loss in ("infonce", "neg_mmiot"):
        for c in (3, 30):
            train(tiny(f"loss={loss}", f"loss.sharpness={c}", "training.epochs=1"), console)
    for gallery in (tmp_path / "runs").glob("*/gallery.npz"):
        gallery.unlink()  # drawing them takes seconds
    page = write_report(tmp_path / "runs").read_text()
    assert "phrases, 8 texts a class, bag of words: nearest class mean at equal c" in page
    assert "at its own c" not in page  # nothing was chosen


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (["data.shots=1"], "data.shots must be at least 2, got 1"),
        (["data.shots=500"], "data.shots is 500, but 10 of 10 classes have fewer training texts"),
        (["data.train_size=50"], "data.shots and data.train_size both say"),
        (["training.batch_size=81"], "training.batch_size is 81, but there are only 80 training"),
        (["evaluation.part=validation"], "evaluation.part=validation needs data.validation_size"),
        (["data=csv"], "data=csv needs data.path"),
        (["data.path=a.csv"], "data.path=a.csv is for data=csv"),
        (["data=csv", "data.path=nowhere.csv"], "data.path=nowhere.csv: there is no such file"),
        (["model=own"], "model=own needs model.path"),
        (["data=banking77"], "intents/banking77/test.csv are missing: put the published files"),
        (["data=clinc150"], "data_full.json and "),
        (["data.validation_size=9999"], "data.validation_size is 9999, but 1000 texts of 10"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_computed(
    tiny, console, wrong, complaint, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(complaint)):
        train(tiny(*wrong), console)
    assert not TEXT.folder(tiny(*wrong)).path.exists()


def test_a_changed_table_is_not_the_same_data(tiny, console, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("text,label\n" + "".join(f"word{n} {c},{c}\n" for n in range(9) for c in "ab"))
    words = ["data=csv", f"data.path={path}", "data.shots=null", "training.batch_size=8",
             "training.epochs=1"]  # fmt: skip
    assert train(tiny(*words), console).evaluation["result"]["n_classes"] == 2
    assert train(tiny(*words), console).skipped
    path.write_text(path.read_text() + "more,a\n")
    with pytest.raises(ValueError, match="the data have changed since"):
        train(tiny(*words), console)


def test_a_published_table_is_known_by_its_files(tiny, tmp_path):
    def listed(data):
        return TEXT.listing(tiny(f"data={data}", f"data.root={tmp_path}"))

    assert listed("banking77") == listed("phrases") == {}
    for name in ("banking77/train.csv", "banking77/test.csv", "clinc150/domains.json",
                 "clinc150/data_full.json", "clinc150/data_imbalanced.json"):  # fmt: skip
        path = tmp_path / "intents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    assert {name: listed(name)[name]["files"] for name in ("banking77", "clinc150")} == {
        "banking77": 2,
        "clinc150": 2,
    }
    assert listed("clinc150") != listed("clinc150_imbalanced")
