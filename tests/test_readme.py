"""The README, pasted top to bottom: every block runs, at smoke scale, in one session."""

import glob
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import torch

from image_files import write_classes
from tricouple_lab import cli

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)

# What makes a command small; settings that the README gives itself are left as they are.
QUICK = ["training.epochs=1", "training.batch_size=16", "trainer.accelerator=cpu", "logger=csv",
         "progress=false"]  # fmt: skip
SMALL = {
    "train": [*QUICK, "scale=smoke", "data.train_size=60", "data.test_size=40"],
    "clip": [*QUICK, "data.train_size=64", "data.validation_size=32", "data.test_size=32"],
    "text": QUICK,
}


def test_the_python_of_the_readme_runs_as_it_stands():
    session: dict[str, object] = {}
    python = [text for language, text in BLOCKS if language == "python"]
    assert python
    for text in python:
        exec(text, session)
    assert torch.isfinite(session["loss"])
    assert session["embeddings"].grad.shape == (64, 32)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.fixture
def reader(tmp_path, monkeypatch) -> Path:
    """An empty folder, but for some photographs."""
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "photos", {"cats": 20, "dogs": 20})
    return tmp_path


def test_the_commands_of_the_readme_run_one_after_the_other(reader, capsys):
    lines = [
        line for language, text in BLOCKS if language != "python" for line in text.splitlines()
    ]
    commands = [words for line in lines if (words := shlex.split(line, comments=True))]
    assert sum(words[0] == "tricouple" for words in commands) >= 3
    for words in commands:
        run(words)
    assert len(list(reader.glob("**/encoder.safetensors"))) >= 5


def run(words: list[str]) -> None:
    """Run a line of a shell, or see that it could be run."""
    if words[0] == "make":
        done = subprocess.run(
            ["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=False
        )
        assert done.returncode == 0, words
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        asked = re.findall(r"\[(.*)\]", words[-1])
        assert {name for text in asked for name in text.split(",")} <= {
            *extras["optional-dependencies"]
        }
    elif words[:2] != ["git", "clone"] and words[0] != "cd":
        assert words[0] == "tricouple", f"no way to try {words}"
        _, command, *more = words
        more = [glob.glob("runs/folder-*")[0] if word == "RUN" else word for word in more]
        own = {word.partition("=")[0] for word in more}
        small = [word for word in SMALL.get(command, []) if word.partition("=")[0] not in own]
        assert cli.main([command, *more, *small]) == 0, words
