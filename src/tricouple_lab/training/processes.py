"""Several processes that train one network: who begins, what they share, how they end together.

Lightning starts them when training begins (``ddp``, ``ddp_fork``), or a launcher such as torchrun
starts all at once. Either way the first process decides, writes and speaks.
"""

from __future__ import annotations

import builtins
from datetime import timedelta

import lightning as L
import torch.distributed as dist
from lightning.pytorch.plugins import LayerSync
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from tricouple_lab.options import launched_together
from tricouple_lab.training.module import DivergenceError

_PATIENCE = timedelta(days=7)  # the first process may have to fetch data, or to wait for a folder


def note_on_processes(n_processes: int, batch_size: int, network: nn.Module, device: str) -> str:
    """What several processes do, in a sentence or two.

    Example:
        >>> note_on_processes(2, 64, nn.Linear(2, 2), "cpu")
        '2 processes share each batch of 64; the loss is that of the whole batch.'
    """
    who = f"{n_processes} processes share each batch of {batch_size}"
    said = f"{who}; the loss is that of the whole batch."
    norm = nn.modules.batchnorm._BatchNorm
    if device == "cpu" and any(isinstance(part, norm) for part in network.modules()):
        said += (
            " Batch norm is of each process's share: PyTorch cannot synchronise it on a CPU, so "
            "the numbers are not those of one process."
        )
    return said


class SyncedNorms(LayerSync):
    """Batch norm of the batch of all processes, wherever PyTorch has it: not on a CPU.

    timm's layers that are a batch norm and an activation in one keep their activation, which
    Lightning's own ``sync_batchnorm`` loses.
    """

    device = "cpu"

    def apply(self, model: nn.Module) -> nn.Module:
        """Replace the layers; their parameters and the names of these remain."""
        if self.device == "cpu":
            return model
        from timm.layers.norm_act import convert_sync_batchnorm

        found: nn.Module = convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return found

    def revert(self, model: nn.Module) -> nn.Module:
        """Nothing: what is kept of a training are its weights."""
        return model


# --- beginning -----------------------------------------------------------------------------------


def check_study(trainer: L.Trainer) -> None:
    """Refuse, for a run that is not the whole command, to start the command again.

    Raises:
        ValueError: If that is how Lightning would make further processes.
    """
    if trainer.world_size > 1 and isinstance(trainer.strategy.launcher, _SubprocessScriptLauncher):
        raise ValueError(
            f"a study cannot train in {trainer.world_size} processes by strategy=ddp, which starts "
            "the whole command in each: use trainer.strategy=ddp_fork, or leave trainer.devices at "
            "1 and let --workers share the runs"
        )


def announce(begins: bool) -> None:
    """Say, as the first of processes that were started together, whether there is a training."""
    _meeting().set("begins", str(begins))


def training_begins() -> bool:
    """What the first process has to say about it; Lightning starts others only if there is one."""
    if not launched_together():
        return True
    meeting = _meeting()
    meeting.wait(["begins"], _PATIENCE)
    return bool(meeting.get("begins") == b"True")


def _meeting() -> PrefixStore:
    """What processes that were started together can all read."""
    store, *_ = next(rendezvous("env://"))
    return PrefixStore("tricouple", store)


# --- ending --------------------------------------------------------------------------------------


def cause(error: BaseException) -> BaseException:
    """What an error of several processes comes to, in a sentence where one says it."""
    text = str(error).strip()
    if isinstance(error, ProcessRaisedException):
        # The text of a traceback: its last line names the error.
        name, _, text = text.splitlines()[-1].partition(": ")
        if name.endswith(DivergenceError.__name__):
            return DivergenceError(text)
        if issubclass(getattr(builtins, name, object), ValueError | OSError):
            return ValueError(text)
        if name.startswith(("tricouple.", "tricouple_lab.")):
            return ValueError(text)
    lost = isinstance(error, dist.DistError | ProcessExitedException)
    if not lost and not any(backend in text for backend in ("gloo", "NCCL")):
        return error
    return ConnectionError(
        "a process of this training is gone, killed perhaps for want of memory: the same command "
        "continues the run from its last finished epoch"
    )


def forget(trainer: L.Trainer) -> None:
    """Keep Lightning's watchman from killing this process before it has said what happened."""
    launcher = trainer.strategy.launcher
    if isinstance(launcher, _SubprocessScriptLauncher):
        launcher.procs.clear()  # their sockets are closed, or will be with this process's own
