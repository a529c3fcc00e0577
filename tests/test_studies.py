"""Studies: their verdicts on committed runs, what they change in the data, and a first look."""

import json
import math
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

import tricouple_lab.runs  # noqa: F401 (lets torchvision be imported beside another torch)
from tricouple_lab import cli, names
from tricouple_lab.config.compose import compose
from tricouple_lab.runs.sweep import Loaded
from tricouple_lab.tasks.base import task_of

RESULTS = Path(__file__).parents[1] / "results" / "studies"
STUDIES = {"noise": "noise", "tail": "tail", "length": "length", "three-way": "three_way"}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    """The losses of the studies can be chosen in these tests only."""
    before = {task: tables["loss"] for task, tables in names.TABLES.items()}
    methods = import_module("studies.methods")
    methods.register()
    yield
    for task, table in before.items():
        names.TABLES[task]["loss"] = {key: table[key] for key in table if key in BUILT_IN}
    for name in names.LOSSES.keys() - BUILT_IN:
        del names.LOSSES[name]


BUILT_IN = {*names.LOSSES} - {"rince", "bcl", "logit_adjusted", "hinge"}


def module(name):
    return import_module(f"studies.{STUDIES.get(name, name)}")


def committed(name):
    return import_module("studies.study").read(module(name), "cpu", RESULTS / name)


@pytest.fixture(scope="module")
def runs():
    return {name: committed(name) for name in STUDIES}


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_the_verdict_on_committed_runs_is_the_committed_one(name, runs):
    text = (RESULTS / name / "verdict.md").read_text()
    verdict = module(name).judge(runs[name])
    assert verdict.word == re.match(r"# .*: (\w+)\n", text)[1]
    numbers = verdict.numbers
    if name in ("noise", "tail"):
        pattern = (
            r"\(([-+.\d]+) \[([-+.\d]+), ([-+.\d]+)\] in slope"
            if name == "noise"
            else (r"InfoNCE is ([-+.\d]+) \[([-+.\d]+), ([-+.\d]+)\] points")
        )
        stated = np.array(re.findall(pattern, text), dtype=float)
        assert len(stated) == {"noise": 5, "tail": 4}[name]
        found = numbers[["mean", "low", "high"]].to_numpy()[: len(stated)]
        np.testing.assert_allclose(found, stated, atol=0.0051)
        p = [float(value) for value in re.findall(r"corrected p = ([-.e\d]+\d)", text)]
        np.testing.assert_allclose(numbers["p"][: len(p)], p, rtol=0.06)
    elif name == "length":
        stated = re.search(r"for (\d+) of 12 .* up to (\S+) points(?:.|\n)* in (\d) of 8", text)
        np.testing.assert_allclose(
            numbers["mean"][:3], [float(x) for x in stated.groups()], atol=0.051
        )
    else:
        assert "at most 0.31 %" in text
        assert 100 * numbers.iloc[:, 1].max() == pytest.approx(0.31, abs=0.005)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_with_missing_runs_is_open(name, runs):
    found = runs[name]
    if name == "tail":  # two of four sets decide nothing
        found = found[found["condition"].str.contains("imbalance 10$|imbalance 1$")]
    elif name == "length":
        found = found[found["loss.sharpness"] != 30]
    else:
        found = found[found["seed"] != 2]
    assert module(name).judge(found).word == "open"


def test_a_verdict_prints_its_numbers_and_its_word(capsys):
    assert cli.main(["study", "tail", "--verdict", "--out", str(RESULTS / "tail")]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("verdict: supported\n")
    assert "| 2.63 | 2.257 | 3.003 |" in shown
    assert (RESULTS / "tail" / "verdict.md").read_text().startswith("# The long tail: supported")


# --- a first look ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_a_first_look_has_runs_and_no_verdict(name, tmp_path, capsys):
    assert cli.main(["study", name, "--scale", "smoke", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(f"scale=smoke: no verdict; runs: {tmp_path}\n")
    assert not (tmp_path / "verdict.md").exists()
    found = import_module("studies.study").read(module(name), "smoke", tmp_path)
    final = found[found["stage"] == "final"]
    expected = {
        "noise": {"infonce", "rince"},
        "tail": {"infonce", "logit_adjusted"},
        "length": {"infonce", "iot", "pushpull"},
        "three-way": {"neg_mmiot", "log_sigmoid", "hinge"},
    }
    assert {*final["method"]} == expected[name]
    if name == "noise":  # other labels are other data; test labels are right
        lines = [
            json.loads(line)
            for file in tmp_path.glob("*/runs.jsonl")
            for line in file.read_text().splitlines()
        ]
        assert len({line["data"]["digest"] for line in lines}) == 4  # two levels, two seeds
        score = final.groupby("condition")["after/embedding/nearest_mean"].mean()
        assert score.iloc[0] > max(0.2, score.iloc[1])


@pytest.mark.parametrize("name", ["noise", "tail", "length"])
def test_the_words_of_each_plan_are_settings(name):
    plans = module(name).plans("cpu")
    assert len(plans) == {"noise": 8, "tail": 4, "length": 4}[name]
    for condition, plan in plans.items():
        assert condition.startswith("data ")
        losses = [compose(plan.task.name, words).loss["name"] for words in plan.methods()]
        assert {"infonce", "iot", "pushpull"} <= {*losses}
        assert plan.refuted


def test_commands_name_the_studies(capsys):
    assert cli.main(["study", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}: {module(name).TITLE}" in shown for name in STUDIES)
    assert cli.main(["study", "nois"]) == 2
    assert "nearest: noise" in capsys.readouterr().err


# --- what is changed in the data ------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_noise_changes_a_share_of_the_labels_within_their_group(share):
    labels, groups = np.arange(600) % 6, np.array([0, 0, 0, 1, 1, 2])
    noisy = module("noise").with_noise(labels, groups, share, seed=1)
    single = (groups[labels] == 2).mean()  # a group of one class has no other to take
    assert (noisy != labels).mean() == pytest.approx(share * (1 - single), abs=0.03)
    np.testing.assert_array_equal(groups[noisy], groups[labels])


def test_the_superclasses_are_twenty_of_five_classes():
    assert np.bincount(module("noise").groups_of("cifar100", ())).tolist() == [5] * 20


def test_a_tail_falls_exponentially_and_its_head_depends_on_the_seed():
    labels = np.arange(5).repeat(81)
    kept = [module("tail").long_tail(labels, 81, seed) for seed in (0, 1)]
    sizes = [np.bincount(labels[one]) for one in kept]
    assert sorted(sizes[0]) == sorted(sizes[1]) == [2, 3, 9, 27, 81]
    assert sizes[0].tolist() != sizes[1].tolist()


def test_data_of_a_sweep_are_those_of_the_seed():
    first, second, again = (
        Loaded(task_of("mixture")).load(compose("mixture", ["scale=smoke", f"seed={seed}"])).digest
        for seed in (0, 1, 0)
    )
    assert first == again != second


# --- baselines ------------------------------------------------------------------------------------


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    return embeddings, torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])


def test_rince_is_its_formula(batch):
    c, q, weight = 3.0, 0.5, 0.025
    found = module("methods").RINCE(c, q, weight)(*batch)
    assert float(found) == pytest.approx(rince(*batch, c, q, weight) * math.exp(-q * c))


def rince(embeddings, labels, c, q, weight):
    terms = []
    for i, j in np.argwhere((labels[:, None] == labels).numpy() & ~np.eye(9, dtype=bool)):
        score = [float(c * cosine_similarity(embeddings[i], e, dim=0)) for e in embeddings]
        others = sum(
            math.exp(s) for s, label in zip(score, labels, strict=True) if label != labels[i]
        )
        own = math.exp(score[j])
        terms.append(-(own**q) / q + (weight * (own + others)) ** q / q)
    return sum(terms) / len(terms)


def test_class_averaged_infonce_is_its_formula(batch):
    embeddings, labels = batch
    terms = []
    for i in range(9):
        score = [float(3 * cosine_similarity(embeddings[i], e, dim=0)) for e in embeddings]
        members = {k: [j for j in range(9) if j != i and labels[j] == k] for k in range(3)}
        total = sum(sum(math.exp(score[j]) for j in own) / len(own) for own in members.values())
        own = members[int(labels[i])]
        terms.append(math.log(total) - sum(score[j] for j in own) / len(own))
    found = module("methods").ClassAveraged(3.0)(*batch)
    assert float(found) == pytest.approx(sum(terms) / 9)


def test_the_logit_adjusted_softmax_adds_the_logarithm_of_the_shares(batch):
    embeddings, labels = batch[0].float(), batch[1]
    loss = module("methods").LogitAdjusted(5.0)
    loss.attach(labels.bincount(), 4)
    cosines = torch.stack([cosine_similarity(embeddings, p[None]) for p in loss.prototypes], 1)
    logits = 5 * cosines + torch.tensor([3 / 9, 2 / 9, 4 / 9]).log()
    torch.testing.assert_close(loss(embeddings, labels), cross_entropy(logits, labels))


@pytest.mark.parametrize("name", ["RINCE", "ClassAveraged"])
def test_a_batch_of_one_class_has_loss_zero(name):
    embeddings = torch.randn(4, 3, requires_grad=True)
    loss = getattr(module("methods"), name)(10.0)(embeddings, torch.zeros(4, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert not embeddings.grad.any()
