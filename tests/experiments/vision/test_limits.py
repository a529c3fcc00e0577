"""Runs cut short continue; flags that cannot work are refused before anything is written."""

from dataclasses import replace

import pytest

from experiments.conftest import rows
from tricouple_lab.conf.schema import Train
from tricouple_lab.experiments.runs.folder import RunError
from tricouple_lab.experiments.runs.identity import digest
from tricouple_lab.experiments.runs.run import run_once
from tricouple_lab.experiments.vision import VISION
from tricouple_lab.report.read import read_study


@pytest.fixture
def train(tiny, tmp_path, console):
    """Do a tiny run of three epochs of three steps."""

    def go(*words: str, runs: str = "runs"):
        config = tiny("training.epochs=3", f"runs={tmp_path / runs}", *words)
        return run_once(VISION, config, console)

    return go


def test_a_run_that_is_cut_short_continues_to_the_same_numbers(train, console):
    words = ["loss=byol", "loss.hidden=16"]  # whose momentum knows where the end is
    whole = train(*words, runs="whole")
    first = train(*words, "+trainer.max_steps=4")  # into the second epoch
    assert first.cut_short
    assert "Stopped after 1 of 3 epochs: the same command continues" in console.file.getvalue()
    assert first.folder.checkpoint.exists()
    assert not first.folder.encoder.exists()
    (run,) = read_study(first.folder.path).runs
    assert (run.status, run.steps) == ("partial", 3)
    assert train(*words, "+trainer.max_steps=4").cut_short
    last = train(*words)
    assert not last.cut_short
    assert last.folder == first.folder
    assert rows(last.folder.path) == rows(whole.folder.path)
    assert last.evaluation["accuracy"] == whole.evaluation["accuracy"]
    assert not last.folder.checkpoint.exists()


def test_time_is_given_to_each_command_anew(train):
    with pytest.raises(RunError, match=r"no epoch was finished .* trainer\.max_time"):
        train("+trainer.max_time={seconds:0}")
    assert train("+trainer.max_time={minutes:9}").evaluation["epoch"] == 3


def test_processes_that_are_forked_train_as_well(train):
    finished = train("trainer.strategy=ddp_fork", "trainer.devices=2", "training.batch_size=50")
    assert finished.evaluation["epoch"] == 3


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_other_dtypes_train(train, precision):
    finished = train(f"trainer.precision={precision}", "training.epochs=1")
    assert finished.evaluation["accuracy"]["penultimate/knn"] > 0.1


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("+trainer.limit_train_batches=0", "nothing would be trained"),
        ("+trainer.max_steps=0", "trainer.max_steps is 0: use 1 or more"),
        ("trainer.precision=16-true", "use 16-mixed, bf16-mixed or bf16-true"),
        ("trainer.precision=17-true", "trainer.precision=17-true"),
        ("trainer.devices=0", "trainer.devices=0"),
        ("trainer.devices=-1", "trainer.devices=-1"),
        ("trainer.accelerator=gpu", "trainer.accelerator=gpu"),
        ("trainer.strategy=nothing", "trainer.strategy=nothing"),
        ("+trainer.enable_checkpointing=false", "continues from its checkpoint"),
        ("+trainer.fast_dev_run=true", "set training.epochs=1"),
        ("+trainer.enable_model_summary=true", "runs bring their own"),
        ("+trainer.max_time=never", "trainer.max_time=never"),
    ],
)
def test_flags_that_cannot_work_are_refused_before_anything_is_written(
    train, tmp_path, word, complaint
):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the message is checked below
        train(word)
    assert complaint in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_flags_that_change_no_number_do_not_make_another_run(tiny):
    config = tiny()

    def of(**flags):
        return digest(replace(config, trainer=config.trainer | flags))

    same = ({"accelerator": "auto"}, {"log_every_n_steps": 1}, {"strategy": "ddp"},
            {"max_time": "00:01:00:00"}, {"profiler": "simple"}, {"devices": 2},
            {"num_nodes": 4})  # fmt: skip
    assert {of(**flags) for flags in same} == {of()}
    others = ({}, {"precision": "64-true"}, {"gradient_clip_val": 1})
    assert len({of(**flags) for flags in others}) == 3


def test_weights_that_an_earlier_version_took_for_finished_are_named(train):
    folder = train("+trainer.max_steps=4").folder
    config = folder.read(Train)
    folder.write_trained(folder.read_trained(config))
    folder.checkpoint.unlink()
    with pytest.raises(RunError, match=r"encoder\.pt has 1 of 3 epochs, and an earlier version"):
        train()
