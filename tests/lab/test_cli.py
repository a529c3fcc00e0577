"""The command: its table, its help, its exit codes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from processes import python
from tricouple_lab import cli
from tricouple_lab.names import UserError


def test_help_lists_every_command_within_half_a_second():
    times = []
    for _ in range(3):
        began = time.perf_counter()
        done = python("-m", "tricouple_lab", "--help")
        times.append(time.perf_counter() - began)
    for name in cli.COMMANDS:
        assert f"\n    {name}" in done.stdout
    assert min(times) < 0.5
    python("-m", "tricouple_lab", code=2)
    assert "tricouple 0." in python("-m", "tricouple_lab", "--version").stdout


@pytest.mark.parametrize("name", ["train", "clip", "text", "evaluate", "embed", "report", "demo"])
def test_each_command_has_help_without_torch(name):
    code = (
        f"import sys; from tricouple_lab.cli import main\ntry: main(['{name}', '--help'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = python("-c", code)
    assert done.stdout.endswith("0 False\n")
    assert f"usage: tricouple {name}" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "trian: no such command (nearest: train)"),
        (["train", "--epochs", "3"], "--epochs: settings have no dashes; write training.epochs="),
        (["train", "--restrat"], "--restrat: no such option (nearest: --restart"),
        (["train", "-m", "--choose", "loss.sharpness=a"], "--choose loss.sharpness=a: expected"),
        (["train", "-m", "--launcher", "condor"], "--launcher condor: choices are submitit"),
        (["train", "--resume", "nowhere"], "nowhere: not the folder of a run"),
        (["evaluate", "nowhere"], "nowhere: not the folder of a run"),
        (["report", "nowhere"], "nowhere: no finished run here"),
        (["embed", "nowhere", "there"], "there: no such folder or file"),
        (["embed", "nowhere", "there", "--out", "a.txt"], "--out a.txt: expected a name"),
        (["demo", "--classes", "few"], "--classes few: expected whole numbers"),
        (["train", "trainer.max_stepz=2"], "trainer.max_stepz: Trainer has no such argument"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


def test_folders_of_the_clone_need_a_clone(monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "a" / "b" / "cli.py"))
    with pytest.raises(UserError, match=r"tricouple verify is the folder theory/ of a clone"):
        cli.dispatch(["verify"])


def test_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    call = [sys.executable, "-m", "tricouple_lab", "--help"]
    done = subprocess.run(call, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_ctrl_c_is_one_line_and_exit_code_130(kind, monkeypatch, capsys):
    def pressed(*_):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise kind("the same command continues") from None  # a library may change its type

    monkeypatch.setattr(cli, "dispatch", pressed)
    assert cli.main(["train"]) == 130
    assert capsys.readouterr().err == "interrupted: the same command continues\n"
