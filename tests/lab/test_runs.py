"""What a run promises: its files, its identity, continuing, measuring again, errors."""

import inspect
import json
import multiprocessing
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from tiny_task import Evil, Tiny, tiny, trained
from tricouple_lab import cli, files
from tricouple_lab.cli import main
from tricouple_lab.config.compose import compose
from tricouple_lab.names import UserError
from tricouple_lab.runs import execute as runs
from tricouple_lab.runs.execute import execute
from tricouple_lab.runs.folder import Record, RunFolder, read_arrays, read_config, read_records
from tricouple_lab.tasks.images import Images

NUMBERS = ("history.csv", "encoder.safetensors", "best.safetensors")


def test_a_run_has_its_files_and_each_step_is_taken_once(tmp_path):
    task = Tiny()
    record, said = trained(tmp_path, "evaluation.figures=true", task=task)
    assert [call for call in task.calls if call in ("load", "build")] == ["load", "build"]
    assert [call for call in task.calls if "test" in call] == ["evaluate test True"] * 2
    assert task.calls.count("evaluate validation False") == 5
    expected = {
        "config.yaml", "history.csv", "encoder.safetensors", "best.safetensors", "metrics.json",
        "examples.npz", "report.html",
    }  # fmt: skip
    assert {name for name in os.listdir(tmp_path) if not name.startswith(".")} == expected
    assert Record.read(tmp_path / "metrics.json") == record
    assert read_arrays(tmp_path)["embedding"].shape == (64, 4)
    assert (record.steps, len(record.curves), record.curves[0]["loss"]) == (12, 5, None)
    assert record.chance[task.metric] < record.before[task.metric] < record.after[task.metric]
    assert set(record.per_class) == {"north", "east", "south", "west"}
    assert "12 steps of 32 samples" in said
    assert "few steps to learn from (12)" in said
    line = r"epoch   2/4  step     6/12  loss +\d\.\d{4}  validation embedding/nearest_mean +\d"
    assert re.search(line, said)


def test_the_same_command_returns_the_record_and_restart_trains_again(tmp_path):
    first, _ = trained(tmp_path)
    again = Tiny()
    second, said = trained(tmp_path, task=again)
    assert (again.calls, first) == (["load"], second)
    assert "has finished before" in said
    (tmp_path / "notes.txt").write_text("mine")
    third, _ = trained(tmp_path, restart=True)
    assert third.curves == first.curves
    assert third.provenance["date"] >= first.provenance["date"]
    assert (tmp_path / "notes.txt").exists()


def test_other_evaluation_settings_measure_a_finished_run_without_training(tmp_path):
    first, _ = trained(tmp_path)
    written = (tmp_path / "encoder.safetensors").stat().st_mtime_ns
    task = Tiny()
    second, said = trained(tmp_path, "evaluation.split=validation", task=task)
    assert "measured again" in said
    assert [call for call in task.calls if "evaluate" in call] == ["evaluate validation True"] * 2
    assert (tmp_path / "encoder.safetensors").stat().st_mtime_ns == written
    assert second.after[task.metric] == pytest.approx(first.validation)
    assert (second.curves, second.seconds) == (first.curves, first.seconds)
    assert Record.read(tmp_path / "metrics.json") == second


def test_the_identity_is_settings_and_data_but_not_places_speed_or_measurements(tmp_path):
    def of(*words, digest="d"):
        return RunFolder.of("mixture", tiny("", *words), digest)

    same = ("runs=elsewhere", "evaluation.split=validation", "evaluation.knn_k=3",
            "trainer.devices=2", "logger=none", "training.keep_checkpoint=true")  # fmt: skip
    assert {of(word).identity for word in same} == {of().identity}
    others = ("seed=1", "loss=iot", "loss.sharpness=3", "trainer.gradient_clip_val=1")
    different = [of(), of(digest="e"), *(of(word) for word in others)]
    assert len({folder.identity for folder in different}) == 6
    name = of("loss.sharpness=3", "seed=1").path.name
    assert re.fullmatch(r"mixture-neg_mmiot-c3-seed1-[0-9a-f]{8}", name)


def test_a_folder_of_another_run_is_refused_and_changed_data_are_another_run(tmp_path):
    first, _ = trained("", f"runs={tmp_path}")
    changed, _ = trained("", f"runs={tmp_path}", task=Tiny(noise=0.1))
    assert first.id != changed.id
    with pytest.raises(UserError, match="holds a run of other settings or data"):
        trained(tmp_path / first.id, "seed=1")
    trained(tmp_path / first.id, "seed=1", "training.epochs=1", restart=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("mine")
    with pytest.raises(UserError, match=r"holds report\.html but no run"):
        trained(tmp_path / "mine")


DIGITS = (
    "data=digits", "scale=smoke", "data.train_size=200", "training.epochs=2", "backbone.width=8",
    "logger=csv", "progress=false",
)  # fmt: skip


ONCE = (
    "compose.compose", "execute.execute", "execute.check", "images.Images.load", "sources.read",
    "folder.RunFolder.of", "folder.RunFolder.check", "folder.RunFolder.record", "execute.build",
    "images.Images.build", "backbones.network", "trainer.run_trainer", "files.provenance",
)  # fmt: skip


def test_train_prints_epochs_and_scores_in_16_files_and_nothing_is_done_twice(tmp_path, capsys):
    files, calls = set(), Counter()

    def note(frame, event, _):
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        own = str(path).startswith(str(Path(cli.__file__).parent))
        if own and event == "call" and code.co_flags & inspect.CO_OPTIMIZED:  # no body of a class
            files.add(path)
            calls[f"{path.stem}.{code.co_qualname}"] += 1

    sys.setprofile(note)
    try:
        assert main(["train", *DIGITS, f"run={tmp_path}"]) == 0
    finally:
        sys.setprofile(None)
    assert len(files) <= 16, sorted(files)  # with the template of the page
    assert {name: calls[name] for name in ONCE} == dict.fromkeys(ONCE, 1)
    said = capsys.readouterr().out
    assert re.search("epoch   2/2 .*knn.*chance.*before training.*after training", said, re.DOTALL)


class End(Callback):
    """Does something in the second step of the second epoch, or at the end of training."""

    def __init__(self, action, at_end=False):
        self.action, self.at_end = action, at_end

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if (trainer.current_epoch, index) == (1, 1) and not self.at_end:
            self.action()

    def teardown(self, trainer, module, stage):
        if self.at_end:
            self.action()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def exit_code(function, *args, **options):
    process = multiprocessing.get_context("fork").Process(
        target=function, args=args, kwargs=options
    )
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("at_end", [False, True], ids=["in epoch 2", "before the evaluation"])
def test_a_killed_run_continues_to_the_same_bytes(tmp_path, at_end):
    code = exit_code(trained, tmp_path / "killed", callbacks=[End(kill, at_end)])
    assert code == -signal.SIGKILL
    assert (tmp_path / "killed" / "last.ckpt").exists()
    assert not (tmp_path / "killed" / "metrics.json").exists()
    record, said = trained(tmp_path / "killed")
    assert said.count("epoch ") == (0 if at_end else 3)
    expected, _ = trained(tmp_path / "whole")
    for name in NUMBERS:
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (record.after, record.curves) == (expected.after, expected.curves)
    assert not (tmp_path / "killed" / "last.ckpt").exists()


def test_a_killed_run_on_images_continues_to_the_same_bytes(tmp_path):
    killed, whole = (compose("images", [*DIGITS, f"run={tmp_path / n}"]) for n in ("a", "b"))
    assert exit_code(execute, Images(), killed, callbacks=[End(kill)]) == -signal.SIGKILL
    execute(Images(), killed)
    execute(Images(), whole)
    for name in NUMBERS:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_ctrl_c_says_how_to_continue_and_resume_needs_only_the_folder(tmp_path, monkeypatch):
    interrupt = End(lambda: signal.raise_signal(signal.SIGINT))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=f"train --resume {re.escape(str(tmp_path))}"):
        trained(tmp_path, callbacks=[interrupt])
    assert signal.getsignal(signal.SIGINT) is handler
    monkeypatch.setattr(runs, "task_of", lambda name: Tiny())
    lines = []
    record = runs.resume(tmp_path, ["logger=none"], say=lines.append)
    assert [row["epoch"] for row in record.curves] == [0, 1, 2, 3, 4]
    assert "epoch   2/4" in "\n".join(lines)
    assert "epoch   1/4" not in "\n".join(lines)


def test_a_second_process_is_refused(tmp_path):
    with (
        files.locked(tmp_path),
        pytest.raises(UserError, match="another process is training this run"),
    ):
        trained(tmp_path)


def test_batches_are_capped_to_the_data_and_the_cap_is_printed(tmp_path):
    _, said = trained(tmp_path, task=Tiny(n_train=20))
    assert "a batch has 20 samples, all there are" in said
    with pytest.raises(UserError, match="3 training samples: at least 4"):
        trained(tmp_path / "other", task=Tiny(n_train=3))


def test_without_validation_data_there_is_no_best_epoch(tmp_path):
    record, said = trained(tmp_path, task=Tiny(validation=False))
    assert record.validation is None
    assert "validation" not in said.split("epoch   1/4")[1].split("page:")[0]
    assert not (tmp_path / "best.safetensors").exists()
    with pytest.raises(UserError, match=r"evaluation\.split=validation: these data have no"):
        trained(tmp_path, "evaluation.split=validation", task=Tiny(validation=False))


def test_epochs_between_measurements_have_a_row_with_the_loss(tmp_path):
    record, _ = trained(tmp_path, "evaluation.every=3")
    measured = [row["embedding/nearest_mean"] is not None for row in record.curves]
    assert measured == [True, False, False, True, True]
    assert all(row["loss"] > 0 for row in record.curves[1:])


def test_collapsed_embeddings_are_said(tmp_path):
    def collapsed(model):
        torch.nn.init.zeros_(model.encoder[-1].weight)
        return model

    words = ("training.learning_rate=1e-12", "training.epochs=1")
    _, said = trained(tmp_path, *words, task=Tiny(change_model=collapsed))
    assert "have collapsed: the median cosine" in said


MISTAKES = {
    "training.batch_size=3": "at least 4",
    "training.epochs=0": "at least 1",
    "training.learning_rate=0": "above 0",
    "evaluation.every=0": "at least 1",
    "trainer.max_steps=3": "set training.epochs",
    "trainer.acelerator=cpu": "accelerator",
    "trainer.precision=16-true": "bf16-mixed",
    "trainer.strategy=fsdp": "ddp_fork",
    "trainer.limit_train_batches=0": "nothing would be trained",
    "trainer.devices=many": "trainer.devices=many",
    "logger=tensorbord": "csv, tensorboard, wandb, mlflow",
    "logger=no_such_package.Logger": "pip install no_such_package",
    "logger=collections.ChainMap": "is not a logger of Lightning",
    "loss.sharpnes=3": "sharpness",
}


@pytest.mark.parametrize(("word", "sentence"), MISTAKES.items())
def test_a_mistake_is_one_sentence(tmp_path, word, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        trained(tmp_path, word)
    assert "\n" not in str(error.value)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    def diverging(found, model, batch, step):
        return found * (float("nan") if step.number == 4 else 1.0)

    with pytest.raises(UserError, match=r"the loss is nan in epoch 2, step 5: lower training"):
        trained(tmp_path, task=Tiny(change_loss=diverging))


def test_a_place_that_cannot_be_written_is_one_line_and_exit_code_1(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["train", *DIGITS, f"run={tmp_path / 'file' / 'run'}"]) == 1
    line = rf"error: {re.escape(str(tmp_path))}.*: cannot be written \(Not a directory.*\n"
    assert re.fullmatch(line, capsys.readouterr().err)


@pytest.mark.parametrize("limit", [1_000, 5_000], ids=["config", "checkpoint"])
def test_a_full_disk_is_one_sentence_and_nothing_is_lost(tmp_path, limit):
    trained(tmp_path / "whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError, match="cannot be written") as error:
            trained(tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert not [name for name in os.listdir(tmp_path / "run") if name.endswith(".part")]
    trained(tmp_path / "run")
    for name in NUMBERS:
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_damaged_or_hostile_checkpoint_is_refused_without_running_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exit_code(trained, tmp_path / "run", callbacks=[End(kill)])
    checkpoint = tmp_path / "run" / "last.ckpt"
    whole = checkpoint.read_bytes()
    torch.save({"model": Evil()}, tmp_path / "evil.ckpt")
    damaged = (
        *(whole[: len(whole) // 2], whole.replace(b"rows", b"sowr"), b"", b"no checkpoint"),
        pickle.dumps(Evil(), protocol=2),
    )
    contents = dict.fromkeys(damaged, "it is damaged") | {
        (tmp_path / "evil.ckpt").read_bytes(): "it holds more than tensors and plain values"
    }
    for content, reason in contents.items():
        checkpoint.write_bytes(content)
        with pytest.raises(
            UserError, match=rf"last\.ckpt: cannot be continued, {reason}.*--restart"
        ) as error:
            trained(tmp_path / "run")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "evil").exists()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    exit_code(trained, tmp_path, callbacks=[End(kill)])
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    checkpoint["state_dict"].pop("model.encoder.0.weight")
    torch.save(checkpoint, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match="not a checkpoint of this model"):
        trained(tmp_path)


HOSTILE = {
    "task: images\ndata: !!python/object/apply:os.system ['touch evil']": "not the configuration",
    "task: nonsense": "not the configuration",
    "[1, 2]": "not the configuration",
    "task: mixture\ntraining: {epochs: many}": "not the configuration",
    "task: mixture\nloss: {name: os.system}": "is unknown",
    "task: mixture\nunknown: 1": "not the configuration",
}


@pytest.mark.parametrize(("text", "sentence"), HOSTILE.items())
def test_a_configuration_is_data(tmp_path, monkeypatch, text, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=sentence) as error:
        read_config(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "evil").exists()


def test_a_configuration_imports_no_logger_and_refers_to_nothing(tmp_path):
    config = tiny(tmp_path, "logger=csv,evil.Logger", "runs=${oc.env:HOME} [é]")
    RunFolder(tmp_path, "identity").begin(config)
    found = read_config(tmp_path, ["seed=3"])
    assert (found.logger, found.runs, found.seed) == (["csv"], "${oc.env:HOME} [é]", 3)


def test_a_damaged_record_is_one_sentence(tmp_path):
    record, _ = trained(tmp_path / "run")
    (tmp_path / "runs.jsonl").write_text(record.to_json() + "\n{}\n")
    with pytest.raises(UserError, match="line 2: not the record of a run"):
        read_records(tmp_path)
    (tmp_path / "run" / "metrics.json").write_text("{")
    with pytest.raises(UserError, match=r"metrics\.json: damaged; delete it"):
        trained(tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    assert trained(tmp_path / "run")[0].after == record.after


def test_a_record_is_a_line_and_knows_where_it_comes_from(tmp_path, monkeypatch):
    files.commit.cache_clear()
    calls = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: calls.append(a) or run(*a, **k))
    record, _ = trained(tmp_path / "a", origin={"plan": "sweep"})
    trained(tmp_path / "b", "seed=1")
    assert len(calls) <= 1  # git
    assert record.provenance["plan"] == "sweep"
    assert {"date", "command", "commit", "python", "versions"} <= record.provenance.keys()
    line = replace(record, stage="choose").to_json()
    assert "\n" not in line
    assert json.loads(line)["stage"] == "choose"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "runs.jsonl").write_text(line + "\n")
    assert read_records(tmp_path / "c") == [replace(record, stage="choose")]
    with pytest.raises(UserError, match="no finished run here"):
        read_records(tmp_path / "d")
