"""The benchmark compares like with like, measures what it says, and survives missing peers."""

import gc
import json
import math
import mmap
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import __main__ as command
from benchmarks import measure, table, worker
from benchmarks.cases import LOSS, batch, prepare

import tricouple as tc
from conftest import UNCONVERGED
from tricouple_lab import cli

ROOT = Path(__file__).parents[1]
OURS = "NegMMIOT"
CASES = {case.name: replace(case, n=24, d=16, seed=58) for case, *_ in command.CONTENDERS}
STORED = sorted(path.stem for path in (ROOT / "results/bench").glob("*.json"))
FACTS = {"cores": 2, "cpu": "a cpu", "load": 0.0, "date": "2030-01-02", "commit": "abc"}
FACTS |= {"versions": {"torch": "2"}}


def call(name):
    try:
        return prepare(CASES[name])()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


def row(name, size, seconds=None, task=LOSS, **more):
    return {"contender": name, "task": task, "size": size, "seconds": seconds, **more}


def run_of(*rows):
    return {"problem": {}, "measurements": list(rows), "provenance": FACTS}


PAIRS = {
    "dense Neg-MMIOT (PyTorch)": OURS,
    "MMSinkhorn unrolled (OTT-JAX)": OURS,
    "MMSinkhorn Danskin (OTT-JAX)": "NegMMIOT envelope",
    "SupConLoss (PML)": "InfoNCE (plain PyTorch)",
    "MultiModalIOT, dense (PyTorch)": "MultiModalIOT",
}


@pytest.mark.parametrize("peer", PAIRS)
def test_peer_has_the_value_and_gradient_of_our_loss(peer):
    _, labels = batch(CASES[peer])
    assert labels.bincount()[labels].min() > 1, "SupConLoss counts anchors without a positive"
    value, gradient, *_ = map(np.asarray, call(PAIRS[peer]))
    peer_value, peer_gradient, *_ = map(np.asarray, call(peer))
    assert "Danskin" in peer or peer_value == pytest.approx(value, rel=1e-4)
    assert np.abs(peer_gradient - gradient).max() < 1e-3 * np.abs(gradient).max()


def test_plans_of_peers_are_ours():
    ours, theirs = call("triplet_sinkhorn").potentials, call("MMSinkhorn plan only (OTT-JAX)")
    for mine, other in zip(ours, theirs, strict=True):  # up to constants
        assert np.ptp(mine.numpy() - np.asarray(other)) < 1e-3
    for name in ("sinkhorn (POT)", "sinkhorn_log (POT)"):  # columns first; the cost is symmetric
        torch.testing.assert_close(call(name).T, call("sinkhorn"), rtol=1e-3, atol=1e-7)


def test_all_contenders_have_one_sharpness():
    for words, c in (([], 10), (["--processes", "2"], 10), (["--sharpness", "100"], 100)):
        groups = command.chosen(command.parse(["--quick", *words]))
        cases = [case for group in groups for case in group]
        assert {case.c for case in cases} == {c}, words


@UNCONVERGED
def test_every_loss_of_ours_returns_a_finite_value_and_gradient():
    for name in (name for name, case in CASES.items() if hasattr(tc, case.loss)):
        value, gradient, *_ = call(name)
        assert value.isfinite(), name
        assert 0 < gradient.abs().max() < math.inf


def test_batches_repeat_are_shared_by_ranks_and_have_unbalanced_classes():
    case = replace(CASES[OURS], n=512)
    (x,), labels = batch(case)
    assert torch.equal(x, batch(case)[0][0])
    assert labels.bincount().max() > 3 * labels.bincount().min()
    plain = replace(case, loss="plain_info_nce", world=3)
    assert [len(prepare(plain, rank)()[1]) for rank in range(3)] == [170, 171, 171]


def test_turns_rotate_and_continue_while_time_lasts():
    calls = []
    turns = {name: lambda name=name: calls.append(name) or [1.0, 2.0] for name in "abc"}
    durations = measure.in_turns(turns, 2)
    assert "".join(calls) == "abc" + "bca"
    assert durations == {key: [1.0, 2.0, 1.0, 2.0] for key in "abc"}
    assert len(measure.in_turns({"a": lambda: [1.0]}, 1, 0.05)["a"]) > 2


def test_extra_memory_is_the_peak_of_the_call_not_what_it_returns():
    gc.collect()  # what earlier tests left must not be freed during the call

    def step():  # pages of its own: malloc may hold some that earlier tests freed
        with mmap.mmap(-1, 2**26) as pages:  # given back before the call ends
            for start in range(0, 2**26, mmap.PAGESIZE):
                pages[start] = 1

    found = worker.peak_memory_of(step)
    assert found["extra_bytes"] == pytest.approx(2**26, rel=0.05)
    assert found["peak_bytes"] > found["extra_bytes"]


def test_memory_is_measured_in_a_process_of_its_own():
    ballast = torch.ones(2**28)  # 1 GiB in this process must not be seen by the other
    case = replace(CASES["InfoNCE (plain PyTorch)"], n=1024)
    with closing(worker.Workers({"this": ROOT})) as workers:
        found = workers.ask("this", "memory", case)
    del ballast
    assert 2 < found["extra_bytes"] / (4 * 1024**2) < 20
    assert found["peak_bytes"] < 2**30


def test_missing_failing_and_too_large_contenders_are_rows(monkeypatch):
    cases = [replace(CASES[OURS], name="fails", options={"n_iters": -1}), CASES[OURS]]
    cases.append(replace(CASES["dense Neg-MMIOT (PyTorch)"], n=256))
    monkeypatch.setattr(worker, "available", lambda: 2**30)
    workers = worker.Workers({"this": ROOT})
    broken, ours, large = measure.measure(cases, workers, 1).values()
    assert ours["seconds"] > 0  # of the worker after the one that failed
    assert broken["note"].startswith("failed: ValueError: n_iters must be")
    assert large["note"] == "skipped: may need 5 GiB, 1 GiB are free"
    workers.close()
    args = command.parse(["--sizes", "256,512", "--only", "dense*"])
    assert [case.n for cases in command.chosen(args) for case in cases] == [256]


def test_step_ratios_are_those_of_best_steps_to_infonce():
    losses = ["neg_mmiot", "infonce", "NegMMIOT hinge"]
    small = {"batch_size": 8, "image_size": 8, "rounds": 2}
    found = measure.step_ratios(["resnet10_small", "clip_tiny"], losses, **small)
    assert list(found["loss"]) == losses * 2
    for _, own in found.groupby("backbone"):
        best = own.set_index("loss")["seconds"]
        assert list(own["ratio"]) == list(best / best["infonce"])


@pytest.mark.parametrize("backbone", ["clip_tiny", "resnet10_small"])
def test_a_step_trains_the_whole_encoder(backbone):
    model, encode, labels = measure.encoder(backbone, 8, 8)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = measure.training_step("PushPull", model, encode, labels)
    step()
    step()  # residual branches that begin at zero have no gradient in the first step
    changed = [not torch.equal(*both) for both in zip(before, model.parameters(), strict=True)]
    assert sum(changed) > 0.9 * len(changed)  # a bias before a normalisation has no gradient


def test_two_processes_share_one_batch(tmp_path):
    out = tmp_path / "processes.json"
    only = ["--only", OURS, "--only", "InfoNCE"]
    assert cli.main(["bench", "--quick", "--processes", "2", *only, "--out", str(out)]) == 0
    found = {line["contender"]: line for line in table.read(out)["measurements"]}
    assert set(found) == {OURS, "InfoNCE"}
    assert all(0 < line["seconds"] <= line["median_seconds"] for line in found.values())


def test_times_have_a_column_per_size_and_memory_at_the_largest():
    rows = [row(OURS, 256, 1e-3, extra_bytes=9.0), row(OURS, 1024, 2e-3, extra_bytes=4.0 * 1024**2)]
    (found,) = table.tables(run_of(*rows, row("IOT", 1024, 0.12345))).values()
    assert list(found.columns) == ["N =", 256, 1024, "extra memory"]
    ours = [OURS, "1", "2", "1 N² at 1024"]
    assert found.values.tolist() == [ours, ["IOT", "–", "123", "–"]]


@pytest.mark.parametrize("name", STORED)
def test_documents_include_the_tables_of_stored_runs(name, capsys):
    path = ROOT / f"results/bench/{name}.json"
    run = table.read(path)
    assert cli.main(["bench", "--read", str(path)]) == 0
    assert OURS in capsys.readouterr().out
    page = ROOT / f"docs/assets/bench-{name}.md"
    assert page.read_text() == table.markdown(run), f"bench --read {path} --markdown {page}"
    assert f"assets/bench-{name}.md" in (ROOT / "docs/benchmarks.md").read_text()
    if name == "core":
        readme = (ROOT / "README.md").read_text()
        rows = page.read_text().splitlines()
        shown = re.findall(r"^\| .*N².* \|$|^\| N = .*$", readme, re.M)
        assert len(shown) >= 5
        assert {*shown} <= {*rows}
        seconds = table.frame(run).set_index(["contender", "size"])["seconds"]
        for above, below in ((OURS, "InfoNCE"), ("SupConLoss (PML)", OURS)):
            *most, last = (seconds[above] / seconds[below]).map(table.number).dropna()
            assert f"{', '.join(most)} and {last} times as" in readme


def test_only_some_contenders_run_on_request_and_the_file_says_how(tmp_path, capsys):
    out = tmp_path / "new" / "bench.json"
    words = ["bench", "--quick", "--sizes", "16", "--only", "IOT", "--only", "*(POT)"]
    assert cli.main([*words, "--out", str(out), "--markdown", str(tmp_path / "a.md")]) == 0
    content = json.loads(out.read_text())
    names = [line["contender"] for line in content["measurements"]]
    assert names == ["IOT", "sinkhorn (POT)", "sinkhorn_log (POT)"]
    facts = content["provenance"]
    assert facts["versions"]["torch"] == torch.__version__
    assert {"date", "command", "commit", "cpu", "cores", "load", "torch_threads"} <= set(facts)
    assert "| IOT | " in (tmp_path / "a.md").read_text()
    assert cli.main(["bench", "--only", "nothing", "--out", str(tmp_path / "b")]) == 2
    assert "--only nothing: matches none of NegMMIOT" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_an_interrupted_run_keeps_its_rows(tmp_path, monkeypatch, capsys):
    def interrupted(groups, args):
        yield row(OURS, 16, 1e-3)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "rows_of", interrupted)
    out = tmp_path / "bench.json"
    assert cli.main(["bench", "--quick", "--out", str(out)]) == 130
    assert "has what was measured" in capsys.readouterr().err
    assert table.read(out)["measurements"] == [row(OURS, 16, 1e-3)]
