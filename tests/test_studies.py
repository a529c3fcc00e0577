"""Studies: rules of the stored runs, verdicts, what is refused, formulas of the controls."""

import json
import re
import subprocess
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.cross_decomposition import CCA
from studies import bags, clip, features, linear, study, tail, verdict
from torch.nn.functional import cosine_similarity

import tricouple as tc
from tricouple_lab import cli

ROOT = Path(__file__).parents[1]
PLANS = sorted(file.parent.name for file in (ROOT / "results").glob("*/plan.json"))
STORED = sorted(file.parent.name for file in (ROOT / "results").glob("*/runs.jsonl"))


def git(*words, cwd=ROOT):
    return subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True, check=True)


# --- what is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORED)
def test_every_stored_run_names_a_clean_commit_of_the_history(name):
    lines = study.read_lines(ROOT / "results" / name / "runs.jsonl")
    assert lines
    for commit in {line.get("commit") or line["provenance"]["commit"] for line in lines}:
        assert re.fullmatch(r"[0-9a-f]{40}", commit)
        git("merge-base", "--is-ancestor", commit, "HEAD")


@pytest.mark.parametrize("name", sorted({*PLANS} & {*STORED}))
def test_every_run_of_a_study_is_of_its_plan_which_was_committed_before(name):
    plan, lines = study.read_plan(name), study.read_lines(ROOT / "results" / name / "runs.jsonl")
    final = [line for line in lines if line["part"] == "final"]
    assert {line["plan"] for line in lines} == {plan.digest}
    assert {line["part"] for line in lines} <= {"pilot", "final"}
    assert {line["config"]["cell"] for line in final} <= {*plan["cells"]}
    assert {line["config"]["seed"] for line in final} - {None} <= {*plan["seeds"]}
    assert {metric for line in final for metric in line["metrics"]} <= plan.metrics
    for commit in {line["commit"] for line in lines} if not plan.get("converted") else ():
        text = (ROOT / "results" / name / "plan.json").read_text()
        assert git("show", f"{commit}:results/{name}/plan.json").stdout == text
    keys = [json.dumps([line["part"], line["config"]]) for line in lines]
    assert len(keys) == len({*keys})


@pytest.mark.parametrize("name", PLANS)
def test_the_stored_tables_are_those_of_plan_and_runs(name, capsys):
    assert cli.main(["study", name, "--verdict"]) == 0
    shown = capsys.readouterr().out
    assert "**" not in shown
    stored = ROOT / "results" / name / "verdict.md"
    assert stored.exists() == (name in STORED)
    if stored.exists():
        assert stored.read_text() == shown


def test_results_are_small():
    files = [file for file in (ROOT / "results").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 3_000_000


# --- verdicts -------------------------------------------------------------------------------------

A, B = [5.0, 6.1, 5.4, 5.9, 6.6, 5.2], [3.1, 3.9, 3.6, 4.0, 4.1, 3.5]


def judged(rule, a=A, b=B, seeds=6, seedless=False, **more):
    """The verdict of one hypothesis on rows a and b with these values by seed."""
    own = {"name": "H", "metric": "score", "cells": ["x"], "margin": 1.0, "allowed": 0}
    own |= {"rule": rule, "compare": [["a", "b"]], **more}
    lines = [
        {"part": "final", "config": {"cell": "x", "row": row, "seed": s}, "metrics": {"score": v}}
        for row, values in (("a", a), ("b", b))
        for s, v in enumerate(values)
    ]
    if seedless:
        lines[-1]["config"]["seed"] = None
    plan = study.Plan("test", {"hypotheses": [own], "seeds": [*range(seeds)]}, "0")
    (found,) = verdict.judge(plan, lines)
    return found.word, *found.differences


@pytest.mark.parametrize(("margin", "word"), [(1.0, "stands"), (1.9, "refuted")])
def test_above_looks_at_the_lower_end_of_the_paired_interval(margin, word):
    test, found = stats.ttest_rel(A, B), judged("above", margin=margin)
    assert found[0] == word
    assert found[1].low == pytest.approx(test.confidence_interval(0.95).low)
    assert found[1].p == pytest.approx(test.pvalue)


def test_intervals_are_wider_for_several_comparisons_and_p_is_corrected():
    test = stats.ttest_rel(A, B)
    word, first, _ = judged("above", compare=[["a", "b"], ["b", "a"]])
    assert word == "refuted"
    assert first.low == pytest.approx(test.confidence_interval(0.975).low)
    assert first.p == pytest.approx(2 * test.pvalue)


@pytest.mark.parametrize(("margin", "word"), [(1.0, "refuted"), (3.0, "stands")])
def test_alike_needs_a_difference_that_is_large_and_significant(margin, word):
    assert judged("alike", margin=margin)[0] == word
    noisy = [b + gap for b, gap in zip(B, [9, -6, 8, -7, 9, -5], strict=True)]
    assert judged("alike", noisy, margin=margin)[0] == "stands"


@pytest.mark.parametrize(("margin", "word"), [(6.6, "stands"), (6.5, "refuted")])
def test_at_most_looks_at_the_largest_value(margin, word):
    assert judged("at most", margin=margin)[0] == word


def test_a_row_without_seeds_is_the_same_for_all():
    word, found = judged("above", A, B[:1], seedless=True)
    assert (word, found.n, found.mean) == ("stands", 6, pytest.approx(np.mean(A) - B[0]))


def test_missing_runs_leave_a_hypothesis_open_and_few_seeds_give_no_p():
    for lines in ((A, B[:5]), (A, B[:1]), ([], [])):
        assert judged("above", *lines)[0] == "open"
    word, found = judged("above", A[:4], B[:4], seeds=4)
    assert word == "too few seeds for a test"
    assert np.isnan(found.p)
    assert found.low < found.high


# --- what is refused, and what continues ----------------------------------------------------------


SMALL = '{"seeds": [%s], "show": {"score": ""}, "hypotheses": [], "cells": ["x"], "rows": ["a"]}'


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A repository with a plan that is not committed yet."""
    (tmp_path / "results/small").mkdir(parents=True)
    (tmp_path / "results/small/plan.json").write_text(SMALL % "0")
    (tmp_path / "source.py").write_text("")
    git("init", "-q", cwd=tmp_path)
    git("add", "source.py", cwd=tmp_path)
    commit(tmp_path)
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.setattr(study, "RESULTS", tmp_path / "results")
    return tmp_path


def commit(folder):
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    git(*who, "commit", "-q", "-m", "test", cwd=folder)


def run_small(clone):
    program = SimpleNamespace(
        prepare=lambda runs, name, cell: lambda config, part: {"score": 1.23456, "x": 2},
        stages=lambda runs, row, cell: [study.Stage({})],
    )
    study.run(program, study.read_plan("small"), clone / "results/small", smoke=False)
    return study.read_lines(clone / "results/small/runs.jsonl")


def refused(clone, message):
    with pytest.raises(study.UserError, match=message):
        run_small(clone)


def test_a_plan_is_committed_before_its_first_run_and_the_tree_is_clean(clone):
    refused(clone, r"results/small/plan\.json: is not committed")
    git("add", ".", cwd=clone)
    commit(clone)
    (clone / "source.py").write_text("changed = True\n")
    refused(clone, r"uncommitted changes \(M source\.py\)")
    git("checkout", "-q", "source.py", cwd=clone)
    (clone / "results/small/plan.json").write_text(SMALL % "0, 1")
    refused(clone, r"uncommitted changes \(M results/small/plan\.json\)")
    git("checkout", "-q", ".", cwd=clone)
    assert not (clone / "results/small/runs.jsonl").exists()
    (line,) = run_small(clone)
    assert line["commit"] == git("rev-parse", "HEAD", cwd=clone).stdout.strip()
    assert line["metrics"] == {"score": 1.2346}
    assert run_small(clone) == [line]
    (clone / "results/small/plan.json").write_text(SMALL % "0, 1")
    git("add", "results/small/plan.json", cwd=clone)
    commit(clone)
    refused(clone, "a changed plan is a new folder")


def test_a_killed_study_continues(tmp_path, capsys):
    words = ["study", "tail", "--scale", "smoke", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    whole = study.read_lines(tmp_path / "runs.jsonl")
    text = (tmp_path / "runs.jsonl").read_text()
    (tmp_path / "runs.jsonl").write_text(text[: int(0.6 * len(text))])  # within a line
    capsys.readouterr()
    assert cli.main(words) == 0
    again = study.read_lines(tmp_path / "runs.jsonl")
    assert [line["metrics"] for line in again] == [line["metrics"] for line in whole]
    assert 0 < capsys.readouterr().out.count("\n") - 1 < len(whole)  # a line per new run


FIRST_LOOKS = ["bags", "bags-trained", "clip", "images", "modalities", "synthetic-sharpness"]
FIRST_LOOKS += ["wrong-labels"]


@pytest.mark.parametrize("name", FIRST_LOOKS)
def test_a_first_look_has_all_rows_and_no_verdict(name, tmp_path, capsys):
    assert cli.main(["study", name, "--scale", "smoke", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(f"scale=smoke: no verdict; runs: {tmp_path}\n")
    lines = study.read_lines(tmp_path / "runs.jsonl")
    final = [line for line in lines if line["part"] == "final"]
    plan = study.read_plan(name).smoke()
    rows = {row for _, _, rows in study.cells_of(plan) for row in rows}
    assert {line["config"]["row"] for line in final} == rows
    assert all(np.isfinite([*line["metrics"].values()]).all() for line in lines)
    assert {line["commit"] for line in lines} == {"smoke"}


def test_missing_data_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for load, name in ((features.flickr8k, "flickr8k"), (features.cifar100, "cifar100")):
        with pytest.raises(study.UserError, match=f"data={name}.*{tmp_path}"):
            load()


def test_commands_name_the_studies(capsys):
    assert cli.main(["study", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}: " in shown for name in PLANS)
    assert cli.main(["study", "bagz"]) == 2
    assert "nearest: bags" in capsys.readouterr().err
    assert cli.main(["study", "length"]) == 2
    assert "stored runs and no program" in capsys.readouterr().err


# --- formulas of the controls ---------------------------------------------------------------------


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("row", "orphans"), [("plan", 0.0), ("partial plan, 0.3", 0.3)])
def test_plans_of_bags_are_those_of_the_library(row, orphans):
    x, y = drawn(5, 4, 8), drawn(5, 4, 8, seed=1)
    s = linear.cosine(x, y)
    found = bags.posterior(row, s, 3.0, torch.eye(4, dtype=torch.bool).expand(5, 4, 4))
    where = torch.arange(5).repeat_interleave(4)
    given = tc.match_bags(x.flatten(0, 1), y.flatten(0, 1), where, 3.0)
    if orphans:  # a dummy of mass orphans · B instead of 1 − orphans matched: rows sum to less
        assert ((found.sum(2) < 1) & (found.sum(2) > 1 - orphans - 0.3)).all()
        assert found.sum() == pytest.approx(5 * 4 - 5 * 4 * orphans, rel=0.02)
    else:
        torch.testing.assert_close(torch.block_diag(*found), given, atol=1e-4, rtol=0)


def test_posteriors_are_distributions_and_the_matching_is_the_best():
    s, true = linear.cosine(drawn(6, 5, 3), drawn(6, 5, 3, seed=1)), torch.zeros(6, 5, 5)
    for row in ("row softmax", "dual softmax"):
        torch.testing.assert_close(bags.posterior(row, s, 4.0, true).sum(2), torch.ones(6, 5))
    best = max(float(s[0, range(5), order].sum()) for order in permutations(range(5)))
    assert float((bags.matching(s)[0] * s[0]).sum()) == pytest.approx(best)


@pytest.mark.parametrize("orphans", [0.0, 0.4])
def test_bags_hold_each_pair_once_and_orphans_have_no_image(orphans):
    cell = {"known": 20, "bag": 5, "orphans": orphans}
    classes = None if orphans else torch.arange(10).repeat(12)
    pairs = bags.Pairs(drawn(120, 3), drawn(120, 3), classes, None)
    found = bags.draw_bags(pairs, cell, 3)
    images, texts = ({*part.flatten().tolist()} for part in (found.images, found.texts))
    assert not images & {*found.known.tolist()}
    assert len(images & texts) == found.true().sum() == round((1 - orphans) * len(images))
    if classes is not None:
        assert all(len({*classes[bag].tolist()}) == 5 for bag in found.images)


def test_the_closed_form_is_cca():
    x, y = drawn(300, 6), drawn(300, 4, seed=1)
    y[:, :3] += x[:, :3]
    wx, wy = linear.whitening(x, 0.0)(x), linear.whitening(y, 0.0)(y)
    left, right = linear.cca(wx.T @ wy, 2, 0.0)
    theirs = CCA(n_components=2, max_iter=5000, tol=1e-12).fit(x.numpy(), y.numpy())
    a, b = theirs.transform(x.numpy(), y.numpy())
    ours = [np.corrcoef((wx @ left)[:, k], (wy @ right)[:, k])[0, 1] for k in range(2)]
    wanted = [np.corrcoef(a[:, k], b[:, k])[0, 1] for k in range(2)]
    assert sorted(ours) == pytest.approx(sorted(wanted), abs=1e-4)


def test_recall_is_counted_query_by_query():
    s = drawn(7, 14)  # two texts of each image
    found = linear.recall(s, s)
    for k in (1, 5):
        images = [{*s[i].topk(k).indices.tolist()} & {2 * i, 2 * i + 1} != set() for i in range(7)]
        texts = [j // 2 in s[:, j].topk(k).indices.tolist() for j in range(14)]
        assert found[f"i2t@{k}"] == pytest.approx(100 * np.mean(images))
        assert found[f"t2i@{k}"] == pytest.approx(100 * np.mean(texts))


def test_mil_nce_has_the_gradient_of_info_nce_on_the_row_softmax():
    x, y, c = drawn(6, 5).requires_grad_(), drawn(6, 5, seed=1), 3.0
    true = torch.eye(3, dtype=torch.bool).expand(2, 3, 3)
    scores = c * linear.cosine(x, y)
    inside = torch.block_diag(*torch.ones(2, 3, 3)).bool()
    wanted = (scores.logsumexp(1) - scores.masked_fill(~inside, -torch.inf).logsumexp(1)).mean()
    there, _ = bags.targets("MIL-NCE", x.detach(), y, true, c)
    found = tc.InfoNCE(sharpness=c)(x, ref_emb=y, pairs=there)
    gradients = (torch.autograd.grad(loss, x)[0] for loss in (found, wanted))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("loss", clip.LOSSES)
def test_heads_learn_from_every_loss_of_pairs(loss):
    splits, _ = features.generated_pairs()
    data, weight = clip.canonical(splits, 0.1, 0.1, 8, 0.5)
    row, settings = f"{loss}, random start, learnable c", {"c": 5.0, "learning_rate": 0.03}
    config = {"row": row, **settings, "seed": 0}
    heads = (clip.train(data["train"], weight, config, steps)[:2] for steps in (0, 60))
    before, after = (clip.measured(clip.embed(data, *pair), "test", {}) for pair in heads)
    assert after["recall@1"] > before["recall@1"] + 10


def test_rince_and_bcl_are_their_formulas():
    z, centres, c = drawn(6, 4), drawn(3, 4, seed=1), 3.0
    labels = np.array([0, 0, 0, 1, 1, 2, 0, 1, 2])  # of the samples and of the centres
    every, y = torch.cat([z, centres]), torch.from_numpy(labels[:6])
    e = np.exp([[c * float(cosine_similarity(a, b, dim=0)) for b in every] for a in z])
    same = (labels[:6, None] == labels) & ~np.eye(6, 9, dtype=bool)
    rince, bcl = [], []
    for i in range(6):
        negatives = e[i, :6][labels[:6] != labels[i]].sum()
        rince += [2 * (0.025 * (x + negatives)) ** 0.5 - 2 * x**0.5 for x in e[i, :6][same[i, :6]]]
        others = (e[i, labels == k].mean() for k in range(3) if k != labels[i])
        total = e[i, same[i]].mean() + sum(others)
        bcl.append(np.log(total) - np.log(e[i, same[i]]).mean())
    found = float(tail.rince(z, y, c)) * np.exp(0.5 * c)
    assert found == pytest.approx(np.mean(rince), rel=1e-5)
    found = float(tail.bcl(z, y, centres, torch.arange(3), c))
    assert found == pytest.approx(np.mean(bcl), rel=1e-5)


def test_wrong_labels_are_a_share_and_of_near_classes():
    data, _ = features.generated_classes()
    wrong = tail.mislabelled(data.x, data.y, 0.6, 2, 0)
    assert (wrong != data.y).double().mean() == pytest.approx(0.6, abs=0.1)
    assert all(len(wrong[(data.y == k) & (wrong != k)].unique()) == 2 for k in range(5))


def test_logit_adjusted_regression_and_ridge_solve_their_problems_on_a_tail():
    data, _ = features.generated_classes()
    other, kept = (tail.long_tail(data.y, 8, seed) for seed in (1, 0))
    part = data._replace(x=data.x[kept], y=data.y[kept])
    assert sorted(part.y.bincount().tolist()) == [5, 8, 14, 24, 40]
    assert part.y.bincount().tolist() != data.y[other].bincount().tolist()
    for solve in (tail.ridge, tail.logit_adjusted):
        found = tail.balanced(solve(part, 0.01), part.test_y, part.y.bincount())
        assert found["balanced"] > 60
    truth, counts = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([60, 30, 10])
    found = tail.balanced(np.array([0, 1, 1, 1, 0]), truth, counts)
    assert found == {"balanced": 50.0, "many": 50.0, "medium": 100.0, "few": 0.0}
