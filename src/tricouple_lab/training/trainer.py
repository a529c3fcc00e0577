"""Lightning's trainer for one run: its flags, its loggers, its processes, and what ends it.

Further processes are started by Lightning when training begins (``trainer.devices=2``), or all at
once by torchrun. The first one reads, writes and prints; the others load, build and fit.
"""

import builtins
import contextlib
import importlib
import inspect
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import launchers
from timm.layers.norm_act import convert_sync_batchnorm
from torch import nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from tricouple_lab.config.compose import check_arguments
from tricouple_lab.config.schema import SMALLEST_BATCH
from tricouple_lab.files import load_checkpoint
from tricouple_lab.names import LOGGERS, UserError
from tricouple_lab.runs.folder import RunFolder
from tricouple_lab.tasks.base import Data, Model, Task, rank
from tricouple_lab.training.module import AtomicCheckpoints, History, TrainingModule

# Flags that a run sets itself, and what to set instead.
OWN = {
    **dict.fromkeys(("max_epochs", "max_steps", "min_epochs", "min_steps"), "set training.epochs"),
    **dict.fromkeys(
        ("callbacks", "plugins", "enable_model_summary", "barebones"), "runs have their own"
    ),
    "max_time": "an interrupted run continues, so end it when you like",
    "default_root_dir": "set run",
    "enable_progress_bar": "set progress",
    "logger": "set logger",
    "accumulate_grad_batches": "a loss compares the samples of one batch; set training.batch_size",
    "use_distributed_sampler": "processes already share each batch",
    "sync_batchnorm": "batch normalisation is that of all processes where PyTorch can",
    "fast_dev_run": "set scale=smoke",
    "enable_checkpointing": "an interrupted run continues from its checkpoint",
}
ALLOWED = {
    "precision": ("32-true", "32", "16-mixed", "bf16-mixed"),
    "strategy": ("auto", "ddp", "ddp_fork", "ddp_notebook", "ddp_find_unused_parameters_true"),
}
FEW_STEPS = 50


class Bar(RichProgressBar):
    """Epoch, step and loss; gone when training ends, for each epoch has its line."""

    def get_metrics(self, *args: Any) -> dict[str, Any]:
        """Return the metrics that the bar shows."""
        return {k: v for k, v in super().get_metrics(*args).items() if k == "loss_step"}


def prepare(
    task: Task[Any],
    config: Any,
    data: Data,
    model: Model,
    folder: RunFolder,
    say: Callable[[str], object] = lambda line: None,
    callbacks: Sequence[Callback] = (),
    sweep: bool = False,
) -> tuple[History, Callable[[], None]]:
    """Return the history of a run, and a function that trains the model in place.

    The encoder is moved to the device of the training.
    """
    n_samples = len(data.train)
    batch_size = min(config.training.batch_size, n_samples)
    if batch_size < SMALLEST_BATCH:
        raise UserError(f"{n_samples} training samples: at least {SMALLEST_BATCH} are needed")
    if batch_size < config.training.batch_size:
        say(f"note: a batch has {batch_size} samples, all there are")
    history = History(task, config, data, folder, say)
    trainer = make_trainer(config, folder.path, [history, *callbacks])
    note = share_batches(model, trainer, batch_size, sweep)
    steps = config.training.epochs * (getattr(data.train, "epoch_size", n_samples) // batch_size)
    say(f"training: {config.training.epochs} epochs, {steps} steps of {batch_size} samples")
    if steps < FEW_STEPS:
        say(f"note: few steps to learn from ({steps}); raise training.epochs")
    if note:
        say(f"note: {note}")
    model.encoder.to(trainer.strategy.root_device)

    def train() -> None:
        model.train()  # Lightning keeps the mode it finds, and an evaluation leaves eval()
        if config.training.compile:
            model.encoder.compile()  # in place: names in the state dict stay as they are
        module = TrainingModule(task, config, model, data.train, batch_size)
        run_trainer(trainer, module, folder.checkpoint)
        forked = isinstance(trainer.strategy.launcher, launchers._MultiProcessingLauncher)
        if forked or not history.rows:
            state = load_checkpoint(folder.checkpoint)
            history.load_state_dict(state["callbacks"][history.state_key])

    return history, train


def check_flags(flags: Mapping[str, Any]) -> None:
    """Raise for flags that no run can have."""
    for name, value in flags.items():
        if name in OWN:
            raise UserError(f"trainer.{name}={value}: cannot be set; {OWN[name]}")
    check_arguments("trainer.", flags, L.Trainer)
    for name, choices in ALLOWED.items():
        if name in flags and str(flags[name]) not in choices:
            raise UserError(f"trainer.{name}={flags[name]}: choices are {', '.join(choices)}")
    if flags.get("limit_train_batches", 1) in (0, 0.0):
        raise UserError("trainer.limit_train_batches=0: nothing would be trained")


def make_loggers(chosen: Sequence[str], folder: Path) -> list[Logger]:
    """Return Lightning's loggers; ``csv`` is written by ``History``.

    ``module.Class`` is imported, so the names must come from a command line.
    """
    found: list[Logger] = []
    for name in (name for name in chosen if name != "csv"):
        path, options = LOGGERS.get(name, (name, {"save_dir": "{folder}"}))
        module, _, class_name = path.rpartition(".")
        try:
            kind = getattr(importlib.import_module(module), class_name)
            given = options.keys() & inspect.signature(kind).parameters
            texts = {key: options[key].format(folder=folder, name=folder.name) for key in given}
            found.append(kind(**texts))
        except Exception as error:  # of a package that we do not know
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"logger={name}: cannot be used ({reason})") from None
        if not isinstance(found[-1], Logger):
            raise UserError(f"logger={name}: is not a logger of Lightning")
    return found


def make_trainer(config: Any, folder: Path, callbacks: Sequence[Callback]) -> L.Trainer:
    """Return a trainer with the flags of a run; a progress bar is for terminals only."""
    bar = config.progress and sys.stdout.isatty() and rank() == 0
    options: Any = {"save_on_train_epoch_end": True, "enable_version_counter": False}
    own = [ModelCheckpoint(folder, filename="last", **options), *([Bar()] if bar else [])]
    for name in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
    try:
        with quiet():
            trainer = L.Trainer(
                **{
                    "accelerator": "auto",
                    "devices": int(os.environ.get("LOCAL_WORLD_SIZE") or 1),  # as torchrun says
                    "log_every_n_steps": 10,
                    **config.trainer,
                },
                max_epochs=config.training.epochs,
                default_root_dir=folder,
                enable_progress_bar=bool(bar),
                enable_model_summary=False,
                use_distributed_sampler=False,
                logger=make_loggers(config.logger, folder) if rank() == 0 else False,
                callbacks=[*callbacks, *own],
                plugins=[AtomicCheckpoints()],
            )
    except UserError:
        raise
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        given = " ".join(f"trainer.{name}={value}" for name, value in config.trainer.items())
        raise UserError(f"{given}: {' '.join(str(error).split())}") from None
    return trainer


def run_trainer(trainer: L.Trainer, module: TrainingModule, checkpoint: Path) -> None:
    """Train to the end, from the checkpoint if there is one.

    Ctrl-C raises ``KeyboardInterrupt``; Lightning would leave the program with exit code 1.
    """
    threads = torch.get_num_threads()  # Lightning divides them among processes
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    start = checkpoint if checkpoint.exists() else None
    try:
        with quiet():
            trainer.fit(module, ckpt_path=start, weights_only=True)
        if trainer.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()  # all at the same time; what follows the first does alone
    except SystemExit:
        if not trainer.interrupted:
            raise
        raise KeyboardInterrupt from None
    except Exception as error:
        found = cause(trainer, error)
        if start is not None and ("state_dict" in str(found) or isinstance(found, KeyError)):
            why = "not a checkpoint of this model; --restart begins the run again"
            raise UserError(f"{checkpoint}: {why}") from error
        if found is not error:
            raise found from error
        raise
    finally:
        torch.set_num_threads(threads)
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)  # which Lightning sets to ignore


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's advice about itself; other warnings remain."""
    with warnings.catch_warnings():
        for message in (
            ".*does not have many workers.*",  # samples in memory are indexed
            ".*logging interval.*",
            ".*Checkpoint directory .* exists and is not empty.*",
            ".*treespec, LeafSpec.*",  # Lightning's own use of torch
            ".*lr_scheduler.step.*before.*optimizer.step.*",  # restored from a checkpoint
            ".*available but not used.*",
            ".*litlogger.*",
            ".*find_unused_parameters=True.*",
        ):
            warnings.filterwarnings("ignore", message)
        yield


def share_batches(model: nn.Module, trainer: L.Trainer, batch_size: int, sweep: bool) -> str | None:
    """Prepare a model for several processes: the losses are those of the batch of all.

    Each ``group`` in the model is set, in place. Returns a sentence about it; None for one process.
    """
    world = trainer.world_size
    if world == 1:
        return None
    if world > batch_size:
        why = f"{world} processes share each batch of {batch_size}; use fewer devices"
        raise UserError(f"trainer.devices: {why} or a larger training.batch_size")
    if sweep and isinstance(trainer.strategy.launcher, launchers._SubprocessScriptLauncher):
        why = "a sweep cannot train each run in several processes so; use ddp_fork or --workers"
        raise UserError(f"trainer.strategy=ddp: {why}")
    for part in model.modules():
        if hasattr(part, "group"):
            part.group = "world"  # type: ignore[assignment]
    note = f"{world} processes share each batch of {batch_size}; the loss is that of the batch"
    if trainer.strategy.root_device.type != "cpu":
        # Lightning's sync_batchnorm loses the activation in timm's layers of both.
        convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    elif any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        note += (
            ", but batch normalisation is that of each process's share, which PyTorch cannot "
            "synchronise on a CPU: the numbers differ from those of one process"
        )
    return note


def cause(trainer: L.Trainer, error: Exception) -> Exception:
    """Return the error of a training, as one sentence if another process ended or raised it."""
    if isinstance(trainer.strategy.launcher, launchers._SubprocessScriptLauncher):
        # Otherwise Lightning's observer kills this process before it has printed the error.
        trainer.strategy.launcher.procs.clear()
    text = str(error).strip()
    if isinstance(error, ProcessRaisedException):
        # The text is a traceback; its last line names the error.
        name, _, text = text.splitlines()[-1].partition(": ")
        is_plain = issubclass(getattr(builtins, name, object), ValueError | OSError)
        if is_plain or name.startswith(("tricouple.", "tricouple_lab.")):
            return UserError(text)
    lost = isinstance(error, dist.DistError | ProcessExitedException)
    if lost or (trainer.world_size > 1 and any(word in text for word in ("gloo", "NCCL"))):
        return ConnectionError(
            "a process of this training has ended, perhaps for lack of memory; the same command "
            "continues from the last finished epoch"
        )
    return error
