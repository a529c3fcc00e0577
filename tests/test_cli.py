"""The command line: quick to answer, clear when it refuses."""

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import tricouple
from tricouple_lab import cli


def run_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def test_help_answers_without_importing_torch():
    code = (
        "import sys\n"
        "from tricouple_lab.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
        "assert 'rich' not in sys.modules, 'rich was imported'\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "examples:" in done.stdout


def test_help_lists_every_command_of_the_table(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert re.search(rf"^\s+{name}\s", shown, re.MULTILINE)
        assert command.summary.split()[0] in shown


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_help_of_a_command_teaches_with_examples(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])
    assert stopped.value.code == 0
    assert f"examples:\n  tricouple {name}" in capsys.readouterr().out


def test_version_is_the_one_of_the_package(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == f"tricouple {tricouple.__version__}"


def test_citation_names_the_version_of_the_package():
    citation = Path(__file__).parents[1] / "CITATION.cff"
    assert f"\nversion: {tricouple.__version__}\n" in citation.read_text(encoding="utf-8")


def test_no_command_shows_the_help_and_counts_as_wrong_usage(capsys):
    assert cli.main([]) == 2
    assert "usage: tricouple" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["fly"], "invalid choice: 'fly'"),
        (["demo", "--steps", "0"], "0 is too small: use 1 or more"),
        (["synthetic", "--temperature", "nan"], "'nan' is not a positive number"),
        (["synthetic", "--epsilon", "-1"], "'-1' is not a positive number"),
        (["synthetic", "--epsilon", "-1e-3"], "'-1e-3' is not a positive number"),
        (["synthetic", "--classes", "10,1"], "1 is too small: use 2 or more"),
        (["demo", "--classes", "ten"], "'ten' is not an integer"),
        (["bench", "--sizes", "64,3"], "3 is too small: use 16 or more"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(words, complaint, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["demo", "--classes", "102"], "the means of 102 classes need 101 or more"),
        (["demo", "--out", "file.txt/demo"], "cannot write file.txt/demo"),
        (["bench", "--read", "missing.json"], "cannot read missing.json: No such file"),
        (["bench", "--out", "file.txt/bench.json"], "cannot write file.txt/bench.json"),
        (["bench", "--read", "file.txt"], "cannot read file.txt: not the JSON of a benchmark"),
        (["bench", "--readme", "file.txt"], "the markers <!-- bench --> and <!-- /bench -->"),
    ],
)
def test_user_errors_are_one_line_without_traceback(
    words, complaint, refused, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("file.txt").write_text("just text")
    assert complaint in refused(*words)


BARE = """
import importlib.abc, sys

class Torch(importlib.abc.MetaPathFinder):  # a machine with torch and nothing else
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {extras}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Torch())
from tricouple_lab import cli

for command in cli.COMMANDS:
    try:
        cli.main([command, "--help"])
    except SystemExit as stopped:
        assert stopped.code == 0, command
    # What it does needs more, and says so.
    assert cli.main([command, *{words}.get(command, [])]) == 2, command
"""
EXTRAS = {
    "rich", "hydra", "omegaconf", "yaml", "lightning", "numpy", "scipy", "sklearn", "PIL", "timm",
    "plotly", "matplotlib", "torchvision", "open_clip", "jax", "ott", "ot", "tensorboard",
    "pytorch_metric_learning",
}  # fmt: skip


def test_help_needs_torch_alone_and_a_missing_extra_is_named_as_a_clone_installs_it(tmp_path):
    (tmp_path / "config.yaml").touch()  # a run, at first sight
    words = {"evaluate": ["."], "report": ["runs"], "bench": ["--quick"], "embed": ["a", "b"]}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BARE.format(extras=EXTRAS, words=words)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, command in cli.COMMANDS.items():
        assert f"examples:\n  tricouple {name}" in done.stdout
        wanted = rf"tricouple {name}: error: \w+ is missing: pip install '\.\[{command.extra}\]'"
        assert re.search(wanted, done.stderr), (name, done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_interrupt_exits_with_130(capsys, monkeypatch):
    from tricouple_lab.experiments.synthetic import DEMO

    monkeypatch.setattr(type(DEMO), "run", Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == "interrupted: the same command starts again\n"


PRESSED_TWICE = """
import os, signal, sys
from tricouple_lab import cli

def press(*_):
    os.kill(os.getpid(), signal.SIGINT)

def run(arguments):
    try:
        press()
    except KeyboardInterrupt:
        pass
    raise {error}  # what was made of it

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs of a shell may begin without
cli._main = run
code = cli.main()
press()
sys.exit(code)
"""


@pytest.mark.parametrize("error", ["RecursionError", "KeyboardInterrupt"])
def test_ctrl_c_counts_from_the_press_and_once(error):
    done = run_python("-c", PRESSED_TWICE.replace("{error}", error))
    assert done.stderr == "interrupted: the same command starts again\n"
    assert done.returncode == 130


def test_ctrl_c_in_code_that_was_text_ends_with_our_code_too(tmp_path, monkeypatch):
    """As in the midst of a dataclass: Python would end by the signal."""
    text = "from tricouple_lab import cli\ncli._main = lambda _: exec('raise KeyboardInterrupt')\n"
    (tmp_path / "pressed.py").write_text(text + "raise SystemExit(cli.main())")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    done = run_python("-m", "pressed")
    assert (done.returncode, done.stderr) == (130, "interrupted: the same command starts again\n")


def test_ctrl_c_that_became_an_error_of_ours_is_an_interrupt(capsys, monkeypatch):
    from tricouple_lab.experiments.synthetic import DEMO

    def failing(*_):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise cli.CommandError("cannot read x") from error

    monkeypatch.setattr(type(DEMO), "run", failing)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == "interrupted: the same command starts again\n"


def test_installed_script_runs_the_same_main():
    done = run_python("-m", "tricouple_lab.cli", "--version")
    assert done.returncode == 0
    assert done.stdout.strip() == f"tricouple {tricouple.__version__}"
