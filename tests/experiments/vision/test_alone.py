"""One process at a time works on a run; Ctrl-C ends it calmly, whatever it falls into."""

import os
import signal
import threading
import time

import pytest
import torch

from tricouple_lab import cli, files
from tricouple_lab.experiments.runs.run import run_once
from tricouple_lab.experiments.vision import VISION
from tricouple_lab.files import locked, remove_debris, save_tensors, write_text
from tricouple_lab.training.module import LossTraining


def test_a_second_process_waits_for_the_first_and_then_finds_its_work(tiny, console):
    folder = run_once(VISION, tiny(), console).folder
    evaluation = folder.evaluation.read_bytes()
    folder.evaluation.unlink()
    held = threading.Event()

    def first():  # a lock of another opening of the file is as good as one of another process
        with locked(folder.path / ".lock", print):
            held.set()
            while "waiting for it" not in console.file.getvalue():
                threading.Event().wait(0.01)
            folder.evaluation.write_bytes(evaluation)

    other = threading.Thread(target=first)
    other.start()
    assert held.wait(60)
    assert run_once(VISION, tiny(), console).skipped
    other.join()
    assert f"process {os.getpid()} on" in console.file.getvalue()
    assert not (folder.path / ".lock").exists()


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path):
    path, order = tmp_path / "lock", []

    def second():
        with locked(path, lambda who: order.append("waits")):
            order.append("second")
            assert path.exists()

    with locked(path, order.append):
        thread = threading.Thread(target=second)
        thread.start()
        while "waits" not in order:
            threading.Event().wait(0.01)
        order.append("first")
    thread.join()
    assert order == ["waits", "first", "second"]
    assert not path.exists()


def test_what_killed_writers_left_is_removed_when_a_run_starts(tiny, console, monkeypatch):
    folder = VISION.folder(tiny()).path
    folder.mkdir(parents=True)
    left = [files.beside(folder / "last.ckpt"), folder / ".last.ckpt.4711"]
    for path in left:
        path.write_bytes(b"half")
    (folder / ".mine").write_text("")
    remove_debris(folder)
    assert [path.name for path in folder.iterdir()] == [".mine"]
    left[0].write_bytes(b"half")
    run_once(VISION, tiny(), console)
    assert not left[0].exists()


def test_temporary_files_of_two_machines_have_two_names(tmp_path, monkeypatch):
    names = set()
    for host in ("one", "two"):
        monkeypatch.setattr(files.socket, "gethostname", lambda host=host: host)
        names.add(files.beside(tmp_path / "last.ckpt"))
    assert len(names) == 2


class Interrupted:
    """A file into whose writing Ctrl-C falls."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        raise KeyboardInterrupt

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_an_interrupt_in_a_checkpoint_is_an_interrupt(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    write_text(path, "before")
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda what, file: save(what, Interrupted(file)))
    with pytest.raises(KeyboardInterrupt):
        save_tensors(path, {"weights": torch.ones(1000)})
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["last.ckpt"]


class Interrupting:
    """An object in whose end Ctrl-C falls, where Python would forget it."""

    nothing: None

    def __init__(self):
        self.nothing = None

    def __del__(self):
        raise KeyboardInterrupt


@pytest.fixture
def hears_ctrl_c():
    """Jobs of a shell may begin without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("place", ["a step", "a checkpoint", "a library", "a destructor"])
def test_ctrl_c_ends_in_one_line_that_says_how_to_go_on(words, capsys, monkeypatch, place):
    def interrupted(*_):
        raise KeyboardInterrupt

    def swallowed(*_):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RuntimeError("[enforce fail at inline_container.cc:595]")  # noqa: B904

    def dropped(*_):
        del Interrupting().nothing
        for _ in range(1000):
            time.sleep(0.01)

    with monkeypatch.context() as context:
        if place == "a step":
            context.setattr(LossTraining, "loss", interrupted)
        elif place == "a destructor":
            context.setattr(LossTraining, "loss", dropped)
        elif place == "a library":
            context.setattr(LossTraining, "loss", swallowed)
        else:
            save = torch.save
            context.setattr(torch, "save", lambda what, file: save(what, Interrupted(file)))
        assert cli.main(["train", *words]) == 130
    told = "interrupted: the same command continues the run from its last finished epoch\n"
    assert capsys.readouterr().err == told
