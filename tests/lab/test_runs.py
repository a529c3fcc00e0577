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

import tricouple_lab
from tiny_task import Tiny, tiny
from tricouple_lab import files
from tricouple_lab.cli import main
from tricouple_lab.config.compose import compose
from tricouple_lab.names import UserError
from tricouple_lab.runs import execute as runs
from tricouple_lab.runs.execute import execute
from tricouple_lab.runs.folder import Record, RunFolder, read_arrays, read_config, read_records
from tricouple_lab.tasks.images import Images

NUMBERS = ("history.csv", "encoder.safetensors", "best.safetensors")


def quietly(task, config, **options):
    lines = []
    record = execute(task, config, say=lines.append, **options)
    return record, "\n".join(lines)


def test_a_run_has_its_files_and_each_step_is_taken_once(tmp_path):
    task = Tiny()
    record, said = quietly(task, tiny(tmp_path, "evaluation.figures=true"))
    assert task.calls[:2] == ["load", "build"]
    assert task.calls.count("load") == task.calls.count("build") == 1
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
    first, _ = quietly(Tiny(), tiny(tmp_path))
    again = Tiny()
    second, said = quietly(again, tiny(tmp_path))
    assert (again.calls, first) == (["load"], second)
    assert "has finished before" in said
    (tmp_path / "notes.txt").write_text("mine")
    third, _ = quietly(Tiny(), tiny(tmp_path), restart=True)
    assert third.curves == first.curves
    assert third.provenance["date"] >= first.provenance["date"]
    assert (tmp_path / "notes.txt").exists()


def test_other_evaluation_settings_measure_a_finished_run_without_training(tmp_path):
    first, _ = quietly(Tiny(), tiny(tmp_path))
    written = (tmp_path / "encoder.safetensors").stat().st_mtime_ns
    task = Tiny()
    second, said = quietly(task, tiny(tmp_path, "evaluation.split=validation"))
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
    first, _ = quietly(Tiny(), tiny("", f"runs={tmp_path}"))
    changed, _ = quietly(Tiny(noise=0.1), tiny("", f"runs={tmp_path}"))
    assert first.id != changed.id
    with pytest.raises(UserError, match="holds a run of other settings or data"):
        quietly(Tiny(), tiny(tmp_path / first.id, "seed=1"))
    quietly(Tiny(), tiny(tmp_path / first.id, "seed=1", "training.epochs=1"), restart=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("mine")
    with pytest.raises(UserError, match=r"holds report\.html but no run"):
        quietly(Tiny(), tiny(tmp_path / "mine"))


DIGITS = (
    "data=digits", "scale=smoke", "data.train_size=200", "training.epochs=2", "backbone.width=8",
    "logger=csv", "progress=false",
)  # fmt: skip
ONCE = [
    ("compose.py", "compose"), ("execute.py", "check"), ("images.py", "load"),
    ("images.py", "build"), ("folder.py", "of"), ("trainer.py", "make_trainer"),
]  # fmt: skip


def test_train_enters_few_files_and_takes_each_step_once(tmp_path, capsys):
    entered, package = Counter(), f"{Path(tricouple_lab.__file__).parent}/"

    def profile(frame, event, argument):
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # not the body of a module or class
        if event == "call" and is_function and code.co_filename.startswith(package):
            entered[Path(code.co_filename), code.co_name] += 1

    sys.setprofile(profile)
    try:
        assert main(["train", *DIGITS, f"run={tmp_path}"]) == 0
    finally:
        sys.setprofile(None)
    found = sorted({file.name for file, _ in entered if file.suffix == ".py"})
    assert len(found) <= 16, found
    counts = {(file.name, name): count for (file, name), count in entered.items()}
    assert {step: counts.get(step) for step in ONCE} == dict.fromkeys(ONCE, 1)
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
    killed, whole = tiny(tmp_path / "killed"), tiny(tmp_path / "whole")
    code = exit_code(quietly, Tiny(), killed, callbacks=[End(kill, at_end)])
    assert code == -signal.SIGKILL
    assert (tmp_path / "killed" / "last.ckpt").exists()
    assert not (tmp_path / "killed" / "metrics.json").exists()
    record, said = quietly(Tiny(), killed)
    assert said.count("epoch ") == (0 if at_end else 3)
    expected, _ = quietly(Tiny(), whole)
    for name in NUMBERS:
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (record.after, record.curves) == (expected.after, expected.curves)
    assert not (tmp_path / "killed" / "last.ckpt").exists()


def test_a_killed_run_on_images_continues_to_the_same_bytes(tmp_path):
    killed, whole = (compose("images", [*DIGITS, f"run={tmp_path / n}"]) for n in ("a", "b"))
    assert exit_code(quietly, Images(), killed, callbacks=[End(kill)]) == -signal.SIGKILL
    quietly(Images(), killed)
    quietly(Images(), whole)
    for name in NUMBERS:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_ctrl_c_says_how_to_continue_and_resume_needs_only_the_folder(tmp_path, monkeypatch):
    interrupt = End(lambda: signal.raise_signal(signal.SIGINT))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=f"train --resume {re.escape(str(tmp_path))}"):
        quietly(Tiny(), tiny(tmp_path), callbacks=[interrupt])
    assert signal.getsignal(signal.SIGINT) is handler
    monkeypatch.setattr(runs, "task_of", lambda name: Tiny())
    lines = []
    record = runs.resume(tmp_path, ["logger=none"], say=lines.append)
    assert [row["epoch"] for row in record.curves] == [0, 1, 2, 3, 4]
    assert "epoch   2/4" in "\n".join(lines)
    assert "epoch   1/4" not in "\n".join(lines)


def test_the_command_ends_with_130_after_ctrl_c(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Tiny, "loss", lambda *_: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(runs, "task_of", lambda name: Tiny())
    config = tiny(tmp_path)
    RunFolder.of("mixture", config, Tiny().load(config).digest).begin(config)
    assert main(["train", "--resume", str(tmp_path)]) == 130
    assert capsys.readouterr().err.startswith("interrupted: the same command continues")


def test_a_second_process_is_refused(tmp_path):
    with (
        files.locked(tmp_path),
        pytest.raises(UserError, match="another process is training this run"),
    ):
        quietly(Tiny(), tiny(tmp_path))


def test_batches_are_capped_to_the_data_and_the_cap_is_printed(tmp_path):
    _, said = quietly(Tiny(n_train=20), tiny(tmp_path))
    assert "a batch has 20 samples, all there are" in said
    with pytest.raises(UserError, match="3 training samples: at least 4"):
        quietly(Tiny(n_train=3), tiny(tmp_path / "other"))


def test_without_validation_data_there_is_no_best_epoch(tmp_path):
    record, said = quietly(Tiny(validation=False), tiny(tmp_path))
    assert record.validation is None
    assert "validation" not in said.split("epoch   1/4")[1].split("page:")[0]
    assert not (tmp_path / "best.safetensors").exists()
    with pytest.raises(UserError, match=r"evaluation\.split=validation: these data have no"):
        quietly(Tiny(validation=False), tiny(tmp_path, "evaluation.split=validation"))


def test_epochs_between_measurements_have_a_row_with_the_loss(tmp_path):
    record, _ = quietly(Tiny(), tiny(tmp_path, "evaluation.every=3"))
    measured = [row["embedding/nearest_mean"] is not None for row in record.curves]
    assert measured == [True, False, False, True, True]
    assert all(row["loss"] > 0 for row in record.curves[1:])


def test_collapsed_embeddings_are_said(tmp_path, monkeypatch):
    def collapsed(self, config, data):
        model = build(self, config, data)
        torch.nn.init.zeros_(model.encoder[-1].weight)
        return model

    build = Tiny.build
    monkeypatch.setattr(Tiny, "build", collapsed)
    words = ("training.learning_rate=1e-12", "training.epochs=1")
    assert "have collapsed: the median cosine" in quietly(Tiny(), tiny(tmp_path, *words))[1]


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
        quietly(Tiny(), tiny(tmp_path, word))
    assert "\n" not in str(error.value)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, monkeypatch):
    def loss(self, config, model, batch, step):
        return model.encoder(batch[0]).sum() * (float("nan") if step.number == 4 else 1.0)

    monkeypatch.setattr(Tiny, "loss", loss)
    with pytest.raises(UserError, match=r"the loss is nan in epoch 2, step 5: lower training"):
        quietly(Tiny(), tiny(tmp_path))


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written \(Not a directory") as error:
        quietly(Tiny(), tiny(tmp_path / "file" / "run"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("limit", [1_000, 5_000], ids=["config", "checkpoint"])
def test_a_full_disk_is_one_sentence_and_nothing_is_lost(tmp_path, limit):
    quietly(Tiny(), tiny(tmp_path / "whole"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError, match="cannot be written") as error:
            quietly(Tiny(), tiny(tmp_path / "run"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert not [name for name in os.listdir(tmp_path / "run") if name.endswith(".part")]
    quietly(Tiny(), tiny(tmp_path / "run"))
    for name in NUMBERS:
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


def damages(path):
    content = path.read_bytes()
    yield content[: len(content) // 2]
    yield content.replace(b"rows", b"sowr")
    yield b""
    yield pickle.dumps(Evil())


def test_a_damaged_or_hostile_checkpoint_is_refused_without_running_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exit_code(quietly, Tiny(), tiny(tmp_path / "run"), callbacks=[End(kill)])
    checkpoint = tmp_path / "run" / "last.ckpt"
    torch.save({"model": Evil()}, tmp_path / "evil.ckpt")
    for content in [*damages(checkpoint), (tmp_path / "evil.ckpt").read_bytes()]:
        checkpoint.write_bytes(content)
        with pytest.raises(UserError, match=r"last\.ckpt: cannot be continued.*--restart") as error:
            quietly(Tiny(), tiny(tmp_path / "run"))
        assert "\n" not in str(error.value)
    assert not (tmp_path / "evil").exists()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    exit_code(quietly, Tiny(), tiny(tmp_path), callbacks=[End(kill)])
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    checkpoint["state_dict"].pop("model.encoder.0.weight")
    torch.save(checkpoint, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match="not a checkpoint of this model"):
        quietly(Tiny(), tiny(tmp_path))


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
    record, _ = quietly(Tiny(), tiny(tmp_path / "run"))
    (tmp_path / "runs.jsonl").write_text(record.to_json() + "\n{}\n")
    with pytest.raises(UserError, match="line 2: not the record of a run"):
        read_records(tmp_path)
    (tmp_path / "run" / "metrics.json").write_text("{")
    with pytest.raises(UserError, match=r"metrics\.json: damaged; delete it"):
        quietly(Tiny(), tiny(tmp_path / "run"))
    (tmp_path / "run" / "metrics.json").unlink()
    assert quietly(Tiny(), tiny(tmp_path / "run"))[0].after == record.after


def test_a_record_is_a_line_and_knows_where_it_comes_from(tmp_path, monkeypatch):
    files.commit.cache_clear()
    calls = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: calls.append(a) or run(*a, **k))
    record, _ = quietly(Tiny(), tiny(tmp_path / "a"), origin={"plan": "sweep"})
    quietly(Tiny(), tiny(tmp_path / "b", "seed=1"))
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
