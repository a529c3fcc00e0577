"""The benchmark compares like with like, measures what it says, and survives missing peers."""

import gc
import json
import mmap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import UNCONVERGED
from tricouple_lab import cli
from tricouple_lab.experiments.bench import command, contenders, measure, targets
from tricouple_lab.experiments.bench.contenders import BY_NAME, CONTENDERS, LOSS
from tricouple_lab.experiments.bench.measure import (
    QUICK,
    Effort,
    Measurement,
    Report,
    measure_steps,
    time_together,
)
from tricouple_lab.experiments.bench.problem import (
    LOSSES,
    QUICK_STEPS,
    Problem,
    VisionStep,
    make_batch,
    training_steps,
)

ROOT = Path(__file__).parents[1]
PROBLEM = Problem(dim=16, classes=4)
TINY = VisionStep(backbone="test_resnet", batch_size=16, image_size=8, rounds=2)


def call(name, size=24, problem=PROBLEM):
    if not BY_NAME[name].installed:
        pytest.skip(f"{name} is not installed")
    return BY_NAME[name].prepare(make_batch(size, problem), problem)()


FACTS = {"cores": 2, "cpu": "a cpu", "load": 0.0, "date": "2030-01-02T00:00:00"}
FACTS |= {"versions": {"torch": "2"}}


def report_with(*measurements):
    return Report(Problem(), measurements, FACTS)


def timed(name, size, seconds, task=LOSS, **more):
    return Measurement(name, task, size, **more).timed([seconds])


# --- the contenders solve the same problem -------------------------------------------------------


@pytest.mark.parametrize("peer", ["dense Neg-MMIOT (PyTorch)", "MMSinkhorn unrolled (OTT-JAX)"])
def test_peer_has_the_value_and_gradient_of_our_loss(peer):
    value, gradient = map(np.asarray, call("NegMMIOT"))
    peer_value, peer_gradient = map(np.asarray, call(peer))
    assert peer_value == pytest.approx(value, rel=1e-4)
    assert np.abs(peer_gradient - gradient).max() < 1e-3 * np.abs(gradient).max()


def test_danskin_gradient_of_ott_is_our_envelope_gradient():
    _, ours = map(np.asarray, call("NegMMIOT envelope"))
    _, theirs = map(np.asarray, call("MMSinkhorn Danskin (OTT-JAX)"))
    assert np.abs(theirs - ours).max() < 1e-3 * np.abs(ours).max()


def test_ott_plan_has_our_potentials_up_to_constants():
    ours, theirs = call("triplet_sinkhorn").potentials, call("MMSinkhorn plan only (OTT-JAX)")
    for mine, other in zip(ours, theirs, strict=True):
        assert np.ptp(mine.numpy() - np.asarray(other)) < 1e-3


@pytest.mark.parametrize("peer", ["sinkhorn (POT)", "sinkhorn_log (POT)"])
def test_pot_has_our_pair_plan(peer):
    # POT updates columns first and we update rows first; the cost is symmetric.
    torch.testing.assert_close(call(peer).T, call("sinkhorn"), rtol=1e-3, atol=1e-7)


def test_plain_info_nce_equals_sup_con_loss():
    problem = replace(PROBLEM, seed=3)
    labels = make_batch(24, problem).labels
    assert labels.bincount()[labels].min() > 1, "SupConLoss counts anchors without a positive"
    value, gradient = call("InfoNCE (plain PyTorch)", problem=problem)
    peer_value, peer_gradient = call("SupConLoss (PML)", problem=problem)
    torch.testing.assert_close(value, peer_value)
    torch.testing.assert_close(gradient, peer_gradient, rtol=1e-4, atol=1e-6)


@UNCONVERGED
def test_every_loss_contender_returns_a_finite_value_and_gradient():
    for contender in CONTENDERS:
        if contender.task == LOSS and contender.installed:
            value, gradient = map(np.asarray, call(contender.name))
            assert np.isfinite(value)
            assert np.isfinite(gradient).all()
            assert np.abs(gradient).max() > 0


def test_batches_repeat_and_have_unbalanced_classes():
    batch, again = make_batch(512, Problem()), make_batch(512, Problem())
    assert torch.equal(batch.embeddings, again.embeddings)
    counts = batch.labels.bincount()
    assert len(counts) == 10
    assert counts.max() > 3 * counts.min()


# --- the instruments -----------------------------------------------------------------------------


def test_turns_interleave_and_rotate():
    calls = []
    steps = {name: lambda name=name: calls.append(name) for name in "abc"}
    durations = time_together(steps, rounds=2, seconds_per_round=0.0)
    assert "".join(calls) == "abc" + "bca"
    assert {name: len(values) for name, values in durations.items()} == dict.fromkeys("abc", 2)


def test_first_call_of_a_turn_is_not_counted_when_there_is_time_for_more():
    calls = []

    def step():
        calls.append("call")

    def clock(step):
        # A first call ten times slower than the others, as after another library's turn.
        step()
        return 0.01 if len(calls) == 1 else 0.001

    durations = time_together({"step": step}, 1, 0.05, clock=clock)["step"]
    assert len(calls) == 6
    assert durations == [0.001] * 5


def test_a_measurement_has_the_best_and_the_median_call():
    found = Measurement("a", LOSS, 16).timed([3.0, 1.0, 2.0])
    assert (found.seconds, found.median_seconds, found.calls) == (1.0, 2.0, 3)


def test_extra_memory_is_the_peak_of_the_call_not_what_it_returns():
    size = 64 * 2**20
    gc.collect()  # what earlier tests left must not be freed during the call

    def step():
        # Pages of its own: a tensor may get memory that earlier tests freed and malloc still holds.
        with mmap.mmap(-1, size) as pages:  # given back before the call ends
            for start in range(0, size, mmap.PAGESIZE):
                pages[start] = 1

    found = measure.peak_memory_of(step)
    assert found.extra_bytes == pytest.approx(size, rel=0.05)
    assert found.peak_bytes > found.extra_bytes


def test_memory_is_measured_in_a_process_of_its_own():
    ballast = torch.ones(2**28)  # 1 GiB in this process must not be seen by the other
    found = measure.measure_memory("InfoNCE (plain PyTorch)", 1024, Problem())
    del ballast
    matrices = found.extra_bytes / (4 * 1024**2)
    assert 2 < matrices < 20
    assert found.peak_bytes < 2**30


def test_failure_in_the_memory_process_is_reported():
    with pytest.raises(RuntimeError, match="KeyError: 'nobody'"):
        measure.measure_memory("nobody", 64, Problem())


# --- training steps -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("setup", [TINY, QUICK_STEPS["clip"]], ids=["vision", "clip"])
def test_a_step_with_any_loss_trains_every_encoder(setup, loss, monkeypatch):
    given = []
    for name in ("Adam", "AdamW"):
        real = getattr(torch.optim, name)
        monkeypatch.setattr(
            torch.optim, name, lambda p, real=real, **o: real(given.append([*p]) or given[0], **o)
        )
    step = training_steps(setup)[loss]
    (parameters,) = given
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in learning]
    step()
    changed = [not torch.equal(a, b) for a, b in zip(before, learning, strict=True)]
    assert sum(changed) > 0.9 * len(changed)  # a bias before a normalisation has no gradient


@pytest.mark.parametrize("setup", [TINY, QUICK_STEPS["clip"]], ids=["vision", "clip"])
def test_steps_are_timed_survive_json_and_are_compared_with_the_baseline(setup):
    report = Report(setup, measure_steps(setup), FACTS)
    assert Report.from_json(report.to_json()) == report
    content = json.loads(report.to_json())
    times = {row["loss"]: row for row in content["times"]}
    assert times["InfoNCE"]["ratio"] == 1
    assert times["NegMMIOT"]["ratio"] == times["NegMMIOT"]["best"] / times["InfoNCE"]["best"]
    assert all(0 < row["best"] <= row["median"] for row in times.values())


@pytest.mark.parametrize("kind", [[], ["clip"]])
@pytest.mark.parametrize(("ratio", "code"), [(1.049, 0), (1.051, 1)])
def test_bench_writes_the_times_of_steps_and_fails_if_the_target_is_missed(
    ratio, code, kind, tmp_path, capsys, monkeypatch
):
    def measured(setup, on_turn):
        rows = {"InfoNCE": 1.0, "NegMMIOT": ratio}
        task = "training step"
        return tuple(timed(name, setup.batch_size, s, task) for name, s in rows.items())

    monkeypatch.setattr(command, "measure_steps", measured)
    out = tmp_path / "step.json"
    assert cli.main(["bench", "--training-step", *kind, "--rounds", "3", "--out", str(out)]) == code
    written = json.loads(out.read_text())
    assert written["plan"]["rounds"] == 3
    assert written["times"][1]["ratio"] == ratio
    assert written["provenance"]["versions"]["timm"]
    shown = capsys.readouterr().out
    assert "at most 1.05×" in shown
    assert f"{ratio:.3f}×" in shown
    assert ("CLIP (small) step of 64" if kind else "resnet18 step of 256") in shown


# --- what is derived -----------------------------------------------------------------------------


def test_exponent_of_a_power_law_is_exact():
    sizes = (1024, 2048, 4096, 8192)
    assert targets.exponent({n: 3e-9 * n**1.7 for n in sizes}) == pytest.approx(1.7)


def test_growth_is_claimed_from_1024_to_8192_and_only_if_measured():
    sizes = (256, 1024, 2048, 4096, 8192)
    # The overhead at 256 would flatten the slope.
    rows = [timed("NegMMIOT", n, 1.0 if n == 256 else n**2 * 1e-9) for n in sizes]
    whole, part = report_with(*rows), report_with(*rows[1:-1])
    about = "NegMMIOT", "time", *targets.GROWTH
    assert targets.growth(whole, *about) == pytest.approx(2.0)
    assert targets.growth(whole, "NegMMIOT", "extra memory", *targets.GROWTH) is None
    assert targets.growth(part, *about) is None
    assert targets.claims(part) == []


@pytest.mark.parametrize(("peer_seconds", "met"), [(0.31, True), (0.29, False)])
def test_claim_against_ott_is_judged_by_its_target(peer_seconds, met):
    peer = "MMSinkhorn unrolled (OTT-JAX)"
    report = report_with(timed("NegMMIOT", 256, 1e-3), timed(peer, 256, peer_seconds))
    (claim,) = targets.claims(report)
    assert claim.met is met
    assert f"{peer_seconds / 1e-3:.3g}×" in claim.text
    assert claim.target == "at least 300×"


def test_memory_claims_count_matrices_and_the_whole_process():
    matrix = 4 * 8192**2
    row = timed("NegMMIOT", 8192, 1.0, extra_bytes=7 * matrix, peak_bytes=2 * 2**30)
    in_matrices, in_bytes = targets.claims(report_with(row))
    assert (in_matrices.met, in_bytes.met) == (False, True)
    assert "7.00 N×N" in in_matrices.text
    assert "2.00 GiB" in in_bytes.text


@pytest.mark.parametrize(("seconds", "met"), [(160.0, True), (300.0, False)])
def test_streaming_is_judged_by_its_memory_and_its_time_per_pair(seconds, met):
    streamed = timed("NegMMIOT streamed", 32768, seconds, extra_bytes=2**30)
    memory, time = targets.claims(report_with(timed("NegMMIOT", 8192, 2.0), streamed))
    assert memory.met
    assert "1.00 GiB" in memory.text
    assert time.met is met
    assert f"{seconds / 32:.2f}×" in time.text


def test_claims_without_measurements_are_not_made():
    missing = Measurement("SupConLoss (PML)", LOSS, 256, note="not installed")
    report = report_with(timed("NegMMIOT", 256, 1e-3), missing)
    assert targets.claims(report) == []
    assert targets.tables(report)[0].note == "SupConLoss (PML): not installed"


# --- the record ----------------------------------------------------------------------------------


def test_report_survives_json():
    report = report_with(timed("NegMMIOT", 256, 1e-3, extra_bytes=5), timed("IOT", 64, 2e-3))
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"problem": {"colour": 1}}', '{"plan": {}}'])
def test_other_json_is_refused(text):
    with pytest.raises(ValueError, match="not the JSON of a benchmark report"):
        Report.from_json(text)


def test_only_what_stands_between_the_markers_is_replaced():
    rows = {"NegMMIOT": 1.5e-3, "InfoNCE": 1e-3, "SupConLoss (PML)": 3e-3}
    report = report_with(*(timed(name, 256, seconds) for name, seconds in rows.items()))
    before = "# title\n<!-- bench -->old<!-- /bench -->\nrest\n<!-- bench a --><!-- /bench a -->"
    after = targets.insert_into(before, report, "a")
    assert after.startswith("# title\n<!-- bench -->\n")
    assert "\n<!-- /bench -->\nrest\n<!-- bench a -->\n" in after
    assert "old" not in after
    readme, whole = after.split("rest")
    assert "| NegMMIOT | 1.50 |" in readme
    assert "takes 1.50 times as long as our own InfoNCE at N = 256; it is 2.00 times as" in readme
    assert "target" not in readme
    claim = "NegMMIOT is 2.00× as fast as SupConLoss (PML) at N=256 (target: at least 1×)"
    assert claim in whole
    assert targets.insert_into(after, report, "a") == after


def test_a_training_step_claims_nothing_about_its_loss_alone():
    step = Report.from_json((ROOT / "results/bench/step_vision.json").read_text())
    found = targets.claims(step)
    assert len(found) == len(targets.STEPS)
    assert all(claim.text.startswith(f"a {step.problem} with ") for claim in found)


@pytest.mark.parametrize("name", ["core", "hard", "shapes", "step_vision", "step_clip"])
def test_documents_show_the_stored_results(name):
    report = Report.from_json((ROOT / f"results/bench/{name}.json").read_text())
    for path in ("docs/benchmarks.md", *(["README.md"] if name == "core" else [])):
        text = (ROOT / path).read_text()
        assert targets.insert_into(text, report, name) == text, f"bench --read … --readme {path}"


# --- the whole command ---------------------------------------------------------------------------


def test_only_some_contenders_run_on_request(tmp_path):
    out = tmp_path / "bench.json"
    options = ["--quick", "--sizes", "16", "--only", "IOT", "--only", "*(POT)", "--out", str(out)]
    assert cli.main(["bench", *options]) == 0
    names = {row["contender"] for row in json.loads(out.read_text())["measurements"]}
    assert names == {"IOT", "sinkhorn (POT)", "sinkhorn_log (POT)"}


def test_a_pattern_without_a_match_is_refused(tmp_path, capsys):
    out = tmp_path / "bench.json"
    assert cli.main(["bench", "--only", "nobody", "--out", str(out)]) == 2
    assert "--only nobody matches none of: NegMMIOT" in capsys.readouterr().err
    assert not out.exists()


def test_quick_run_prints_tables_and_writes_json_with_provenance(tmp_path, capsys):
    out = tmp_path / "new" / "bench.json"
    assert cli.main(["bench", "--quick", "--sizes", "16", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    content = json.loads(out.read_text())
    rows = {row["contender"]: row for row in content["measurements"]}
    assert set(rows) == {name for name, contender in BY_NAME.items() if contender.smallest <= 16}
    for name, row in rows.items():
        assert name.split()[0] in shown
        if BY_NAME[name].installed:
            assert row["note"] == ""
            assert 0 < row["seconds"] <= row["median_seconds"]
        else:
            assert row["note"] == "not installed"
    facts = content["provenance"]
    assert facts["versions"]["torch"] == torch.__version__
    assert {"date", "command", "commit", "cpu", "cores", "load", "torch_threads"} <= set(facts)


@pytest.mark.parametrize("load", [0.0, 3.0])
def test_busy_machine_is_warned_about(load, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        command, "collect_provenance", lambda: report_with().provenance | {"load": load}
    )
    monkeypatch.setattr(command, "measure", lambda *_: iter([timed("NegMMIOT", 16, 1e-3)]))
    assert cli.main(["bench", "--quick", "--out", str(tmp_path / "bench.json")]) == 0
    assert ("keep this machine busy (load 3.0)" in capsys.readouterr().out) is (load > 1)


def test_interrupted_run_keeps_what_it_measured(tmp_path, monkeypatch):
    def interrupted_measure(effort, problem, on_turn):
        yield timed("NegMMIOT", 16, 1e-3)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure", interrupted_measure)
    out = tmp_path / "bench.json"
    assert cli.main(["bench", "--quick", "--out", str(out)]) == 130
    assert Report.from_json(out.read_text()).measurements == (timed("NegMMIOT", 16, 1e-3),)


def test_missing_peer_is_a_row_and_not_a_crash(monkeypatch):
    monkeypatch.setattr(contenders, "find_spec", lambda package: None)
    found = measure.measure(replace(QUICK, sizes=(16,)), PROBLEM)
    rows = {row.contender: row for row in found}
    assert rows["NegMMIOT"].seconds > 0
    for name in ("SupConLoss (PML)", "MMSinkhorn unrolled (OTT-JAX)", "sinkhorn (POT)"):
        assert rows[name].note == "not installed"
        assert rows[name].seconds is None


def test_contender_that_fails_at_one_size_is_noted(monkeypatch):
    def prepare(batch, problem):
        raise RuntimeError("out of everything")

    failing = contenders.Contender("fails", LOSS, prepare)
    monkeypatch.setattr(measure, "CONTENDERS", (BY_NAME["NegMMIOT"], failing))
    ours, other = measure.measure(replace(QUICK, sizes=(16,)), PROBLEM)
    assert ours.seconds > 0
    assert other.note == "failed: out of everything"


def test_too_large_a_tensor_is_skipped_before_it_is_built(monkeypatch):
    monkeypatch.setattr(measure, "available_bytes", lambda: 2**30)
    dense = BY_NAME["dense Neg-MMIOT (PyTorch)"]
    assert measure.obstacle_to(dense, 1024, Problem()).startswith("skipped: may need 320 GiB")
    assert measure.obstacle_to(dense, 64, Problem()) == ""


def test_cubic_contenders_meet_small_sizes_only_and_small_matrices_are_not_weighed():
    effort = Effort()
    ours, dense = BY_NAME["NegMMIOT"], BY_NAME["dense Neg-MMIOT (PyTorch)"]
    assert effort.meets(ours, 8192)
    assert [effort.meets(dense, size) for size in (256, 512)] == [True, False]
    assert [effort.weighs(ours, size) for size in (256, 1024)] == [False, True]
    assert effort.weighs(dense, 256)


def test_bound_on_dense_memory_is_a_bound():
    name = "dense Neg-MMIOT (PyTorch)"
    found = measure.measure_memory(name, 96, Problem())
    bound = BY_NAME[name].bytes_at_most(96, Problem())
    assert bound / 4 < found.extra_bytes < bound
