"""Words of a command line: any name of a file is taken, a mistake gets a sentence, and at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from tricouple_lab import cli
from tricouple_lab.conf.compose import configure, override
from tricouple_lab.conf.schema import Clip, Train
from tricouple_lab.conf.words import ConfigurationError, check, spelt

NAMES = [
    "my photos", "accentué", "写真", "a=b", "a[/b]", "(1)", "x (copy)", "a,b", "{a: b}", "it's",
    'say "x"', "back\\slash", "ends\\", "\\'", "#1", "a:b", "$HOME", "100 %", "- -", "*", "1e3",
    "true", "[1,2]", "x'y'", " edge ",
]  # fmt: skip


def test_any_name_of_a_folder_can_be_given():
    plain = configure(["data=folder", "data.root=a, (b)=[/c] é"], Train)
    assert plain.data.root == "a, (b)=[/c] é"
    for name in NAMES:
        found = override(plain, [f"data.root={name}", f"runs=/tmp/{name}"])
        assert (found.data.root, found.runs) == (name, f"/tmp/{name}")


def test_names_of_files_and_columns_of_captions_can_be_anything():
    words = [
        "data=csv",
        "data.train=été 1.csv",
        "data.image_column=Bild (Name)",
        "data.separator=,",
    ]
    data = configure(words, Clip).data
    assert (data.train, data.image_column, data.separator) == ("été 1.csv", "Bild (Name)", ",")


def test_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/zoë k")
    words = ["data=folder", "data.root=~/pics, 1", "run=~", "runs=a~b", "backbone.weights=~/w.pt"]
    found = configure(words, Train)
    assert (found.data.root, found.run, found.runs) == ("/home/zoë k/pics, 1", "/home/zoë k", "a~b")
    assert found.backbone.weights == "/home/zoë k/w.pt"
    assert override(found, ["data.root=~/x [1]"]).data.root == "/home/zoë k/x [1]"


def test_null_and_quotes_mean_what_they_mean_to_hydra():
    assert configure(["run=null"], Train).run is None
    assert configure(["run='a b'"], Train).run == "a b"


def test_commas_part_values_in_a_sweep_alone():
    assert spelt(["runs=(a),c"], Train, several=True) == ["runs='(a)',c"]
    assert spelt(["runs=(a),c"], Train) == ["runs='(a),c'"]
    for word in ("seed=range(0,3)", "loss=choice(iot,dbot)", "loss=iot,dbot", "seed=0,1"):
        assert spelt([word], Train, several=True) == [word]


MISTAKES = {
    ("digits",): "digits: settings are name=value; did you mean data=digits?",
    ("smoke",): "did you mean scale=smoke?",
    ("seed",): "seed: settings are name=value, without spaces around =",
    ("data", "=", "digits"): "data: settings are name=value, without spaces around =",
    ("photos",): "photos: settings are name=value; for own images data=folder data.root=photos",
    ("data=./photos",): "choose one of cifar10, .*; for own images data=folder data.root=./photos",
    ("-1",): "-1: settings are name=value, such as data=cifar10",
    ("été=1",): "été=1: settings are name=value",
    ("+foo=1",): "foo: no such setting; the configuration has data, setting",
    ("++data.foo=1",): "data.foo: no such setting; data has",
    ("seed=é",): "'é' of type 'str' could not be converted to Integer",
    ("seed=[1",): r"'\[1' of type 'str' could not be converted to Integer",
    ("runs=a${b}",): "names with",
    ("runs=\udce9",): r"runs: '\\udce9' is no text in UTF-8: rename it",
    ("loss.temperature=0",): "loss.temperature must be finite and > 0, got 0",
    ("loss.temperature=hot",): "loss.temperature must be finite and > 0, got hot",
    ("loss.sharpness=-1",): "^loss.sharpness must be finite and > 0, got -1$",
    ("loss.sharpness=0",): "^loss.sharpness must be finite and > 0, got 0$",
    ("loss.epsilon=nan",): "loss.epsilon must be finite and > 0, got nan",
    (
        "loss.name=infonce",
    ): "tricouple.NegMMIOT is not the loss 'infonce': choose a loss by its word",
    ("loss._target_=os.system",): "os.system is not the loss 'neg_mmiot'",
    ("data=folder",): "data=folder needs data.root: the folder of images",
    ("data=folder", "data.root=gone"): "data.root=gone: .*/gone is not a folder",
    ("data=folder", "data.root=photos", "data.eval_root=notes.txt"): "data.eval_root=notes.txt",
    ("runs=notes.txt",): "runs=notes.txt: notes.txt is a file, and should be a folder",
    ("run=notes.txt/a/b",): "run=notes.txt/a/b: notes.txt is a file",
    ("trainer.accelerator=gpu",): "trainer.accelerator=gpu: PyTorch finds no such device here",
    ("training.epochs=0", "seed=1", "evaluation.part=all", "training.learning_rate=-1"): (
        r"^training.epochs must be at least 1, got 0; training.learning_rate must be finite and > "
        r"0, got -1.0; evaluation.part must be one of 'test', 'validation', got 'all'$"
    ),
    ("setting=ucl", "setting.views=1"): "setting.views is 1",
    ("training.batch_size=1",): "training.batch_size must be at least 2, got 1",
    ("evaluation.part=validation",): "needs data.validation_size above 0",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_told_in_a_sentence_about_what_was_typed(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Path("notes.txt").touch()
    with pytest.raises(ConfigurationError, match=MISTAKES[words]) as refused:
        check(configure(words, Train))
    assert not any(word in str(refused.value) for word in ("\n", "hydra", "Lexer", "EQUAL"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["data=csv"], "data=csv needs data.train: a file of captions"),
        (["data=csv", "data.root=gone"], "data.root=gone: .*/gone is not a folder"),
        (
            ["data=csv", "data.train=a.csv", "data.test=b.csv", "training.captions=two"],
            "training.captions must be .*; data.train=a.csv: there is no a.csv; data.test=b.csv",
        ),
        (["data=shards", "data.train=*.tar"], r"data.train=\*.tar: there is no \*.tar"),
    ],
)
def test_all_that_is_wrong_with_captions_is_said_at_once(words, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=complaint):
        check(configure(words, Clip))


HASTY = """
import sys
from tricouple_lab import cli
for words in (["train", "digits"], ["train", "training.epochs=0"], ["train", "data=folder"],
              ["clip", "data=csv"], ["train", "-m", "runs"], ["train", "loss.temperature=0"],
              ["evaluate", "nowhere"], ["evaluate", "runs/x", "seed=3"], ["train", "--study", "x"]):
    assert cli.main(words) == 2, words
heavy = {"torch", "lightning", "numpy", "PIL"} & set(sys.modules)
assert not heavy, heavy
"""


def test_mistakes_are_told_before_anything_heavy_is_imported():
    done = subprocess.run(
        [sys.executable, "-c", HASTY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: ") == 9


def test_misspelt_options_before_a_command_are_named(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--verison"])
    assert stopped.value.code == 2
    assert "unrecognized arguments: --verison" in capsys.readouterr().err


# --- tab completion ------------------------------------------------------------------------------

TAB = r"""
eval "$({python} -m tricouple_lab.cli --completion bash)"
for line in "$@"; do
    COMP_LINE=$line; COMP_POINT=${{#line}}; COMP_WORDS=($line); COMPREPLY=()
    _tricouple tricouple; echo "${{COMPREPLY[*]}}"
done
"""


def completed(*lines: str) -> list[set[str]]:
    """What bash offers at the end of each line."""
    script = TAB.format(python=sys.executable)
    done = subprocess.run(
        ["bash", "-c", script, "bash", *lines], capture_output=True, text=True, check=True
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_bash_completes_commands_options_groups_and_settings():
    lines = [
        "tricouple tr", "tricouple bench --qu", "tricouple train data=c", "tricouple clip data=c",
        "tricouple train training.epo", "tricouple train seed=0 loss=neg", "tricouple train --sh",
        "tricouple train data.root=pic", "tricouple report pic",
    ]  # fmt: skip
    # After an = bash replaces what follows it alone.
    assert completed(*lines) == [
        {"train"}, {"--quick"}, {"cifar10", "cifar100"}, {"coco", "csv"}, {"training.epochs="},
        {"neg_mmiot"}, {"--show"}, set(), set(),  # names of files are bash's own business
    ]  # fmt: skip


def test_zsh_gets_the_same_words(capsys):
    assert cli.main(["--completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef tricouple")
    assert {"data=digits", "train", "training.epochs=", "--show"} <= set(script.split())
