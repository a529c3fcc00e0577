"""What a trained encoder is worth, written beside it."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import nn

from tricouple.conf.schema import Train
from tricouple.evaluation.evaluate import Evaluation, evaluate_features, write_figures
from tricouple.evaluation.features import extract
from tricouple.experiments.runs.evaluation import Beginning, write_evaluation
from tricouple.experiments.runs.loss_settings import sharpness_of
from tricouple.experiments.runs.trained import Trained, load_trained
from tricouple.experiments.vision.images import RunImages, load_images
from tricouple.experiments.vision.method import build_run_encoder
from tricouple.experiments.vision.run_folder import RunFolder, digest

NOT_LABELLED = "there are no labelled images to evaluate on"


def evaluate_run(config: Train, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Evaluate the weights that a run has now, as its configuration says."""
    trained = load_trained(folder)
    images = load_images(config)
    return evaluate_trained(config, folder, trained, images, console)


def evaluate_trained(
    config: Train, folder: RunFolder, trained: Trained, images: RunImages, console: Console
) -> dict[str, Any]:
    """Evaluate weights on images, and write evaluation.json.

    Returns:
        The content of that file.
    """
    began = Beginning()
    encoder = build_run_encoder(config, images.data)
    trained.restore(encoder, digest(config), folder)
    result = measure(config, folder, encoder, images, console)
    return write_evaluation(
        config,
        folder,
        trained,
        began,
        sharpness=sharpness_of(config.loss),
        accuracy=None if result is None else result.accuracy(),
        result=NOT_LABELLED if result is None else result.as_json(),
    )


def measure(
    config: Train, folder: RunFolder, encoder: nn.Module, images: RunImages, console: Console
) -> Evaluation | None:
    """Probe, k-NN, confusion and geometry; None if there are no labels to compare with."""
    data, settings = images.data, config.evaluation
    tested = images.measured(settings.part)
    if tested is None or data.probe is None:
        return None
    device = device_of(config)
    known, unseen = (
        extract(encoder, part, data.normalisation, device=device) for part in (data.probe, tested)
    )
    columns = TextColumn("linear probe"), BarColumn(), MofNCompleteColumn()
    hidden = not (config.progress and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("")
        result = evaluate_features(
            known,
            unseen,
            data.classes,
            k=settings.neighbours,
            epochs=settings.probe_epochs,
            lr=settings.probe_learning_rate,
            batch_size=settings.probe_batch_size,
            weight_decay=settings.probe_weight_decay,
            seed=config.seed,
            device=device,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if settings.figures:
        write_figures(result, unseen, folder.figures, config.seed)
    return result


def device_of(config: Train) -> torch.device:
    """Where features are computed: where training was, but on one device."""
    wanted = config.trainer.get("accelerator")
    if wanted in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return torch.device("cuda")
    if wanted in ("auto", "gpu", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
