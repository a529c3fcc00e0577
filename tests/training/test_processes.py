"""Several processes train as one does, and begin and end together."""

import io
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn

import tricouple as tc
from processes import PATIENCE, in_processes
from tricouple_lab.conf.compose import configure
from tricouple_lab.conf.schema import Train
from tricouple_lab.experiments.clip import CLIP
from tricouple_lab.experiments.runs.run import run_once
from tricouple_lab.experiments.text import TEXT
from tricouple_lab.experiments.vision import VISION
from tricouple_lab.report.read import read_study
from tricouple_lab.training.module import DivergenceError, LossTraining
from tricouple_lab.training.processes import SyncedNorms, note_on_processes

ROOT = Path(__file__).parents[2]
# No batch norm, which a CPU cannot synchronise; 13 samples are uneven shares of two.
VIT = (
    "scale=smoke", "backbone.name=test_vit", "setting=ucl", "data.train_size=130",
    "data.image_size=32", "training.batch_size=13", "training.epochs=1",
    "training.geometry_samples=50", "evaluation.probe_epochs=1", "trainer.precision=64-true",
    "trainer.accelerator=cpu", "progress=false",
)  # fmt: skip
PAIRS = (
    "scale=smoke", "data.train_size=70", "data.validation_size=20", "data.test_size=20",
    "model.vision.layers=1", "model.vision.width=32", "+model.vision.patch_size=16",
    "model.text.width=32", "model.text.heads=1", "model.text.layers=1", "training.batch_size=7",
    "training.learn_temperature=true", "training.epochs=1", "training.geometry_samples=16",
    "evaluation.gallery=2", "evaluation.zero_shot=[]", "trainer.precision=64-true",
    "trainer.accelerator=cpu", "progress=false",
)  # fmt: skip
TEXTS = (
    "scale=smoke", "data.shots=8", "training.batch_size=7", "training.epochs=1",
    "training.geometry_samples=50", "evaluation.probe_epochs=1", "evaluation.gallery=2",
    "trainer.precision=64-true", "trainer.accelerator=cpu", "progress=false",
)  # fmt: skip
WORDS = {VISION: VIT, CLIP: PAIRS, TEXT: TEXTS}
FORKED = ("trainer.devices=2", "trainer.strategy=ddp_fork")


def train(runs, *words, kind=VISION):
    config = configure([*WORDS[kind], f"runs={runs}", *words], kind.config)
    said = Console(file=io.StringIO(), width=1000)
    return run_once(kind, config, said), said.file.getvalue()


def difference(one, two):
    """Of the trained weights, and of the curves but for their seconds."""
    first, second = (torch.load(run.encoder, weights_only=True) for run in (one, two))
    weights = [
        float((first["weights"][name] - second["weights"][name]).abs().max())
        for name in first["weights"]
    ]
    rows = [
        abs(row[name] - other[name])
        for row, other in zip(first["rows"], second["rows"], strict=True)
        for name in row.keys() - {"seconds"}
    ]
    assert first["rows"][-1]["step"] == second["rows"][-1]["step"]
    return max(weights + rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: kind.name)
def test_ten_steps_of_two_processes_are_those_of_one(tmp_path, kind):
    one, _ = train(tmp_path / "one", kind=kind)
    two, said = train(tmp_path / "two", *FORKED, kind=kind)
    size = 13 if kind is VISION else 7
    assert f"2 processes share each batch of {size}; the loss is that of the whole batch." in said
    assert two.folder.path.name == one.folder.path.name
    assert difference(one.folder, two.folder) <= 1e-6
    assert two.evaluation["curves"]["step"][-1] >= 10


def test_what_one_process_finds_ends_all_in_one_error(tmp_path, monkeypatch):
    loss = LossTraining.loss

    def diverging(self, views, identities):
        if self.global_rank == 1:
            views = [view * float("nan") for view in views]
        return loss(self, views, identities)

    with monkeypatch.context() as patched:
        patched.setattr(LossTraining, "loss", diverging)
        with pytest.raises(DivergenceError, match=r"embeddings are not finite in epoch 1, step 1"):
            train(tmp_path, *FORKED)
    (folder,) = tmp_path.iterdir()
    (run,) = read_study(folder).runs
    assert run.status == "diverged"

    def failing(self, views, identities):
        if self.global_rank == 1:
            raise ValueError("photo.jpg cannot be read")
        return loss(self, views, identities)

    with monkeypatch.context() as patched:
        patched.setattr(LossTraining, "loss", failing)
        with pytest.raises((ValueError, ConnectionError), match=r"photo|a process .* is gone"):
            train(tmp_path, *FORKED)


def test_a_study_is_not_started_again_for_each_device(tmp_path):
    config = configure([*VIT, f"runs={tmp_path}", "trainer.devices=2"], Train)
    with pytest.raises(ValueError, match="a study cannot train in 2 processes by strategy=ddp"):
        run_once(VISION, config, Console(quiet=True), origin={"command": "a study"})
    assert not list(tmp_path.iterdir())


def test_torchrun_is_for_one_run(monkeypatch, refused):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    assert "torchrun is for one run" in refused("train", "-m", "seed=0,1")


def test_batch_norm_that_cannot_be_synchronised_is_said():
    plain, normed = nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2))
    told = "Batch norm is of each process's share"
    assert told in note_on_processes(2, 8, normed, "cpu")
    assert told not in note_on_processes(2, 8, normed, "cuda")
    assert told not in note_on_processes(2, 8, plain, "cpu")


def test_synchronised_batch_norm_keeps_the_activation_and_the_names_of_the_weights():
    from timm.layers import BatchNormAct2d

    model = nn.Sequential(BatchNormAct2d(3), nn.BatchNorm1d(2))
    norms, names = SyncedNorms(), list(model.state_dict())
    assert norms.apply(model) is model
    assert isinstance(model[1], nn.BatchNorm1d)  # on a CPU
    norms.device = "cuda"
    found = norms.apply(model)
    assert all(isinstance(layer, nn.SyncBatchNorm) for layer in found)
    assert isinstance(found[0].act, nn.ReLU)
    assert list(found.state_dict()) == names


def steps(network, rows, group):
    """The losses of some steps on some rows of a batch."""
    points = torch.randn(11, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    criterion = tc.NegMMIOT(sharpness=10, group=group)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        loss = criterion(network(points[rows]), (torch.arange(11) % 3)[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).double()


@pytest.mark.parametrize("kind", ["fully_shard", "FullyShardedDataParallel"])
def test_the_loss_is_right_where_the_network_itself_is_sharded(tmp_path, kind):
    def work(rank):
        from torch.distributed import fsdp

        network = small_network()
        if kind == "fully_shard":
            mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
            for part in (network[0], network[2], network):
                fsdp.fully_shard(part, mesh=mesh)
        else:
            network = fsdp.FullyShardedDataParallel(network, device_id=torch.device("cpu"))
        return steps(network, slice(rank, None, 2), "world")

    alone = steps(small_network(), slice(None), None)
    for losses in in_processes(2, tmp_path, work):
        assert losses == pytest.approx(alone, rel=1e-12)


# --- commands ------------------------------------------------------------------------------------

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", 2)


def started(*arguments):
    """A program in a session of its own, as in a terminal."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


# The command, of which something ends the second process or the whole session in an epoch.
ENDED = """
import os, signal, sys
from tricouple_lab import cli
from tricouple_lab.training.module import Training

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs of a shell may begin without
step = Training.training_step

def last(self, batch, batch_idx):
    if (self.global_rank, self.current_epoch, batch_idx) == (1, 2, 1):
        {end}
    return step(self, batch, batch_idx)

Training.training_step = last
sys.exit(cli.main(sys.argv[1:]))
"""


def ended(tmp_path, end, *words):
    """What a training of two processes says when something ends it, and its exit code."""
    (tmp_path / "ended.py").write_text(ENDED.format(end=end))
    program = started(
        tmp_path / "ended.py", "train", *VIT, *words, f"runs={tmp_path / 'runs'}",
        "trainer.devices=2", "trainer.strategy=ddp",
    )  # fmt: skip
    output, errors = program.communicate(timeout=PATIENCE)
    assert output.count("Training (130 images") == 1
    return errors, program.returncode


LONG = ("training.epochs=4", "training.geometry_every=4")


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_with_one_line(tmp_path):
    errors, code = ended(tmp_path, "os.killpg(0, signal.SIGINT)", *LONG)
    told = "interrupted: the same command continues the run from its last finished epoch\n"
    assert (errors, code) == (told, 130)


@pytest.mark.slow
def test_a_killed_process_ends_all_with_one_line_and_torchrun_ends_in_the_same_numbers(tmp_path):
    errors, code = ended(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", *LONG)
    assert errors.startswith("tricouple train: error: a process of this training is gone")
    assert errors.count("\n") == 1
    assert code == 2
    program = started(
        *TORCHRUN, "-m", "tricouple_lab.cli", "train", *VIT, *LONG, f"runs={tmp_path / 'runs'}",
        "trainer.devices=2",
    )  # fmt: skip
    undisturbed, _ = train(tmp_path / "one", *LONG)
    output, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, errors
    assert output.count("Continuing (130 images") == output.count("Use it: ") == 1
    finished, said = train(tmp_path / "runs", *LONG)
    assert "Already finished" in said
    assert difference(undisturbed.folder, finished.folder) <= 1e-6
    names = {path.name for path in finished.folder.path.iterdir()}
    assert names == {path.name for path in undisturbed.folder.path.iterdir()}


@pytest.mark.slow
def test_the_example_for_torchrun_computes_the_losses_of_one_process(monkeypatch):
    program = started(*TORCHRUN, "examples/torchrun.py")
    monkeypatch.syspath_prepend(ROOT / "examples")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost",
                        "MASTER_PORT": "0"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    import torchrun

    models = []  # must be gone before their group: its end would wait for itself, see the example
    left = []

    class Watched(torchrun.DistributedDataParallel):
        def __init__(self, module):
            super().__init__(module)
            models.append(weakref.ref(self))

    def end(destroy=dist.destroy_process_group):
        left.extend(model() for model in models)
        destroy()

    monkeypatch.setattr(torchrun, "DistributedDataParallel", Watched)
    monkeypatch.setattr(dist, "destroy_process_group", end)
    alone = torchrun.main()
    assert left == [None]
    assert alone[-1] < 0.5 * alone[0]
    output, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, errors
    steps = len(alone) // 4
    expected = [alone[steps * epoch - 1] for epoch in range(1, 5)]
    assert [float(line.split()[1]) for line in output.splitlines()] == pytest.approx(
        expected, abs=2e-6
    )
