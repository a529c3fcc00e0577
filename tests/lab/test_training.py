"""Optimisers, learning rates, the order of samples, the history, loggers, the progress bar."""

import csv
import sys
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from tiny_task import Points, Tiny, tiny, trained
from tricouple_lab.evaluation.probe import collapse_note
from tricouple_lab.names import UserError
from tricouple_lab.tasks.base import Model, Share
from tricouple_lab.training.module import (
    SharedBatches,
    TrainingModule,
    learning_rate_factor,
)
from tricouple_lab.training.trainer import make_loggers, make_trainer


class Watch(Callback):
    """Keeps the optimiser and the learning rate of each step."""

    def __init__(self):
        self.rates, self.optimizer, self.modes = [], None, []

    def on_train_batch_start(self, trainer, module, batch, index):
        self.optimizer = trainer.optimizers[0]
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.modes.append(module.model.training)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "lars"])
def test_an_optimizer_is_that_of_its_name_and_learns(tmp_path, name):
    rate = {"sgd": 0.5, "lars": 5.0}.get(name, 0.05)
    words = f"training.optimizer={name}", f"training.learning_rate={rate}"
    watch = Watch()
    record, _ = trained(tmp_path, *words, callbacks=[watch])
    assert type(watch.optimizer).__name__.lower() == name
    assert record.curves[-1]["loss"] < record.curves[1]["loss"]
    assert all(watch.modes)


def test_the_learning_rate_warms_up_and_falls_along_half_a_cosine(tmp_path):
    watch, words = Watch(), ("training.warmup_steps=4", "training.learning_rate=0.08")
    trained(tmp_path, *words, callbacks=[watch])
    assert watch.rates[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.08])
    assert watch.rates[8] == pytest.approx(0.04)  # the middle of the remaining eight steps
    assert 0 < watch.rates[11] < 0.004
    settings = tiny("", "training.schedule=constant", "training.warmup_steps=2").training
    assert [learning_rate_factor(step, 9, settings) for step in range(4)] == [0.5, 1, 1, 1]


@pytest.mark.parametrize(("decay", "biases"), [("weights", 0.0), ("all", 0.1)])
def test_weight_decay_of_biases_is_a_setting_and_a_sharpness_never_decays(decay, biases):
    objective = nn.Module()
    objective.log_factor = nn.Parameter(torch.zeros(()))
    model = Model(nn.Linear(2, 2), objective)
    config = tiny("", f"training.decay={decay}", "training.weight_decay=0.1")
    module = TrainingModule(Tiny(), config, model, range(9), 3)
    module.trainer = type("Trainer", (), {"estimated_stepping_batches": 3})()
    (found,) = module.configure_optimizers()[0]
    decays = {id(p): group["weight_decay"] for group in found.param_groups for p in group["params"]}
    assert decays[id(model.encoder.weight)] == 0.1
    assert decays[id(model.encoder.bias)] == biases
    assert decays[id(objective.log_factor)] == 0.0


def test_batches_are_equal_and_shuffled_anew_in_each_epoch():
    batches = SharedBatches(range(10), 4, 0, Share())
    first = list(batches)
    batches.set_epoch(1)
    second = list(batches)
    assert [len(batch) for batch in first + second] == [4, 4, 4, 4]
    assert first != second
    batches.set_epoch(0)
    assert list(batches) == first
    assert list(SharedBatches(range(10), 4, 1, Share())) != first
    shares = [list(SharedBatches(range(10), 4, 0, Share(rank, 3))) for rank in range(3)]
    for whole, *parts in zip(first, *shares, strict=True):
        assert sorted(row for part in parts for row in part) == sorted(whole)
        assert parts[1] == whole[1::3]


def test_workers_load_the_same_batches(tmp_path):
    loaders = []
    for workers in (0, 2):
        config = tiny("")
        config.data.num_workers = workers
        module = TrainingModule(Tiny(), config, nn.Linear(1, 1), Points(20, 0), 8)
        module.trainer = SimpleNamespace(global_rank=0, world_size=1)
        loaders.append(module.train_dataloader())
    alone, helped = loaders
    for (one, _), (other, _) in zip(alone, helped, strict=True):
        assert torch.equal(one, other)
    assert helped.num_workers == 2


def test_the_best_encoder_is_that_of_its_row_and_epoch_0_is_a_candidate(tmp_path, monkeypatch):
    scores = iter([0.7, 0.5, 0.9, 0.9, 0.6])
    states = []
    evaluate = Tiny.evaluate

    def scored(self, config, data, encoder, split, *, full):
        found = evaluate(self, config, data, encoder, split, full=full)
        if not full:
            states.append({key: value.clone() for key, value in encoder.state_dict().items()})
            found.metrics[self.metric] = next(scores)
        return found

    monkeypatch.setattr(Tiny, "evaluate", scored)
    trained(tmp_path / "a")
    from safetensors.torch import load_file

    best = load_file(tmp_path / "a" / "best.safetensors")
    assert all(torch.equal(best[key], states[2][key]) for key in best)
    scores, states[:] = iter([0.7, 0.5, 0.7, 0.6, 0.6]), []
    trained(tmp_path / "b")
    best = load_file(tmp_path / "b" / "best.safetensors")
    assert all(torch.equal(best[key], states[0][key]) for key in best)


def test_a_sharpness_that_learns_has_a_column(tmp_path):
    class Loss(nn.Module):
        log_factor, sharpness = torch.zeros(()), 7.0

        def forward(self, embeddings, labels):
            return embeddings.square().mean()

    trained(tmp_path, task=Tiny(change_model=lambda model: Model(model.encoder, Loss())))
    rows = list(csv.DictReader((tmp_path / "history.csv").read_text().splitlines()))
    assert [row["sharpness"] for row in rows] == ["", "7.0", "7.0", "7.0", "7.0"]


def test_an_objective_is_told_of_each_step_of_the_optimiser(tmp_path):
    steps = []

    class Following(nn.Module):
        def forward(self, embeddings, labels):
            return embeddings.square().mean()

        def after_step(self, number, total):
            steps.append((number, total))

    trained(tmp_path, task=Tiny(change_model=lambda model: Model(model.encoder, Following())))
    assert steps == [(number, 12) for number in range(1, 13)]


def test_compile_is_in_place_and_no_part_of_the_identity(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, *_, **__: compiled.append(self))
    plain, _ = trained(tmp_path / "plain")
    fast, _ = trained(tmp_path / "fast", "training.compile=true")
    assert len(compiled) == 1
    assert fast.after == plain.after
    names = ("encoder.safetensors", ".identity")
    for name in names:
        assert (tmp_path / "fast" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_bf16_trains_in_mixed_precision(tmp_path):
    seen = []

    def watched(found, model, batch, step):
        seen.append(model.encoder(batch[0]).dtype)
        return found

    task = Tiny(change_loss=watched)
    record, _ = trained(tmp_path, "trainer.precision=bf16-mixed", task=task)
    assert set(seen) == {torch.bfloat16}
    assert record.curves[-1]["loss"] < record.curves[1]["loss"]


def test_a_step_knows_its_seed_and_number(tmp_path):
    steps = []

    def watched(found, model, batch, step):
        steps.append(step)
        return found

    trained(tmp_path / "a", task=Tiny(change_loss=watched))
    assert [step.number for step in steps] == list(range(12))
    assert {step.total for step in steps} == {12}
    assert len({step.seed for step in steps}) == 12
    first, steps[:] = list(steps), []
    trained(tmp_path / "b", "loss=infonce", task=Tiny(change_loss=watched))
    assert [step.seed for step in steps] == [step.seed for step in first]


def test_dropout_depends_on_the_step_alone(tmp_path):
    def with_dropout(model):
        model.encoder[2].p = 0.5
        return model

    first, _ = trained(tmp_path / "a", task=Tiny(change_model=with_dropout))
    torch.rand(7)
    again, _ = trained(tmp_path / "b", task=Tiny(change_model=with_dropout))
    assert again.curves == first.curves


def test_the_default_loggers_write_and_none_writes_nothing(tmp_path):
    trained(tmp_path / "a", "logger=csv,tensorboard", "training.epochs=1")
    trained(tmp_path / "b", "logger=none", "training.epochs=1")
    events = b"".join(file.read_bytes() for file in (tmp_path / "a" / "tensorboard").iterdir())
    assert b"embedding/nearest_mean" in events
    assert not (tmp_path / "b" / "tensorboard").exists()
    assert (tmp_path / "b" / "history.csv").exists()


def test_a_logger_of_another_package_is_used_by_its_class(tmp_path):
    name = "lightning.pytorch.loggers.CSVLogger"
    trained(tmp_path, f"logger={name}", "training.epochs=1")
    (metrics,) = tmp_path.rglob("metrics.csv")
    assert "embedding/nearest_mean" in metrics.read_text()
    assert type(make_loggers([name], tmp_path)[0]).__name__ == "CSVLogger"


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_is_named_with_its_package(tmp_path, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    task = Tiny()
    with pytest.raises(UserError, match=rf"logger={name}: is not installed \(pip install {name}\)"):
        trained(tmp_path, f"logger=csv,{name}", task=task)
    assert task.calls == []  # before the data are read


@pytest.mark.parametrize("terminal", [True, False])
def test_a_progress_bar_is_for_terminals(tmp_path, monkeypatch, terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    config = tiny(tmp_path)
    assert make_trainer(config, tmp_path, []).progress_bar_callback is None
    config.progress = True
    assert (make_trainer(config, tmp_path, []).progress_bar_callback is not None) == terminal


def test_collapse_is_found_where_it_is():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 8, generator=generator)
    line = torch.randn(200, 1, generator=generator) * torch.ones(8)
    two = torch.eye(8)[torch.arange(200) % 2] + 1e-3 * noise
    assert collapse_note(noise.numpy()) is None
    assert "median cosine of two of them is 1.00" in str(collapse_note((100 + noise).numpy()))
    assert "effective rank 1.0" in str(collapse_note(line.numpy(), n_classes=10))
    assert collapse_note(two.numpy(), n_classes=2) is None
    assert collapse_note(noise[:2].numpy()) is None
