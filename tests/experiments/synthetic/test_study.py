"""A study keeps what is done, goes on where it stopped, and never touches foreign folders."""

import io
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from processes import PATIENCE
from tricouple_lab import cli, provenance
from tricouple_lab.experiments import synthetic
from tricouple_lab.experiments.runs.record import Store, open_store
from tricouple_lab.experiments.synthetic import study
from tricouple_lab.experiments.synthetic.config import (
    LINEAR,
    Cell,
    RunConfig,
    main_cells,
    map_cells,
)
from tricouple_lab.experiments.synthetic.study import (
    Event,
    RunInProgress,
    WorkerError,
    find_twin,
    run_cells,
    thinned,
    train_all,
    unfinished,
)
from tricouple_lab.experiments.synthetic.train import MEANINGS, measured_steps, train
from tricouple_lab.options import CommandError
from tricouple_lab.report import command as report
from tricouple_lab.report.sweeps import verdict

TINY = RunConfig(n_classes=3, per_class=8, data_dim=10, hidden=16, dim=4, steps=6)
CELLS = main_cells(TINY, [3], [0, 1], LINEAR[:2])


class Log:
    """A display that remembers."""

    def __init__(self):
        self.steps: list[int] = []
        self.records: list[dict] = []

    def measured(self, name, point, steps):
        self.steps.append(point.step)

    def finished(self, record):
        self.records.append(record)


def train_here(configs, *, workers, keep_embeddings, stop_after=None):
    """What the pool does, in this process; optionally Ctrl-C comes after some events."""
    count = 0
    for task, config in enumerate(configs):
        for point, embeddings in train(config):
            if count == stop_after:
                raise KeyboardInterrupt
            count += 1
            yield Event(task, 0.5, point, thinned(embeddings) if keep_embeddings[task] else None)
        yield Event(task)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(study, "train_all", train_here)
    monkeypatch.setattr(report, "write_report", lambda folder: folder / "report.html")


def opened(path: Path, config: RunConfig = TINY) -> Store:
    return open_store(
        path, "synthetic", "test", config.shared(), {}, extend=False, verdicts=MEANINGS
    )


def test_records_have_the_promised_form(here, tmp_path):
    folder, log = opened(tmp_path / "s"), Log()
    run_cells(folder, CELLS, log, workers=1)
    records = folder.records()
    assert list(records) == [cell.id for cell in CELLS]
    record = records[CELLS[0].id]
    assert record == log.records[0]
    assert record["part"] == "main"
    assert record["config"] == CELLS[0].config.flat()
    assert record["status"] == "done"
    assert record["verdict"] in ("etf", "rich", "reduced", "collapsed", "diverged")
    names = {"step", "loss", "nc1", "nc2_std", "nc2_deviation", "alpha", "beta"}
    assert record["curves"].keys() == names | {"effective_rank", "knn"}
    assert {len(curve) for curve in record["curves"].values()} == {len(record["curves"]["step"])}
    assert record["curves"]["step"][-1] == TINY.steps
    assert len(record["spectrum"]) == 2
    assert record["spectrum"] == sorted(record["spectrum"], reverse=True)
    assert record["steps"] == TINY.steps
    assert {"commit", "command", "cpu", "cores", "load", "date"} <= record["provenance"].keys()
    assert "torch" in record["provenance"]["versions"]
    head = json.loads((tmp_path / "s/study.json").read_text())
    assert head.keys() == {"kind", "name", "config", "verdicts", "provenance"}
    assert record["verdict"] in head["verdicts"]


def test_finished_runs_are_skipped_and_interrupted_ones_done_again(here, tmp_path, monkeypatch):
    folder = opened(tmp_path)
    per_run = 1 + len(measured_steps(TINY.steps))
    monkeypatch.setattr(
        study, "train_all", lambda *a, **k: train_here(*a, **k, stop_after=per_run + 3)
    )
    with pytest.raises(KeyboardInterrupt):
        run_cells(folder, CELLS, Log(), workers=1)
    records = folder.records()
    assert [records[cell.id]["status"] for cell in CELLS[:2]] == ["done", "partial"]
    assert records[CELLS[1].id]["verdict"] is None
    assert len(records[CELLS[1].id]["curves"]["step"]) == 3
    assert unfinished(CELLS, records) == CELLS[1:]

    monkeypatch.setattr(study, "train_all", train_here)
    log = Log()
    run_cells(folder, CELLS, log, workers=1)
    assert [record["id"] for record in log.records] == [cell.id for cell in CELLS[1:]]
    assert not unfinished(CELLS, folder.records())
    log = Log()
    run_cells(folder, CELLS, log, workers=1)
    assert log.records == []


def test_cells_with_equal_settings_are_trained_once(here, tmp_path):
    folder, log = opened(tmp_path), Log()
    twin = Cell("dim=4-twin", "maps/dim", CELLS[0].config)
    run_cells(folder, [CELLS[0], twin], log, workers=1)
    assert log.steps.count(0) == 1
    first, second = folder.records().values()
    assert (second["part"], second["same_as"]) == ("maps/dim", CELLS[0].id)
    assert (first["seconds"], second["seconds"]) == (0.5, 0.0)
    assert first["curves"] == second["curves"]
    later = Cell("dim=4-later", "maps/dim", CELLS[0].config)
    run_cells(folder, [CELLS[0], later], log, workers=1)
    assert log.steps.count(0) == 1
    assert folder.records()["dim=4-later"]["same_as"] == CELLS[0].id


def test_snapshots_are_of_the_first_seed_only_and_few(here, tmp_path):
    folder = opened(tmp_path)
    run_cells(folder, CELLS, Log(), workers=1, snapshots=True)
    kept = sorted(path.stem for path in (tmp_path / "snapshots").iterdir())
    assert kept == sorted(cell.id for cell in CELLS if cell.config.seed == 0)
    with np.load(tmp_path / "snapshots" / f"{kept[0]}.npz") as file:
        assert file["embeddings"].dtype == np.float16
        n_steps, n, dim = file["embeddings"].shape
        assert (n, dim, len(file["steps"])) == (24, 4, n_steps)
        assert file["labels"].tolist() == [0] * 8 + [1] * 8 + [2] * 8
        assert file["steps"][[0, -1]].tolist() == [0, TINY.steps]
        lengths = np.linalg.norm(file["embeddings"].astype(float), axis=2)
        assert abs(lengths - 1).max() < 2e-3


def test_a_snapshot_has_500_samples_at_most():
    config = replace(TINY, n_classes=7, per_class=101, steps=1)
    run = RunInProgress(Cell("x", "main", config))
    for point, embeddings in train(config):
        run.add(point, 0.1, thinned(embeddings))
    run.write_snapshots(file := io.BytesIO())
    file.seek(0)
    with np.load(file) as arrays:
        assert arrays["embeddings"].shape[1] == len(arrays["labels"]) == 354
        assert set(arrays["labels"].tolist()) == set(range(7))


def test_numbers_that_ended_are_null_and_the_run_counts_as_done(here, tmp_path):
    folder = opened(tmp_path)
    cell = Cell("wild", "main", replace(TINY, learning_rate=1e30))
    run_cells(folder, [cell], Log(), workers=1, snapshots=True)
    record = folder.records()["wild"]
    assert (record["status"], record["verdict"]) == ("diverged", "diverged")
    assert record["curves"]["nc1"][-1] is None
    assert record["spectrum"] == [None, None]
    assert not unfinished([cell], folder.records())


def test_the_stored_study_is_read_and_goes_on(tmp_path):
    stored = Path(__file__).parents[3] / "results/synthetic"
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    base = RunConfig()
    store = open_store(tmp_path, "synthetic", "synthetic", base.shared(), {}, extend=False)
    records = store.records()
    cells = main_cells(base, [10, 20, 50], range(3)) + map_cells(base)
    # Before it had InfoNCE at the sharpness of the others, a study was done without that.
    assert {cell.config.method for cell in unfinished(cells, records)} <= {"infonce"}
    twin = find_twin(Cell("dim=64-again", "maps/dim", base), records)
    assert twin["id"] == "neg_mmiot-linear-K10-seed0"


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"thesis.txt": "years of work"}, "holds other files and no study"),
        ({"study.json": '{"kind": "vision", "name": "x", "config": {}}'}, "another study, 'x'"),
        ({"study.json": '{"kind": "synthetic", "name": "demo", "config": {}}'}, "another study"),
        ({"study.json": "not JSON"}, "not the JSON of a study"),
        ({"study.json": "[1]"}, "not the JSON of a study"),
    ],
)
def test_foreign_folders_are_refused_and_left_alone(files, complaint, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CommandError, match=complaint):
        opened(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_other_settings_are_named_when_they_do_not_fit(tmp_path):
    opened(tmp_path)
    with pytest.raises(CommandError, match=r"other settings \(epsilon 0.5 → 0.1\)"):
        opened(tmp_path, replace(TINY, epsilon=0.1))
    opened(tmp_path, replace(TINY, seed=3, n_classes=5))  # these may differ within a study


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--classes", "10,200"], "data_dim is 100: the means of 200 classes need 199 or more"),
        (["--data-dim", "8"], "data_dim is 8"),
        (["--batch-per-class", "51"], "batch_per_class is 51, but a class has only 50 samples"),
        (["--carry-over", "1.5"], "carry_over must be between 0 and 1, got 1.5"),
    ],
)
def test_impossible_studies_leave_no_folder(options, complaint, tmp_path, refused):
    out = tmp_path / "study"
    assert complaint in refused("synthetic", *options, "--out", str(out))
    assert not out.exists()


def test_a_study_of_changed_sources_is_refused_or_carries_their_hash(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(provenance, "git_changes", lambda: "one line changed")
    assert cli.main(["synthetic", "--out", str(tmp_path / "study")]) == 2
    assert "commit them first, or give --allow-dirty" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
    origin = provenance.collect_provenance()
    assert origin["commit"] is None or origin["commit"].endswith("-dirty")
    assert len(origin["diff"]) == 16
    monkeypatch.setattr(provenance, "git_changes", lambda: "")
    assert "diff" not in provenance.collect_provenance()


def test_command_shows_final_figures_beside_the_papers_claims(here, tmp_path, capsys):
    command = ["synthetic", "--classes", "3", "--seeds", "2", "--per-class", "6", "--data-dim", "9",
               "--steps", "3", "--dim", "4", "--allow-dirty", "--out", str(tmp_path)]  # fmt: skip
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    words = [
        *["Neg-MMIOT", "VICReg", "deviation", "k-NN", "±"],
        "the paper says",
        "c is the sharpness",
    ]
    outcomes = {record["verdict"] for record in Store(tmp_path).records().values()}
    for word in [*words, *(f"{verdict(name).word}: " for name in outcomes)]:
        assert word in shown
    assert shown.count("│ InfoNCE") == 2  # at either sharpness
    assert cli.main(command) == 0
    assert "18 of 18 runs are done already" in capsys.readouterr().out


def test_maps_show_where_each_method_ends_along_every_axis(here, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(synthetic, "map_cells", lambda base: [
        Cell(f"dim={dim}", "maps/dim", replace(base, dim=dim)) for dim in (2, 4)
    ])  # fmt: skip
    words = ["synthetic", "--study", "maps", "--classes", "3", "--per-class", "6", "--allow-dirty",
             "--data-dim", "9", "--steps", "3", "--out", str(tmp_path)]  # fmt: skip
    assert cli.main(words) == 0
    assert "Outcomes over embedding dimension" in capsys.readouterr().out
    assert {r["config"]["dim"] for r in Store(tmp_path).records().values()} == {2, 4}


def test_interrupt_reports_what_is_there(here, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(study, "train_all", lambda *a, **k: train_here(*a, **k, stop_after=5))
    assert cli.main(["demo", "--classes", "3", "--steps", "50", "--out", str(tmp_path)]) == 130
    shown = capsys.readouterr().out
    assert "report.html" in shown
    assert "the same command goes on from here" in shown
    (record,) = Store(tmp_path).records().values()
    assert record["status"] == "partial"


def test_processes_give_the_same_numbers_as_one():
    configs = [replace(TINY, seed=seed) for seed in (0, 1, 2)]
    events = list(train_all(configs, workers=2, keep_embeddings=[False] * 3))
    for task, config in enumerate(configs):
        own = [event.measurement for event in events if event.task == task]
        assert own == [*(point for point, _ in train(config)), None]


def test_a_failing_run_is_reported_with_its_traceback(monkeypatch):
    monkeypatch.setattr(study, "train", Mock(side_effect=ValueError("no such luck")))
    tasks, events = queue.Queue(), queue.Queue()
    for task in ((0, (TINY, False)), None):
        tasks.put(task)
    study._work(tasks, events)
    with pytest.raises(WorkerError, match="no such luck"):
        list(study._listen(events, [], n_runs=1))


def test_a_dead_worker_is_noticed():
    dead = types.SimpleNamespace(exitcode=-9)
    with pytest.raises(WorkerError, match="exit code -9"):
        list(study._listen(queue.Queue(), [dead], n_runs=1))


def test_ctrl_c_in_a_real_demo_leaves_a_partial_study_and_no_processes(tmp_path):
    command = [sys.executable, "-m", "tricouple_lab.cli", "demo", "--classes", "3", "--steps",
               "200000", "--workers", "1", "--out", str(tmp_path / "demo")]  # fmt: skip
    # A session of its own, as a terminal gives: Ctrl-C goes to all its processes. They listen to it
    # even if these tests are a shell's background job, which does not.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not at_work(process.pid):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    shown, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Interrupted" in shown
    assert (tmp_path / "demo/study.json").exists()
    assert (tmp_path / "demo/report.html").exists()
    assert gone(process.pid)


def at_work(pid: int) -> bool:
    """Whether a demo has its worker, and listens to Ctrl-C, which it does not while that starts."""
    ignored = re.search(r"SigIgn:\s(\w+)", Path(f"/proc/{pid}/status").read_text())
    listens = not int(ignored[1], 16) & 1 << signal.SIGINT - 1
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return len(children) == 2 and listens  # a tracker of resources is the other


def gone(group: int) -> bool:
    """Whether all processes of a group have ended, after a moment for the last ones."""
    for _ in range(10 * PATIENCE):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
