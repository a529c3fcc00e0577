"""What Lightning trains, the order of the samples, and the record of each epoch."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import lightning as L
import pandas as pd
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO
from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler, default_convert

from tricouple_lab.config.schema import Training
from tricouple_lab.files import derived_seed, load_checkpoint, write_atomically, write_text
from tricouple_lab.names import UserError
from tricouple_lab.runs.folder import RunFolder
from tricouple_lab.tasks.base import BatchedSet, Data, Model, Share, Step, Task


class DivergedError(UserError):
    """The loss is no longer a finite number."""


class TrainingModule(L.LightningModule):
    """Hand each batch to the task; what is drawn depends on (seed, epoch, step) alone."""

    def __init__(
        self, task: Task[Any], config: Any, model: Model, samples: BatchedSet, batch_size: int
    ) -> None:
        super().__init__()
        self.task, self.config, self.model = task, config, model
        self.samples, self.batch_size = samples, batch_size

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return int(self.trainer.estimated_stepping_batches)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the batches of this process."""
        share = Share(self.trainer.global_rank, self.trainer.world_size)
        workers = getattr(self.config.data, "num_workers", 0)
        return DataLoader(
            cast(Any, self.samples),
            batch_sampler=SharedBatches(self.samples, self.batch_size, self.config.seed, share),
            collate_fn=default_convert,  # __getitems__ returns whole batches
            num_workers=workers,
            persistent_workers=workers > 0,
            generator=torch.Generator(),  # otherwise the loader draws from the global random state
        )

    def training_step(self, batch: Any, index: int) -> Tensor:
        """Return the loss of the batch; all processes stop together if it is not finite."""
        seed = derived_seed(self.config.seed, "step", self.current_epoch, index)
        share = Share(self.global_rank, self.trainer.world_size)
        torch.manual_seed(seed + share.rank)  # dropout, if the network has any
        step = Step(seed, self.global_step, self.total, share)
        loss = self.task.loss(self.config, self.model, batch, step)
        if not self.trainer.strategy.reduce_boolean_decision(bool(torch.isfinite(loss))):
            raise DivergedError(
                f"the loss is {float(loss.detach())} in epoch {self.current_epoch + 1}, step "
                f"{self.global_step + 1}: lower training.learning_rate or loss.sharpness"
            )
        both: dict[str, Any] = {"on_step": True, "on_epoch": True, "sync_dist": share.world > 1}
        self.log("loss", loss, prog_bar=True, batch_size=1, **both)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        """Let the target network of BYOL follow the encoder."""
        if hasattr(self.model.objective, "after_step"):
            self.model.objective.after_step(self.global_step, self.total)  # type: ignore[operator]

    def configure_optimizers(self) -> Any:
        """Build timm's optimiser and a learning rate that depends on the step."""
        settings = self.config.training
        decayed: Any = self.model  # timm leaves out biases and normalisation layers
        if settings.decay == "all":
            named = [item for item in self.model.named_parameters() if item[1].requires_grad]
            learnt = [value for name, value in named if name.endswith("log_factor")]
            rest = [value for name, value in named if not name.endswith("log_factor")]
            decayed = [{"params": rest}] + [{"params": learnt, "weight_decay": 0.0}] * bool(learnt)
        rates = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
        optimizer = create_optimizer_v2(decayed, opt=settings.optimizer, **rates)
        total = self.total
        scheduler = LambdaLR(optimizer, lambda step: learning_rate_factor(step, total, settings))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def learning_rate_factor(step: int, total: int, settings: Training) -> float:
    """Return the learning rate at a step, relative to ``training.learning_rate``."""
    warmup = settings.warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    if settings.schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup))) / 2


class SharedBatches(Sampler[list[int]]):
    """A process's share of batches of equal size; an incomplete last batch is left out.

    The order is another one in each epoch, which Lightning sets. Samples with a method
    ``order(seed)`` and an ``epoch_size`` choose the order themselves.
    """

    def __init__(self, samples: BatchedSet, batch_size: int, seed: int, share: Share) -> None:
        self.samples, self.batch_size, self.seed, self.share = samples, batch_size, seed, share
        self.sampler, self.epoch = self, 0  # Lightning sets the epoch of what is called so

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; Lightning calls this."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        seed = derived_seed(self.seed, "order", self.epoch)
        if hasattr(self.samples, "order"):
            order = self.samples.order(seed)
        else:
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(self.samples), generator=generator).tolist()
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield order[start : start + self.batch_size][self.share.rows]

    def __len__(self) -> int:
        return int(getattr(self.samples, "epoch_size", len(self.samples))) // self.batch_size


class History(Callback):
    """Measure after each epoch, write ``history.csv``, log, print, and keep the best encoder.

    The rows travel in the checkpoint, so a continued run has them all: Lightning's CSV logger
    begins an empty file. Row 0 is the encoder before training, also a candidate for the best.
    Without validation data there are only losses.
    """

    def __init__(
        self, task: Task[Any], config: Any, data: Data, folder: RunFolder, say: Callable[[str], Any]
    ) -> None:
        self.task, self.config, self.data, self.folder, self.say = task, config, data, folder, say
        self.metric = data.about.get("metric", task.metric)  # what the best epoch is chosen by
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0  # of training, also in earlier processes
        self._since = time.perf_counter()

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        """Measure the encoder before training."""
        self._since = time.perf_counter()
        if not self.rows:
            self._add(trainer, module, epoch=0)

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        """Add the row of this epoch."""
        self._add(trainer, module, trainer.current_epoch + 1)

    def _add(self, trainer: L.Trainer, module: TrainingModule, epoch: int) -> None:
        if not trainer.is_global_zero:
            return
        encoder = module.model.encoder.eval()
        measured: dict[str, float] = {}
        due = epoch % self.config.evaluation.every == 0 or epoch == trainer.max_epochs
        if due and len(self.data.splits.get("validation", ())):
            data = self.config, self.data
            measured = self.task.evaluate(*data, encoder, "validation", full=False).metrics
        module.model.train()
        logged: dict[str, Any] = {}
        if epoch:
            logged["loss"] = float(trainer.callback_metrics["loss_epoch"])
            if getattr(module.model.objective, "log_factor", None) is not None:  # it learns
                logged["sharpness"] = float(cast(Any, module.model.objective).sharpness)
        for logger in trainer.loggers:
            logger.log_metrics({**logged, **measured, "epoch": epoch}, trainer.global_step)
        row: dict[str, Any] = {"epoch": epoch, "step": trainer.global_step, "loss": None, **logged}
        names = self.rows[0] if self.rows else {}
        row |= {name: None for name in names if "/" in name} | measured
        score = row.get(self.metric)
        before = [other[self.metric] for other in self.rows if other.get(self.metric) is not None]
        if best := score is not None and all(score > other for other in before):
            self.folder.save_encoder(encoder, "best", self.config, self.data)
        self.rows.append(row)
        now = time.perf_counter()
        self.seconds, self._since = self.seconds + now - self._since, now
        write_text(self.folder.path / "history.csv", pd.DataFrame(self.rows).to_csv(index=False))
        loss = f"{logged['loss']:.4f}" if epoch else "-"
        found = "" if score is None else f"  validation {self.metric} {100 * score:5.1f} %"
        self.say(
            f"epoch {epoch:>3}/{trainer.max_epochs}  step {trainer.global_step:>5}/{module.total}  "
            f"loss {loss:>7}{found}{'  best' if best else ''}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, for the checkpoint."""
        return {"rows": self.rows, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the rows of a checkpoint."""
        self.rows, self.seconds = list(state["rows"]), state["seconds"]


class AtomicCheckpoints(TorchCheckpointIO):
    """Write a checkpoint to a temporary file and rename it; read tensors and plain values only.

    Lightning writes into the system's temporary folder and moves the file, which copies it if that
    is another disk: a process killed meanwhile leaves half a checkpoint.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, *_: Any, **__: Any) -> None:
        """Save, or leave what was there."""
        write_atomically(Path(path), lambda part: torch.save(checkpoint, part))

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Load, whatever the caller trusts, without running code."""
        return load_checkpoint(Path(path))
