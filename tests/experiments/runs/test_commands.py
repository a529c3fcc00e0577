"""``tricouple train``, ``clip``, ``text`` and ``evaluate``: help, errors in one line, sweeps."""

import pickle
import subprocess
import sys
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path

import pytest

import tricouple_lab
from tricouple_lab import cli
from tricouple_lab.conf.schema import Clip, Text, Train
from tricouple_lab.conf.words import STARTS, ConfigurationError
from tricouple_lab.experiments.clip import CLIP
from tricouple_lab.experiments.runs import command as command_module
from tricouple_lab.experiments.runs.command import sweep
from tricouple_lab.experiments.text import TEXT
from tricouple_lab.experiments.vision import VISION

NOT_CHOICES = ("study", "data_at_scale", "backbone_at_scale", "loss_across")  # made by the groups


@pytest.mark.parametrize("start", STARTS.values(), ids=["train", "clip", "text"])
def test_help_names_every_choice(start, capsys):
    with pytest.raises(SystemExit):
        cli.main([start.name, "--help"])
    shown = {word.strip(";") for word in capsys.readouterr().out.split()}
    files = [path for path in start.folder.glob("*/*.yaml") if path.parent.name not in NOT_CHOICES]
    assert len(files) >= 10
    assert {*(path.stem for path in files), *start.losses} <= shown


@pytest.mark.parametrize("command", ["train", "clip", "text"])
def test_a_mistyped_word_is_answered_before_torch_is_imported(command):
    code = (
        f"import sys; from tricouple_lab import cli; code = cli.main(['{command}', 'loss=foo']); "
        "sys.exit(code + 10 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["train", "loss=foo"], "loss=foo: choose one of byol, dbot"),
        (["train", "loss=fused_gromov"], "loss=fused_gromov: choose one of byol, dbot, infonce"),
        (["train", "training.batch_size=9999"], "batch_size is 9999, but there are only"),
        (["train", "--study", "nothing"], "choose one of vision_cpu, vision_paper"),
        (["train", "--study", "vision_cpu", "seed=1"], "leave out seed=1"),
        (["train", "-m", "seed=0,1", "loss=iot,foo"], "loss=foo: choose one of"),
        (["clip", "loss=byol"], "loss=byol: choose one of dbot, dbot_published, fused_gromov"),
        (["clip", "--study", "vision_cpu"], "choose one of clip_cpu, clip_paper"),
        (["text", "loss=byol"], "loss=byol: choose one of dbot, infonce, invaspread"),
        (["text", "--study", "nothing"], "choose one of text_cpu"),
        (["evaluate", "nowhere"], "nowhere is not a run: it has no config.yaml"),
        (["evaluate", "evaluation.neighbours=3"], "name the folder of a run"),
        (["evaluate", "nowhere", "seed=3"], "seed=3: only evaluation.*"),
    ],
)
def test_user_errors_are_one_line_and_exit_with_2(given, complaint, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert complaint in refused(*given)


@pytest.mark.parametrize("kind", [Train, Clip, Text])
def test_a_sweep_runs_every_combination_and_reports_failures_at_the_end(
    kind, console, monkeypatch, tmp_path
):
    started = []

    def process(command, **_):
        started.append(command[3:6])
        code = {"loss=iot": 2, "loss=infonce": -9}.get(command[4], 0)
        return subprocess.CompletedProcess(command, code, stderr="a line\nthe reason\n")

    monkeypatch.setattr(command_module.subprocess, "run", process)
    jobs = sweep(["loss=iot,infonce,neg_mmiot", "seed=0,1", f"runs={tmp_path}"], console, kind)
    assert started == [
        [STARTS[kind].name, f"loss={loss}", f"seed={seed}"]
        for loss in ("iot", "infonce", "neg_mmiot")
        for seed in (0, 1)
    ]
    assert [job.code != 0 for job in jobs] == [True] * 4 + [False] * 2
    shown = console.file.getvalue()
    assert "2 of 6 runs are finished." in shown
    assert f"failed: loss=iot seed=0 runs={tmp_path}: the reason" in shown
    assert f"failed: loss=infonce seed=1 runs={tmp_path}: killed by signal 9" in shown


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["loss=iot,foo"], "loss=foo: choose one of"),
        (["data=digits,foo"], "data=foo: choose one of"),
        (["los=iot,foo"], "los: no such setting"),
    ],
)
def test_wrong_words_stop_a_sweep_before_its_first_run(words, complaint, console, monkeypatch):
    monkeypatch.setattr(command_module.subprocess, "run", None)
    with pytest.raises(ConfigurationError, match=complaint):
        sweep(words, console)


@pytest.mark.parametrize("kind", [VISION, CLIP, TEXT], ids=["vision", "clip", "text"])
def test_a_kind_of_run_can_go_to_the_workers_of_a_study(kind):
    assert pickle.loads(pickle.dumps(kind)).name == kind.name


# How many files one run goes through: to follow it, nobody should open the whole house.

PACKAGE = Path(tricouple_lab.__file__).parent
WORDS = [
    "data=digits", "setting=scl", "loss=neg_mmiot", "scale=smoke", "backbone.name=test_resnet",
    "data.train_size=200", "data.image_size=8", "training.epochs=1", "evaluation.probe_epochs=2",
    "trainer.accelerator=cpu", "progress=false",
]  # fmt: skip


def test_a_training_run_passes_at_most_25_files(tmp_path, capsys):
    seen = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_flags & CO_OPTIMIZED:  # functions, not bodies of classes
            seen.add(code.co_filename)

    assert cli.main(["train", *WORDS, f"runs={tmp_path / 'warm'}"]) == 0  # imports everything
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        assert cli.main(["train", *WORDS, f"runs={tmp_path / 'runs'}"]) == 0
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    walked = {
        str(Path(name).relative_to(PACKAGE)) for name in seen if Path(name).is_relative_to(PACKAGE)
    }
    assert {"cli.py", "experiments/runs/run.py", "experiments/vision.py"} <= walked
    assert len(walked - {"__init__.py"}) <= 25, sorted(walked)
