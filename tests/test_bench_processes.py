"""The benchmark over processes: what is sent is counted, targets are judged, a model is fitted."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn  # while there is no group, which its defaults would keep
from torch.testing._internal.distributed.fake_pg import FakeStore

from tricouple_lab import cli
from tricouple_lab.experiments.bench import processes, targets
from tricouple_lab.experiments.bench.contenders import CLIP, GATHERED, LOSS, OURS, Share
from tricouple_lab.experiments.bench.machines import UNFITTED, Model, shared_tables
from tricouple_lab.experiments.bench.measure import Measurement, Report
from tricouple_lab.experiments.bench.problem import Problem
from tricouple_lab.experiments.bench.processes import (
    NETWORK,
    QUICK_GROUP,
    Counted,
    GroupEffort,
    measure_processes,
)

ROOT = Path(__file__).parents[1]
PROBLEM = Problem(dim=8, classes=4)
FACTS = {"cores": 2, "cpu": "a cpu", "load": 0.0, "date": "2030-01-02T00:00:00"}
FACTS |= {"versions": {"torch": "2"}}


@pytest.fixture
def fake_four():
    """This process as the first of four; the others repeat what it says."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def row(name, size, dim, count, seconds=1.0, **more):
    task = NETWORK if name == NETWORK else LOSS
    found = Measurement(name, task, size, processes=count, dim=dim, **more)
    return found.timed([seconds])


# --- what is sent --------------------------------------------------------------------------------


def test_bytes_are_those_of_a_ring(fake_four):
    block = torch.zeros(10)  # 40 bytes
    calls = {
        (lambda: dist.all_reduce(block)): 2 * 40 * 3 / 4,
        (lambda: dist.all_gather([torch.zeros(10)] * 4, block)): 40 * 3,
        (lambda: dist.reduce_scatter(block, [torch.zeros(10)] * 4)): 40 * 3,
        (lambda: dist.scatter(block, [torch.zeros(10)] * 4, src=0)): 40 * 3,
        (lambda: dist.scatter(block, None, src=1)): 0,
    }
    for call, sent in calls.items():
        with Counted() as counted:
            call()
        assert (counted.messages, counted.sent_bytes) == (1, sent)
        call()  # is not counted, and works as before
        assert counted.messages == 1


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peers call what is to be renamed
def test_gathered_peers_send_what_their_sources_say(fake_four):
    size = 64
    ring = 4 * size * PROBLEM.dim * 3 / 4  # bytes of all embeddings of one set, once around
    labels = 8 * size * 3 / 4
    wanted = {
        CLIP: (4, 4 * ring),  # two sets, gathered and scattered back
        "NTXentLoss (lightly)": (4, 3 * ring),  # gathered, and all of it reduced
        "SupConLoss (PML)": (2, ring + labels),
        "MultipleNegativesRankingLoss (ST)": (4, 4 * ring),
    }
    found = {}
    for contender in GATHERED.values():
        if contender.module:
            step = contender.prepare(Share.of(0, 4, size, PROBLEM), PROBLEM)
            with Counted() as counted:
                step()
            found[contender.name] = counted.messages, counted.sent_bytes
    assert found == wanted


def test_processes_share_one_batch():
    parts = [Share.of(rank, 3, 20, PROBLEM) for rank in range(3)]
    whole = Share.of(0, 1, 20, PROBLEM)
    for field in ("embeddings", "partners", "labels", "identities"):
        assert torch.equal(torch.cat([getattr(p, field) for p in parts]), getattr(whole, field))


# --- the command ---------------------------------------------------------------------------------


def test_the_command_runs_two_processes_and_writes_what_they_found(tmp_path, capsys):
    out = tmp_path / "processes.json"
    only = ["--only", OURS, "--only", "InfoNCE"]
    assert cli.main(["bench", "--quick", "--processes", "2", *only, "--out", str(out)]) == 0
    assert "2 processes of one thread" in capsys.readouterr().out
    report = Report.from_json(out.read_text())
    assert report.shared
    by = {row.contender: row for row in report.measurements}
    assert set(by) == {NETWORK, OURS, "InfoNCE"}
    for found in by.values():
        assert found.note == ""
        assert 0 < found.seconds <= found.median_seconds
        assert found.sent_bytes > 0
    assert by[OURS].messages >= 2
    again = Report.from_json(report.to_json())
    assert again == report


def test_a_process_that_fails_is_noted(monkeypatch):
    def failing(world, function, *args):
        raise RuntimeError("rank 1 ran out of everything")

    monkeypatch.setattr(processes, "_ask", failing)
    found = list(measure_processes(replace(QUICK_GROUP, only=(OURS,)), PROBLEM))
    assert [row.note for row in found] == ["failed: rank 1 ran out of everything"]


def test_too_much_memory_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(processes, "available_bytes", lambda: 2**30)
    monkeypatch.setattr(processes, "_ask", lambda world, function, *args: [])
    effort = replace(QUICK_GROUP, sizes=(8192,), only=("SupCon*",))
    (found,) = measure_processes(effort, PROBLEM)
    assert found.note == "skipped: may need 7 GiB"


@pytest.mark.parametrize("text", ["1", "two", "2,"])
def test_fewer_than_two_processes_are_refused(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "--processes", text])
    assert "--processes" in capsys.readouterr().err


# --- what is derived -----------------------------------------------------------------------------


def measured(alpha=3e-13, beta=2e-11, hop=4e-5, bandwidth=2e9, messages=90):
    """Two processes on two cores that obey the model; four that take twice as long."""
    rows = []
    for payload in processes.PAYLOADS:
        seconds = 2 * hop + payload / bandwidth
        rows.append(row(NETWORK, payload, None, 2, seconds, sent_bytes=payload, messages=1))
    for count, size, dim in product((2, 4), (4096, 8192), (128, 512)):
        sent = 4 * size * (dim + 160) * (count - 1) // count
        work = (alpha * dim + beta) * size**2 / 2
        seconds = work + messages * 2 * math.log2(count) * hop + sent / bandwidth
        extra = 4 * (size**2 // count + 3 * size * dim)
        more = {"sent_bytes": sent, "messages": messages, "extra_bytes": extra}
        rows.append(row(OURS, size, dim, count, seconds * (count // 2), **more))
    return Report(Problem(), tuple(rows), FACTS)


def test_the_model_finds_what_the_measurements_obey():
    model = Model.of(measured())
    found = [model.alpha, model.beta, model.machine.hop, model.machine.bandwidth, model.x, model.y]
    assert found == pytest.approx([3e-13, 2e-11, 4e-5, 2e9, 1.0, 160.0], rel=1e-6)
    assert model.messages == 90
    assert (model.matrices, model.copies) == pytest.approx((1.0, 3.0))
    assert model.error < 1e-6
    assert model.crowded == pytest.approx([2.0] * 4)


def test_more_processes_share_the_arithmetic_and_pay_in_latency():
    model = Model.of(measured())
    few, many = model.at(8, 32768, 512), model.at(1024, 32768, 512)
    assert many.arithmetic == pytest.approx(few.arithmetic / 128)
    assert many.latency == pytest.approx(few.latency * 10 / 3)
    assert model.at(8, 2**20, 512).limit == "arithmetic"
    assert model.at(1024, 1024, 512).limit == "latency"
    assert many.kernels == pytest.approx(4 * 32768**2 / 1024)
    assert many.embeddings == pytest.approx(few.embeddings) == pytest.approx(3 * 4 * 32768 * 512)
    assert many.seconds == many.arithmetic + many.latency + many.transfer


def test_the_model_is_a_table_and_needs_two_sizes_and_dimensions():
    report = measured()
    table = shared_tables(report)[-1]
    assert "larger machines" in table.caption
    assert "several processes a core, not fitted, took 2.00 to 2.00 times as long" in table.note
    few = replace(report, measurements=report.measurements[: len(processes.PAYLOADS) + 1])
    assert Model.of(few) is None
    (table,) = shared_tables(few)
    assert UNFITTED in table.note


@pytest.mark.parametrize(("share", "met"), [(0.39, True), (0.41, False)])
def test_memory_of_a_process_is_judged(share, met):
    extra = int(share * 4 * 8192**2)
    report = Report(Problem(), (row(OURS, 8192, 128, 4, extra_bytes=extra),), FACTS)
    (claim,) = targets.claims(report)
    assert claim.met is met
    assert f"{share:.2f} N×N float32 matrices a process at N=8192" in claim.text


@pytest.mark.parametrize(("share", "met"), [(0.69, True), (0.71, False)])
def test_bytes_are_judged_against_clip_loss_for_each_embedding(share, met):
    assert GATHERED[CLIP].pairs
    ours = row(OURS, 8192, 512, 4, sent_bytes=int(1e6 * share))  # of half as many embeddings
    report = Report(Problem(), (ours, row(CLIP, 8192, 512, 4, sent_bytes=2 * 10**6)), FACTS)
    (claim,) = targets.claims(report)
    assert claim.met is met


def test_time_is_judged_against_the_fastest_peer():
    rows = (
        row(OURS, 4096, 128, 2, 0.9),
        row("InfoNCE", 4096, 128, 2, 0.1),  # ours too
        row(CLIP, 4096, 128, 2, 1.0),
        row("NTXentLoss (lightly)", 4096, 128, 2, 2.0),
        row(OURS, 8192, 128, 2, 5.0),
        row(CLIP, 8192, 128, 2, 4.0),
    )
    first, second = targets.claims(Report(Problem(), rows, FACTS))
    assert (first.met, second.met) == (True, False)
    assert f"takes 0.90× the time of {CLIP}" in first.text


def test_the_page_shows_the_stored_run():
    text = (ROOT / "docs/many-processes.md").read_text()
    assert targets.places(text, "processes") == ["bench processes"]
    stored = (ROOT / "results/bench/processes.json").read_text()
    report = Report.from_json(stored)
    assert targets.insert_into(text, report, "processes") == text
    assert json.loads(stored)["provenance"]["commit"]
    model = Model.of(report)
    assert (UNFITTED in text) == (model is None)
    assert ("on larger machines by the model" in text) == (model is not None)
    assert model is None or math.isfinite(model.error)


def test_the_usual_sizes_are_enough_for_the_model_and_every_target():
    """Whatever the losses cost: rows of the sizes, dimensions and processes that run by default."""
    effort = GroupEffort()
    cases = list(product(effort.processes, effort.sizes, effort.dims))
    sent = {"sent_bytes": 4, "messages": 90, "extra_bytes": 2**20}
    rows = [row(c.name, n, d, r, **sent) for r, n, d in cases for c in effort.contenders]
    network = [row(NETWORK, size, None, 2, sent_bytes=size) for size in processes.PAYLOADS]
    assert len(rows) + len(effort.processes) * len(network) == effort.total
    report = Report(Problem(), (*network, *rows), FACTS)
    assert Model.of(report) is not None
    assert len(targets.claims(report)) == 2 + len(effort.dims) * 2  # N = 4096 and 8192
