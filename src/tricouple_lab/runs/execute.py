"""One training run from its configuration to its page; each step once, in this order.

check → load → folder → lock → finished? → config.yaml → build → evaluate → fit
→ encoder.safetensors → evaluate → metrics.json → report.html

Of several processes the first does all of it, the others only load, build and fit. Lightning and
matplotlib, which take seconds to import, are imported when they are used: a wrong setting or a
missing file is reported before.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from tricouple_lab.evaluation.probe import collapse_note
from tricouple_lab.files import derived_seed, locked, provenance, write_arrays, write_text
from tricouple_lab.names import UserError, check_loggers
from tricouple_lab.runs.folder import Record, RunFolder, load_weights, read_config
from tricouple_lab.tasks.base import Data, Evaluation, Model, Task, make_loss, rank, task_of

Say = Callable[[str], object]


def execute(
    task: Task[Any],
    config: Any,
    *,
    say: Say = print,
    callbacks: Sequence[Any] = (),
    origin: Mapping[str, Any] | None = None,
    restart: bool = False,
) -> Record:
    """Train, evaluate and record one run; continue it, or return it if it has finished.

    ``say`` receives each line of progress; ``origin`` is what the provenance of a run that is one
    of many says about that; ``restart`` deletes the run in its folder first. The record is also
    written as ``metrics.json``. A process that Lightning or torchrun has started in addition to
    the first one ends here. Ctrl-C raises a ``KeyboardInterrupt`` whose text says how to continue.
    """
    check(config)
    if rank():
        _help(task, config, callbacks)
    data = task.load(config)
    for note in data.notes:
        say(f"note: {note}")
    folder = RunFolder.of(task.name, config, data.digest)
    with locked(folder.path):
        if restart:
            folder.clear()
        folder.check()
        found = folder.record()
        sizes = ", ".join(f"{len(split)} {name}" for name, split in data.splits.items())
        say(f"run: {folder.path}\ndata: {sizes}")
        if found is not None:
            old, new = found.config["evaluation"], asdict(config.evaluation)
            if all(old.get(key) == value for key, value in new.items() if key != "every"):
                say("this run has finished before; --restart trains it again")
                return found
            say("this run has finished before; it is measured again with the new settings")
            measured, after = measure(task, config, data, folder.path, found)
            finish(config, folder, measured, after, say)
            return measured
        folder.begin(config)
        try:
            return _train(task, config, data, folder, say, callbacks, origin)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "the same command continues from the last finished epoch, as does tricouple train "
                f"--resume {folder.path}"
            ) from None


def resume(folder: Path, words: Sequence[str] = (), **options: Any) -> Record:
    """Continue the run in a folder with its own configuration, changed by words; see ``execute``.

    Only settings that are no part of what the run computes can change, such as ``trainer.devices``.
    """
    config = read_config(folder, words)
    config.run = str(folder)
    return execute(task_of(config.task), config, **options)


def check(config: Any) -> None:
    """Raise for values that no run can have, before anything is read."""
    training = config.training
    if not training.learning_rate > 0:
        raise UserError(f"training.learning_rate={training.learning_rate}: must be above 0")
    if training.chunk_size is not None and config.loss["name"] == "byol":
        raise UserError(f"training.chunk_size={training.chunk_size}: loss=byol takes no chunks")
    check_loggers(config.logger)
    for package in ("lightning", "timm", "matplotlib", "sklearn"):  # imported after the data
        if not find_spec(package):
            raise ModuleNotFoundError(name=package)
    if config.trainer:
        from tricouple_lab.training.trainer import check_flags

        check_flags(config.trainer)
    make_loss(config.loss)


def _train(
    task: Task[Any],
    config: Any,
    data: Data,
    folder: RunFolder,
    say: Say,
    callbacks: Sequence[Any],
    origin: Mapping[str, Any] | None,
) -> Record:
    split = config.evaluation.split
    _check_split(data, split)
    model = build(task, config, data)
    from tricouple_lab.training.trainer import prepare

    history, train = prepare(task, config, data, model, folder, say, callbacks, origin is not None)
    before = task.evaluate(config, data, model.encoder.eval(), split, full=True)
    train()
    folder.save_encoder(model.encoder, "encoder", config, data)
    if origin is None and hasattr(task, "export"):
        task.export(config, model.encoder.eval(), folder.path / "encoder")
    after = task.evaluate(config, data, model.encoder.eval(), split, full=True)
    sizes = {name: len(part) for name, part in data.splits.items()}
    record = Record(
        id=folder.path.name,
        task=task.name,
        config=asdict(config),
        data={"name": config.data.name, "digest": data.digest, "sizes": sizes}
        | {"classes": list(data.classes), "notes": list(data.notes)},
        metric=data.about.get("metric", task.metric),
        **_scores(before, after, data.classes),
        validation=history.rows[-1].get(history.metric),
        curves=history.rows,
        steps=history.rows[-1]["step"],
        seconds=round(history.seconds, 3),
        provenance={**provenance(), **(origin or {})},
    )
    best = max(history.rows, key=lambda row: row.get(history.metric) or 0.0)
    if record.validation is not None and best[history.metric] > record.validation:
        say(f"note: best on validation data after {best['epoch']} epochs; --which best takes that")
    for key in {"embedding", "image", "text"} & after.arrays.keys():
        if note := collapse_note(after.arrays[key], len(data.classes)):
            say(f"warning: {note}")
    finish(config, folder, record, after, say)
    if not config.training.keep_checkpoint:
        folder.checkpoint.unlink(missing_ok=True)
    return record


def build(task: Task[Any], config: Any, data: Data) -> Model:
    """Build the model of a run; its weights depend on the seed alone."""
    torch.manual_seed(derived_seed(config.seed, "weights"))
    return task.build(config, data)


def finish(config: Any, folder: RunFolder, record: Record, after: Evaluation, say: Say) -> None:
    """Write ``examples.npz``, the page, and last ``metrics.json``, which says that it is done."""
    from tricouple_lab.report.run_page import run_page

    arrays = after.arrays if config.evaluation.figures else {}
    if arrays:
        write_arrays(folder.path / "examples.npz", arrays)
    write_text(folder.path / "report.html", run_page(record, arrays))
    write_text(folder.path / "metrics.json", record.to_json(indent=1))
    say(f"page: {folder.path / 'report.html'}")


def _scores(before: Evaluation, after: Evaluation, classes: Sequence[str]) -> dict[str, Any]:
    """Return fields of a record; ``per_class``: the share of correct predictions, if known."""
    arrays, shares = after.arrays, {}
    if {"labels", "predicted"} <= arrays.keys() and classes:
        right = pd.Series(arrays["predicted"] == arrays["labels"])
        shares = right.groupby(arrays["labels"]).mean().rename(index=dict(enumerate(classes)))
    measured = {"chance": after.chance, "before": before.metrics, "after": after.metrics}
    return {**measured, "per_class": dict(shares)}


def measure(
    task: Task[Any], config: Any, data: Data, folder: Path, record: Record, which: str = "last"
) -> tuple[Record, Evaluation]:
    """Measure a finished run with other evaluation settings or data; nothing is written."""
    split = config.evaluation.split
    _check_split(data, split)
    encoder = build(task, config, data).encoder.eval()
    before = task.evaluate(config, data, encoder, split, full=True)
    load_weights(folder, encoder, which)
    after = task.evaluate(config, data, encoder.eval(), split, full=True)
    measured = replace(
        record,
        config={**record.config, "evaluation": asdict(config.evaluation)},
        **_scores(before, after, data.classes),
        provenance={**record.provenance, "evaluated": provenance()["date"]},
    )
    return measured, after


def _help(task: Task[Any], config: Any, callbacks: Sequence[Any]) -> None:
    """Load, build and fit in a process other than the first, quietly; then end the process."""
    with contextlib.suppress(UserError):  # the first process prints the same
        data = task.load(config)
        folder = RunFolder.of(task.name, config, data.digest)
        if folder.record() is None:
            model = build(task, config, data)
            from tricouple_lab.training.trainer import prepare

            prepare(task, config, data, model, folder, callbacks=callbacks)[1]()
    sys.exit(0)


def _check_split(data: Data, split: str) -> None:
    if not len(data.splits.get(split, ())):
        raise UserError(f"evaluation.split={split}: these data have no {split} samples")
