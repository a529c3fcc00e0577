"""``tricouple train``: image encoders trained with and without labels, and what they are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from torch import nn

from tricouple_lab.conf.compose import build_loss, loss_parameters, sharpness_of
from tricouple_lab.conf.schema import Train
from tricouple_lab.data import images
from tricouple_lab.data.augment import recipe_for
from tricouple_lab.data.images import ImageData, ImageSet
from tricouple_lab.data.images.files import find_images
from tricouple_lab.data.images.sets import Normalisation, imagenet_statistics
from tricouple_lab.evaluation.features import MEASURES, HeldOut, extract
from tricouple_lab.evaluation.gallery import image_gallery
from tricouple_lab.evaluation.probe import evaluate_features
from tricouple_lab.experiments.runs.folder import Trained
from tricouple_lab.experiments.runs.kind import Loaded, RunKind, device_of, result_table
from tricouple_lab.models.encoders import build_encoder, fitting_size
from tricouple_lab.names import FEATURES
from tricouple_lab.training.module import BYOLTraining, LossTraining, Training, Views

PRETRAINED_SIZE = 224  # what the paper resizes images to for pretrained backbones
NOT_LABELLED = "there are no labelled images to evaluate on"


# --- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RunImages(Loaded):
    """What a run trains on and is measured on; some labelled images are followed along training."""

    # The whole data set, with the run's normalisation; ``data.train`` is trained on.
    data: ImageData
    # The labelled images that the evaluation is about; None if there are none.
    measured: ImageSet | None


def own_files(config: Train) -> list[Path]:
    """The images of one's own, and the file of weights that training starts from."""
    data, weights = config.data, config.backbone.weights
    start = [] if weights is None else [Path(weights)]
    if not data.own:
        return start
    roots = [Path(root) for root in (data.root, data.eval_root) if root is not None]
    return [path for images in find_images(roots, []) for path in images] + start


def published(config: Train) -> tuple[Path, list[Path]]:
    """The files of a published data set."""
    return images.published_files(config.data.name, config.data.root)


def load_images(config: Train) -> RunImages:
    """Load the data set of a run and cut it to size.

    The seed of the run chooses the subset and the validation images; the test set is always the
    same.

    Raises:
        ValueError: If files are missing, the sizes are not possible, or training could only fail.
    """
    wanted = config.data
    data = images.load(
        wanted.name,
        wanted.root,
        image_size=wanted.image_size,
        download=wanted.download,
        eval_root=wanted.eval_root,
    )
    train, validation = data.train, None
    if wanted.train_size is not None:
        train = images.subset(train, wanted.train_size, config.seed, name="data.train_size")
    elif wanted.max_train_size is not None:
        train = _at_most(train, wanted.max_train_size, config.seed)
    if wanted.validation_size:
        train, validation = images.split(train, wanted.validation_size, config.seed)
    probe = train if data.train.labels is not None else data.probe
    data = replace(data, train=train, probe=probe, normalisation=_normalisation(config, data))
    images.check_batch_size(train, config.training.batch_size, name="training.batch_size")
    if config.setting.name == "scl":
        images.check_supervised(data)
    measured = data.test if config.evaluation.part == "test" else validation
    limit = config.evaluation.max_test_size
    if measured is not None and limit is not None:
        measured = _at_most(measured, limit, seed=0)  # the same for all runs
    held_out = None
    if (followed := validation or data.test) is not None:
        some = _at_most(followed, config.training.geometry_samples, config.seed)
        held_out = HeldOut(some, data.normalisation)
    return RunImages(data.notes, train, held_out, data, measured)


def _normalisation(config: Train, data: ImageData) -> Normalisation:
    backbone, found = config.backbone, data.normalisation
    if backbone.pretrained or backbone.weights is not None:
        size = config.data.image_size or PRETRAINED_SIZE
        found = Normalisation(*imagenet_statistics(data.channels), size)
    return replace(found, size=fitting_size(backbone.name, found.size))


def _at_most(found: ImageSet, size: int, seed: int) -> ImageSet:
    return found if len(found) <= size else images.subset(found, size, seed)


# --- encoder and method --------------------------------------------------------------------------


def make_encoder(config: Train, images: RunImages) -> nn.Module:
    """The backbone and a linear head."""
    backbone, data = config.backbone, images.data
    return build_encoder(
        backbone.name,
        channels=data.channels,
        image_size=data.image_size,
        head_dim=head_dim(config, data),
        pretrained=backbone.pretrained,
        weights=backbone.weights,
    )


def about(config: Train, images: RunImages) -> dict[str, Any]:
    """What ``make_encoder`` and the images of the data set say, without them."""
    data = images.data
    return {
        "head_dim": head_dim(config, data),
        "classes": list(data.classes),
        "side": data.train.images.shape[-1],  # of images before the normalisation
        "normalisation": asdict(data.normalisation),
    }


def head_dim(config: Train, data: ImageData) -> int:
    """Dimension of the embedding: the number of classes, as in the paper, or what is asked for."""
    found = config.backbone.head_dim or data.n_classes
    if not found:
        raise ValueError("backbone.head_dim must be given for data without classes, such as 128")
    return found


def make_method(
    config: Train, images: RunImages, encoder: nn.Module, options: dict[str, Any]
) -> Training:
    """A loss of views, or BYOL, which is more than a loss."""
    setting = config.setting
    views = Views(
        setting.views,
        recipe_for(images.data),
        random=setting.augment,
        by_class=setting.name == "scl",
    )
    if config.loss["name"] == "byol":
        dim, parameters = head_dim(config, images.data), loss_parameters(config.loss)
        return BYOLTraining(encoder, views, head_dim=dim, **parameters, **options)
    return LossTraining(encoder, views, build_loss(config.loss), **options)


# --- evaluation ----------------------------------------------------------------------------------


def evaluate(
    config: Train, images: RunImages, encoder: nn.Module, trained: Trained, console: Console
) -> dict[str, Any]:
    """Probe, k-NN, confusion and geometry, if there are labels to compare with."""
    data, settings, device = images.data, config.evaluation, device_of(config)
    sharpness = sharpness_of(config.loss)
    if images.measured is None or data.probe is None:
        return {"sharpness": sharpness, "accuracy": None, "result": NOT_LABELLED}
    known, unseen = (
        extract(encoder, part, data.normalisation, device=device)
        for part in (data.probe, images.measured)
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
    both = data.probe, images.measured
    gallery = image_gallery(result, known, unseen, both, config.seed) if settings.figures else None
    return {
        "sharpness": sharpness,
        "accuracy": result.accuracy(),
        "result": result.as_json(),
        "gallery": gallery,
    }


def kept(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """What a record keeps of an evaluation: accuracies, geometry, how many images it is about."""
    if evaluation["accuracy"] is None:
        return {"notes": [evaluation["result"]]}
    result = evaluation["result"]
    geometry = {kind: result[kind]["geometry"] or {} for kind in FEATURES}
    measured = {
        f"{kind}/{name}": geometry[kind].get(name) for kind in FEATURES for name in MEASURES
    }
    return {
        "metrics": {**evaluation["accuracy"], **measured, "images": result["n_train"]},
        "spectrum": geometry["embedding"].get("spectrum", []),
    }


def table(evaluation: Mapping[str, Any]) -> Table | str:
    """The content of an evaluation.json as a table; a sentence if nothing could be measured."""
    if evaluation["accuracy"] is None:
        return f"{evaluation['run']}: not evaluated, {evaluation['result']}"
    result, settings = evaluation["result"], evaluation["settings"]
    told = (
        f"{result['n_test']} {settings['part']} images, {result['n_train']} to learn from; probe "
        f"of {settings['probe_epochs']} epochs, k = {result['k']}"
    )
    head = ("features", "dim", "linear %", "k-NN %", "α", "β", "NC2", "effective rank")
    found = result_table(evaluation, told, head)
    for kind in FEATURES:
        row, geometry = result[kind], result[kind]["geometry"] or {}
        shown = [geometry.get(name) for name in ("alpha", "beta", "nc2_deviation")]
        found.add_row(
            kind,
            str(row["dim"]),
            f"{100 * row['linear']:.2f}",
            f"{100 * row['knn']:.2f}",
            *("–" if value is None else f"{value:.3f}" for value in shown),
            f"{geometry['effective_rank']:.1f}" if geometry else "–",
        )
    return found


# --- settings ------------------------------------------------------------------------------------


def flat(config: Train) -> dict[str, Any]:
    """The settings that tell vision runs apart, beside those of every kind."""
    data, backbone = config.data, config.backbone
    # Only where they are not as usual: most runs of most studies have none of them.
    special = {
        "max_train_size": data.max_train_size if data.train_size is None else None,
        "image_size": data.image_size,
        "pretrained": backbone.pretrained or None,
        "head_dim": backbone.head_dim,
        "max_test_size": config.evaluation.max_test_size,
    }
    return {
        "validation_size": data.validation_size,
        "setting": config.setting.name,
        "backbone": backbone.name,
        "probe_epochs": config.evaluation.probe_epochs,
        "neighbours": config.evaluation.neighbours,
        **{name: value for name, value in special.items() if value is not None},
    }


VISION = RunKind(
    name="vision",
    config=Train,
    prefix=(),
    setting=attrgetter("setting.name"),
    network=attrgetter("backbone.name"),
    files=own_files,
    published=published,
    load=load_images,
    encoder=make_encoder,
    about=about,
    method=make_method,
    evaluate=evaluate,
    kept=kept,
    flat=flat,
    table=table,
    chosen_by="penultimate/knn",
)
