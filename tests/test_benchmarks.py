"""The benchmark compares like with like, measures what it says, and survives missing peers."""

import gc
import json
import math
import mmap
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import contenders, measure, memory, processes, table
from benchmarks.contenders import BY_NAME, LOSS, OURS
from benchmarks.problem import Problem, make_batch

from conftest import UNCONVERGED
from tricouple_lab import cli
from tricouple_lab.names import UserError

ROOT = Path(__file__).parents[1]
PROBLEM = Problem(dim=16, classes=4)
STORED = sorted(path.stem for path in (ROOT / "results/bench").glob("*.json"))
FACTS = {"cores": 2, "cpu": "a cpu", "load": 0.0, "date": "2030-01-02", "commit": "abc"}
FACTS |= {"versions": {"torch": "2"}}


def call(name, size=24, problem=PROBLEM):
    if BY_NAME[name].obstacle(size, problem):
        pytest.skip(f"{name} is not installed")
    return BY_NAME[name].prepare(make_batch(size, problem), problem)()


def row(name, size, seconds=None, task=LOSS, **more):
    return {"contender": name, "task": task, "size": size, "seconds": seconds, **more}


def run_of(*rows):
    return {"problem": {}, "measurements": list(rows), "provenance": FACTS}


PAIRS = {
    "dense Neg-MMIOT (PyTorch)": OURS,
    "MMSinkhorn unrolled (OTT-JAX)": OURS,
    "MMSinkhorn Danskin (OTT-JAX)": "NegMMIOT envelope",
    "SupConLoss (PML)": "InfoNCE (plain PyTorch)",
}


@pytest.mark.parametrize("peer", PAIRS)
def test_peer_has_the_value_and_gradient_of_our_loss(peer):
    problem = replace(PROBLEM, seed=3)
    labels = make_batch(24, problem).labels
    assert labels.bincount()[labels].min() > 1, "SupConLoss counts anchors without a positive"
    value, gradient = map(np.asarray, call(PAIRS[peer], problem=problem))
    peer_value, peer_gradient = map(np.asarray, call(peer, problem=problem))
    assert "Danskin" in peer or peer_value == pytest.approx(value, rel=1e-4)
    assert np.abs(peer_gradient - gradient).max() < 1e-3 * np.abs(gradient).max()


def test_plans_of_peers_are_ours():
    ours, theirs = call("triplet_sinkhorn").potentials, call("MMSinkhorn plan only (OTT-JAX)")
    for mine, other in zip(ours, theirs, strict=True):  # up to constants
        assert np.ptp(mine.numpy() - np.asarray(other)) < 1e-3
    for name in ("sinkhorn (POT)", "sinkhorn_log (POT)"):  # columns first; the cost is symmetric
        torch.testing.assert_close(call(name).T, call("sinkhorn"), rtol=1e-3, atol=1e-7)


@UNCONVERGED
def test_every_loss_of_ours_returns_a_finite_value_and_gradient():
    for contender in BY_NAME.values():
        if contender.task == LOSS and not contender.module:
            value, gradient = call(contender.name)
            assert value.isfinite(), contender.name
            assert 0 < gradient.abs().max() < math.inf


def test_batches_repeat_are_shared_by_ranks_and_have_unbalanced_classes():
    batch, again = make_batch(512, Problem()), make_batch(512, Problem())
    assert torch.equal(batch.embeddings, again.embeddings)
    assert batch.labels.bincount().max() > 3 * batch.labels.bincount().min()
    parts = [processes.share(batch, Problem(), rank, 3) for rank in range(3)]
    assert torch.equal(torch.cat([part[2] for part in parts]), batch.labels)


def test_turns_rotate_and_their_first_call_counts_only_if_it_fills_them():
    calls = []
    steps = {name: lambda name=name: calls.append(name) for name in "abc"}
    effort = measure.Effort(rounds=2, seconds_per_round=0.0)
    durations = measure.time_together(steps, effort)
    assert "".join(calls) == "abc" + "bca"
    assert {name: len(values) for name, values in durations.items()} == dict.fromkeys("abc", 2)
    clock = iter([0.01, *[0.001] * 5])  # a first call is slow after another library's turn
    effort = measure.Effort(rounds=1, seconds_per_round=0.05)
    found = measure.time_together({"a": gc.isenabled}, effort, clock=lambda step: next(clock))
    assert found == {"a": [0.001] * 5}


def test_extra_memory_is_the_peak_of_the_call_not_what_it_returns():
    gc.collect()  # what earlier tests left must not be freed during the call

    def step():  # pages of its own: malloc may hold some that earlier tests freed
        with mmap.mmap(-1, 2**26) as pages:  # given back before the call ends
            for start in range(0, 2**26, mmap.PAGESIZE):
                pages[start] = 1

    found = memory.peak_memory_of(step)
    assert found["extra_bytes"] == pytest.approx(2**26, rel=0.05)
    assert found["peak_bytes"] > found["extra_bytes"]


def test_memory_is_measured_in_a_process_of_its_own():
    ballast = torch.ones(2**28)  # 1 GiB in this process must not be seen by the other
    found = measure.measure_memory("InfoNCE (plain PyTorch)", 1024, Problem())
    del ballast
    assert 2 < found["extra_bytes"] / (4 * 1024**2) < 20
    assert found["peak_bytes"] < 2**30


def failing(*arguments):
    raise RuntimeError("out of everything")


def test_missing_failing_and_too_large_contenders_are_rows(monkeypatch):
    broken = contenders.Contender("fails", LOSS, failing)
    absent = replace(broken, name="absent", module="no_such_library")
    dense = BY_NAME["dense Neg-MMIOT (PyTorch)"]
    monkeypatch.setattr(measure, "CONTENDERS", (BY_NAME[OURS], broken, absent, dense))
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**30)
    effort = replace(measure.QUICK, sizes=(16, 256), largest_cubic=256)
    ours, other, missing, small, *_, large = measure.measure(effort, PROBLEM)
    assert ours["seconds"] > 0 < small["seconds"]
    assert (other["note"], missing["note"]) == ("failed: out of everything", "not installed")
    assert large["note"] == "skipped: may need 5 GiB, 1 GiB are free"
    again = replace(effort, sizes=(512,), only=("dense*",))
    assert not list(measure.measure(again, PROBLEM))  # above --largest-cubic


def test_step_ratios_are_those_of_best_steps_to_infonce():
    losses = ["neg_mmiot", "infonce", "NegMMIOT hinge"]
    small = {"batch_size": 8, "image_size": 8, "rounds": 2, "setting": "ucl"}
    found = measure.step_ratios(["resnet10_small", "clip_tiny"], losses, **small)
    assert list(found["loss"]) == losses * 2
    for _, own in found.groupby("backbone"):
        best = own.set_index("loss")["seconds"]
        assert list(own["ratio"]) == list(best / best["infonce"])


@pytest.mark.parametrize("backbone", ["clip_tiny", "resnet10_small"])
def test_a_step_trains_the_whole_encoder(backbone):
    model, encode, labels = measure.encoder(backbone, "scl", 8, 8, 4)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = measure.training_step("PushPull", model, encode, labels)
    step()
    step()  # residual branches that begin at zero have no gradient in the first step
    changed = [not torch.equal(*both) for both in zip(before, model.parameters(), strict=True)]
    assert sum(changed) > 0.9 * len(changed)  # a bias before a normalisation has no gradient


def test_two_processes_share_one_batch_and_a_failure_is_a_row(tmp_path, monkeypatch):
    out = tmp_path / "processes.json"
    only = ["--only", OURS, "--only", "InfoNCE"]
    assert cli.main(["bench", "--quick", "--processes", "2", *only, "--out", str(out)]) == 0
    found = {line["contender"]: line for line in table.read(out)["measurements"]}
    assert set(found) == {OURS, "InfoNCE"}
    assert all(0 < line["seconds"] <= line["median_seconds"] for line in found.values())

    monkeypatch.setattr(processes, "ask", failing)
    effort = replace(processes.QUICK, only=(OURS,), processes=(2,))
    (line,) = processes.measure_processes(effort, PROBLEM)
    assert line["note"] == "failed: out of everything"


def test_growth_is_that_from_1024_to_8192_and_only_if_measured():
    # The overhead at 256 would flatten the slope.
    rows = [row(OURS, n, 1.0 if n == 256 else 3e-9 * n**1.7) for n in (256, 1024, 2048, 8192)]
    assert table.growth(table.frame(run_of(*rows)), OURS, "seconds") == pytest.approx(1.7)
    assert math.isnan(table.growth(table.frame(run_of(*rows[:-1])), OURS, "seconds"))


@pytest.mark.parametrize("name", STORED)
def test_documents_include_the_tables_of_stored_runs(name, capsys):
    path = ROOT / f"results/bench/{name}.json"
    if name == "versions":  # of another program
        with pytest.raises(UserError, match="is not the file of a run of tricouple bench"):
            table.read(path)
        return
    run = table.read(path)
    assert cli.main(["bench", "--read", str(path)]) == 0
    assert OURS in capsys.readouterr().out
    page = ROOT / f"docs/assets/bench-{name}.md"
    assert page.read_text() == table.markdown(run), f"bench --read {path} --markdown {page}"
    assert f"assets/bench-{name}.md" in (ROOT / "docs/benchmarks.md").read_text()
    if name == "core":
        readme = (ROOT / "README.md").read_text()
        rows = table.as_markdown(table.times(run, LOSS, memory=True)).splitlines()
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
    def interrupted(effort, problem):
        yield row(OURS, 16, 1e-3)
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure", interrupted)
    out = tmp_path / "bench.json"
    assert cli.main(["bench", "--quick", "--out", str(out)]) == 130
    assert "has what was measured" in capsys.readouterr().err
    assert table.read(out)["measurements"] == [row(OURS, 16, 1e-3)]
