"""The commands: one run, sweeps, evaluations, and errors in one line."""

import json
import subprocess
import sys

import pytest
import torch

from tricouple import cli
from tricouple.conf.compose import STARTS, ConfigurationError
from tricouple.conf.schema import Train
from tricouple.experiments.runs import sweep as sweep_module
from tricouple.experiments.runs.folder import RunFolder
from tricouple.experiments.runs.run import run_once
from tricouple.experiments.runs.sweep import Job, sweep
from tricouple.experiments.vision import VISION


def train(config, console):
    return run_once(VISION, config, console)


def test_train_prints_a_table_that_tells_the_features_apart(words, tiny, capsys):
    assert cli.main(["train", *words]) == 0
    shown = capsys.readouterr().out
    for word in ("penultimate", "embedding", "k-NN", "linear", "359 test images"):
        assert word in shown
    assert VISION.folder(tiny()).evaluation.exists()


def test_show_prints_the_settings_and_runs_nothing(words, tiny, capsys):
    assert cli.main(["train", *words, "loss=iot", "--show"]) == 0
    shown = capsys.readouterr().out
    assert VISION.folder(tiny("loss=iot")).path.name in shown.replace("\n", "")
    assert "epsilon: 0.1" in shown
    assert not VISION.folder(tiny("loss=iot")).path.exists()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["train", "loss=foo"], "loss=foo: choose one of byol, dbot"),
        (["train", "training.batch_size=9999"], "batch_size is 9999, but there are only"),
        (["train", "--study", "nothing"], "choose one of vision_cpu"),
        (["train", "--study", "vision_cpu", "seed=1"], "leave out seed=1"),
        (["train", "-m", "seed=0,1", "loss=iot,foo"], "loss=foo: choose one of"),
        (["evaluate", "nowhere"], "nowhere is not a run: it has no config.yaml"),
        (["evaluate", "evaluation.neighbours=3"], "name the folder of a run"),
        (["evaluate", "nowhere", "seed=3"], "seed=3: only evaluation.*"),
    ],
)
def test_user_errors_are_one_line_and_exit_with_2(given, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(given) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tricouple {given[0]}: error: ")
    assert complaint in error
    assert error.count("\n") == 1


def test_evaluate_uses_the_settings_that_it_is_given(tiny, console, capsys):
    folder = train(tiny(), console).folder
    before = folder.read_evaluation()
    assert cli.main(["evaluate", str(folder.path), "evaluation.neighbours=5"]) == 0
    assert "k = 5" in capsys.readouterr().out.replace("\n", " ")
    after = json.loads(folder.evaluation.read_text())
    assert after["settings"]["neighbours"] == 5
    assert after["accuracy"]["penultimate/linear"] == before["accuracy"]["penultimate/linear"]


def test_evaluate_computes_everything_on_the_device_of_the_run(tiny, console, monkeypatch):
    from tricouple.experiments import vision

    wanted = torch.device("cpu", 0)
    used = []

    def recorded(function):
        def call(*args, **options):
            used.append((function.__name__, options["device"]))
            return function(*args, **options)

        return call

    folder = train(tiny(), console).folder
    monkeypatch.setattr(vision, "device_of", lambda _: wanted)
    for name in ("extract", "evaluate_features"):
        monkeypatch.setattr(vision, name, recorded(getattr(vision, name)))
    assert cli.main(["evaluate", str(folder.path)]) == 0
    assert used == [("extract", wanted)] * 2 + [("evaluate_features", wanted)]


def test_evaluate_takes_the_last_epoch_of_a_run_that_is_not_finished(
    tiny, console, capsys, monkeypatch
):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(RunFolder, "write_trained", killed)
        with pytest.raises(KeyboardInterrupt):
            train(tiny(), console)
    folder = VISION.folder(tiny())
    assert cli.main(["evaluate", str(folder.path)]) == 0
    assert folder.read_evaluation()["epoch"] == 2
    assert folder.checkpoint.exists()


def test_evaluate_refuses_a_run_without_weights(tiny, capsys):
    folder = VISION.folder(tiny())
    folder.claim(tiny())
    assert cli.main(["evaluate", str(folder.path)]) == 2
    assert "has no weights yet" in capsys.readouterr().err


# --- sweeps --------------------------------------------------------------------------------------


def test_a_sweep_runs_every_combination_and_reports_failures_at_the_end(
    words, console, monkeypatch, tmp_path
):
    started = []

    def process(command, **_):
        started.append(command[4:])
        code = {"loss=iot": 2, "loss=infonce": -9}.get(command[4], 0)
        return subprocess.CompletedProcess(command, code, stderr="a line\nthe reason\n")

    monkeypatch.setattr(sweep_module.subprocess, "run", process)
    jobs = sweep(["loss=iot,infonce,neg_mmiot", "seed=0,1", f"runs={tmp_path}"], console)
    assert [words[:2] for words in started] == [
        [f"loss={loss}", f"seed={seed}"]
        for loss in ("iot", "infonce", "neg_mmiot")
        for seed in (0, 1)
    ]
    assert [job.failed for job in jobs] == [True] * 4 + [False] * 2
    shown = console.file.getvalue()
    assert "2 of 6 runs are finished." in shown
    assert f"failed: loss=iot seed=0 runs={tmp_path}: the reason" in shown
    assert f"failed: loss=infonce seed=1 runs={tmp_path}: killed by signal 9" in shown


def test_wrong_words_stop_a_sweep_before_its_first_run(console, monkeypatch, tmp_path):
    monkeypatch.setattr(sweep_module.subprocess, "run", None)
    with pytest.raises(ConfigurationError, match="loss=foo: choose one of"):
        sweep(["loss=iot,foo", f"runs={tmp_path}"], console)
    with pytest.raises(ConfigurationError, match="los: no such setting"):
        sweep(["los=iot,foo", f"runs={tmp_path}"], console)


def test_a_job_of_a_sweep_is_a_process_that_leaves_a_finished_run(words, tiny, console):
    (job,) = sweep([*words, "training.epochs=1"], console)
    assert job == Job(job.words, 0)
    assert VISION.folder(tiny("training.epochs=1")).evaluation.exists()


def test_help_of_train_names_every_choice(capsys):
    from importlib.resources import files

    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    shown = capsys.readouterr().out.split()
    choices = [
        entry.name.removesuffix(".yaml")
        for group in ("data", "setting", "backbone", "scale")
        for entry in (files("tricouple.conf") / "train" / group).iterdir()
    ]
    for name in [*choices, *STARTS[Train].losses]:
        assert name in shown or f"{name};" in shown, name


def test_a_mistyped_word_is_answered_before_torch_is_imported():
    code = (
        "import sys; from tricouple import cli; code = cli.main(['train', 'loss=foo']); "
        "sys.exit(code + 10 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
