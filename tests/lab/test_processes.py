"""Several processes train as one does, and end together."""

import json
import os
import signal
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from processes import python
from tiny_task import Tiny, tiny, trained
from tricouple_lab.names import UserError
from tricouple_lab.runs import execute as runs
from tricouple_lab.runs.execute import execute
from tricouple_lab.runs.folder import Record
from tricouple_lab.training import trainer as lightning
from tricouple_lab.training.trainer import make_trainer, share_batches

RECORD = json.dumps({field.name: None for field in fields(Record)})
FORKED = ("trainer.devices=2", "trainer.strategy=ddp_fork")


def difference(one: Record, two: Record) -> float:
    """The largest between the curves."""
    assert [row["step"] for row in one.curves] == [row["step"] for row in two.curves]
    return max(
        abs(row["loss"] - other["loss"])
        for row, other in zip(one.curves[1:], two.curves[1:], strict=True)
    )


@pytest.mark.parametrize("loss", ["neg_mmiot", "infonce"])
def test_two_processes_train_as_one(tmp_path, loss):
    words = (f"loss={loss}", "training.batch_size=31")  # uneven shares
    one, _ = trained(tmp_path / "one", *words)
    two, said = trained(tmp_path / "two", *words, *FORKED)
    assert "2 processes share each batch of 31; the loss is that of the batch" in said
    assert difference(one, two) <= 1e-5
    assert two.after == one.after
    assert len(two.curves) == 5
    identities = {(tmp_path / name / ".identity").read_text() for name in ("one", "two")}
    assert len(identities) == 1
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        path.name for path in (tmp_path / "two").iterdir()
    }


def test_the_first_steps_loss_of_two_processes_is_that_of_one(tmp_path):
    losses = tmp_path / "losses"

    def watched(found, model, batch, step):
        if step.number == 0:
            with losses.open("a") as file:
                row = step.share.rank, step.share.world, len(batch[1]), found.item()
                file.write(" ".join(map(repr, row)) + "\n")
        return found

    words = ("training.epochs=1", "training.batch_size=33")
    trained(tmp_path / "one", *words, task=Tiny(change_loss=watched))
    trained(tmp_path / "two", *words, *FORKED, task=Tiny(change_loss=watched))
    rows = sorted(line.split() for line in losses.read_text().splitlines())
    assert [row[:3] for row in rows] == [["0", "1", "33"], ["0", "2", "17"], ["1", "2", "16"]]
    values = [float(row[3]) for row in rows]
    assert values[1:] == pytest.approx([values[0]] * 2, abs=1e-6)


def test_an_error_of_any_process_ends_all_in_one_sentence(tmp_path):
    def diverging(found, model, batch, step):
        return found * float("nan") if step.share.rank == 1 else found

    with pytest.raises(UserError, match=r"the loss is .* in epoch 1, step 1") as error:
        trained(tmp_path, *FORKED, task=Tiny(change_loss=diverging))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "metrics.json").exists()


def test_a_killed_process_ends_all_and_the_run_continues(tmp_path):
    def dying(found, model, batch, step):
        if (step.share.rank, step.number) == (1, 4):
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    with pytest.raises(ConnectionError, match="a process of this training has ended"):
        trained(tmp_path / "killed", *FORKED, task=Tiny(change_loss=dying))
    continued, said = trained(tmp_path / "killed")  # by one process
    assert "epoch   1/4" not in said
    assert difference(continued, trained(tmp_path / "whole")[0]) <= 1e-5


def test_more_processes_than_samples_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"trainer\.devices: 5 processes share each batch of 4"):
        trained(tmp_path, "training.batch_size=4", "trainer.devices=5", "trainer.strategy=ddp_fork")


def test_a_sweep_is_not_started_again_by_each_process(tmp_path):
    config = tiny(tmp_path, "trainer.devices=2", "trainer.strategy=ddp")
    with pytest.raises(UserError, match="a sweep cannot train each run in several processes so"):
        execute(Tiny(), config, say=lambda line: None, origin={"plan": "sweep"})


def test_batch_normalisation_that_cannot_be_synchronised_is_said(tmp_path):
    trainer = make_trainer(tiny(tmp_path, *FORKED), tmp_path, [])
    normed = nn.Sequential(nn.BatchNorm1d(2))
    assert "is that of each process's share" in str(share_batches(normed, trainer, 8, False))
    assert "is that of each" not in str(share_batches(nn.Linear(2, 2), trainer, 8, False))
    alone = make_trainer(tiny(tmp_path), tmp_path, [])
    assert share_batches(normed, alone, 8, False) is None


def test_batch_normalisation_is_synchronised_on_other_devices_and_keeps_activations(tmp_path):
    from timm.layers import BatchNormAct2d

    trainer = make_trainer(tiny(tmp_path, *FORKED), tmp_path, [])
    model = nn.Sequential(BatchNormAct2d(3), nn.BatchNorm1d(2))
    names = list(model.state_dict())
    gpu = SimpleNamespace(root_device=torch.device("cuda"), launcher=None)
    note = share_batches(model, SimpleNamespace(world_size=2, strategy=gpu), 8, False)
    assert "is that of each process's share" not in str(note)
    assert all(isinstance(layer, nn.SyncBatchNorm) for layer in model)
    assert isinstance(model[0].act, nn.ReLU)
    assert list(model.state_dict()) == names
    share_batches(kept := nn.Sequential(nn.BatchNorm1d(2)), trainer, 8, False)
    assert isinstance(kept[0], nn.BatchNorm1d)  # on a CPU


def test_a_helping_process_only_loads_builds_and_fits(tmp_path, monkeypatch, capsys):
    fitted = []

    def prepare(task, config, data, model, folder, **options):
        return None, lambda: fitted.append(folder.path)

    monkeypatch.setattr(lightning, "prepare", prepare)
    monkeypatch.setattr(runs, "rank", lambda: 1)
    task = Tiny()
    with pytest.raises(SystemExit) as end:
        runs.execute(task, tiny(tmp_path / "run"))
    assert (end.value.code, fitted, task.calls) == (0, [tmp_path / "run"], ["load", "build"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.json").write_text(RECORD)
    with pytest.raises(SystemExit):  # the first process returns the record
        runs.execute(Tiny(), tiny(tmp_path / "run"))
    assert len(fitted) == 1
    with pytest.raises(SystemExit):  # the first process prints the error
        runs.execute(Tiny(n_train=2), tiny(tmp_path / "run"))
    assert capsys.readouterr() == ("", "")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.json"]


SCRIPT = """
import sys
from tiny_task import Tiny, tiny
from tricouple_lab.runs import execute as runs
from tricouple_lab.runs.execute import execute
execute(Tiny(), tiny(*sys.argv[1:]))
"""


@pytest.mark.slow
def test_processes_that_lightning_or_torchrun_start_train_as_one(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    one, _ = trained(tmp_path / "one")
    folder, flags = tmp_path / "two", ("trainer.devices=2", "trainer.strategy=ddp")
    said = python(tmp_path / "script.py", folder, *flags).stdout
    assert said.count("epoch   4/4") == said.count("run: ") == 1
    assert difference(one, Record.read(folder / "metrics.json")) <= 1e-5
    torchrun = "-m", "torch.distributed.run", "--nproc-per-node", 2
    said = python(*torchrun, tmp_path / "script.py", tmp_path / "three").stdout
    assert said.count("epoch   4/4") == 1
    assert difference(one, Record.read(tmp_path / "three" / "metrics.json")) <= 1e-5
