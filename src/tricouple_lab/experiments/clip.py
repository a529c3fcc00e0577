"""``tricouple clip``: image and text encoders trained on captions, and what they are worth."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from tricouple import BothDirections
from tricouple_lab.conf.compose import build_loss, sharpness_of
from tricouple_lab.conf.schema import Clip
from tricouple_lab.data import captions, images
from tricouple_lab.data.images import DataError, ImageSet
from tricouple_lab.data.images.sets import Normalisation
from tricouple_lab.data.pairs import CaptionData, CaptionedImages, PairSamples, Tokens, tokenise
from tricouple_lab.evaluation.features import embed_images, embed_texts, measure_modalities
from tricouple_lab.evaluation.gallery import pair_gallery
from tricouple_lab.evaluation.retrieval import (
    class_embeddings,
    classify,
    in_batches,
    whole_split,
)
from tricouple_lab.experiments.runs.folder import Trained
from tricouple_lab.experiments.runs.kind import Loaded, RunKind, result_table
from tricouple_lab.models.encoders import build_clip
from tricouple_lab.training.module import PairTraining, Training, derived_seed

if TYPE_CHECKING:
    import open_clip

# Of the images that CLIP was trained on; all public CLIP models use these.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
DIRECTIONS = {"image_to_text": "image → text", "text_to_image": "text → image"}
CHANCES = {"image_to_text": "chance", "text_to_image": "chance_text"}


# --- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeldOutPairs:
    """Images and captions that are not trained on, followed along training."""

    pairs: CaptionedImages  # the first of them are measured
    tokens: Tensor  # of their captions
    normalisation: Normalisation  # of the images
    size: int  # how many images to measure, at most
    batch_size: int  # pairs to choose from, as in training

    def measure(self, encoder: nn.Module) -> dict[str, float]:
        """Recall@1 in batches, modality gap, alignment, uniformity."""
        model = cast("open_clip.CLIP", encoder)
        n = min(self.size, len(self.pairs))
        kept = self.pairs.owners < n
        images = embed_images(model, self.pairs.images[torch.arange(n)], self.normalisation)
        texts = embed_texts(model, self.tokens[kept])
        owners = self.pairs.owners[kept]
        found = in_batches(images, texts, owners, self.batch_size)
        return {
            "image_to_text": found.image_to_text.at1,
            "text_to_image": found.text_to_image.at1,
            **asdict(measure_modalities(images, texts, owners)),
        }


@dataclass(frozen=True, eq=False)
class RunCaptions(Loaded):
    """What a run trains on and is measured on.

    Some of the validation images, or of the test images if there are none, are followed.
    """

    data: CaptionData  # images and captions
    tokens: dict[str, Tensor]  # of the captions of each part, by the part's name
    # Labelled images to recognise without examples, and the names of their classes.
    zero_shot: dict[str, tuple[ImageSet, tuple[str, ...]]]


def own_files(config: Clip) -> list[Path]:
    """The files of captions of one's own, and the images that they name."""
    return captions.files(config.data) if config.data.own else []


def published(config: Clip) -> tuple[Path, list[Path]]:
    """The files of a published data set; none if it is not complete."""
    with suppress(DataError):  # loading says it better
        return captions.root_of(config.data), captions.files(config.data)
    return captions.root_of(config.data), []


def load_captions(config: Clip) -> RunCaptions:
    """Load all that a run needs.

    Raises:
        ValueError: If files are missing, the sizes are not possible, or training could only fail.
    """
    evaluation, training = config.evaluation, config.training
    data = captions.load(config.data, image_size(config), config.seed)
    part_of(data, evaluation.part)  # refuses what cannot be
    length = context_length(config)
    tokens = {
        name: tokenise(part.captions, length)
        for name in ("train", "validation", "test")
        if (part := getattr(data, name)) is not None
    }
    wanted = evaluation.zero_shot if evaluation.part == "test" else []
    zero_shot = {name: _classes(name, evaluation.zero_shot_size) for name in wanted}
    train = data.train
    samples = PairSamples(
        train.images, tokens["train"].ids, train.owners, training.captions == "all"
    )
    if not 2 <= training.batch_size <= len(samples):
        raise ValueError(
            f"training.batch_size is {training.batch_size}, but there are {len(samples)} "
            f"training images: use between 2 and {len(samples)}"
        )
    followed = "test" if data.validation is None else "validation"
    held_out = HeldOutPairs(
        part_of(data, followed),
        tokens[followed].ids,
        normalisation_of(config),
        training.geometry_samples,
        training.batch_size,
    )
    notes = (*data.notes, *_cut_note(tokens, length))
    ids = {name: found.ids for name, found in tokens.items()}
    return RunCaptions(notes, samples, held_out, data, ids, zero_shot)


def part_of(data: CaptionData, name: str) -> CaptionedImages:
    """The images and captions of a part."""
    found = {"train": data.train, "validation": data.validation, "test": data.test}[name]
    if found is None:
        raise ValueError(f"evaluation.part={name} needs data.{name}, or data.{name}_size above 0")
    return found


def _cut_note(tokens: dict[str, Tokens], length: int) -> list[str]:
    """One note on captions that were too long, with the first of them."""
    cut = {name: found for name, found in tokens.items() if found.truncated}
    if not cut:
        return []
    counts = ", ".join(f"{found.truncated} {name}" for name, found in cut.items())
    first = shorten(next(iter(cut.values())).first_truncated, 80, placeholder=" …")
    return [f"captions of more than {length} tokens were cut ({counts}), the first is {first!r}"]


def _classes(name: str, size: int | None) -> tuple[ImageSet, tuple[str, ...]]:
    """Test images of a set; the same ones for every run."""
    try:
        data = images.load(name)
    except ValueError as error:
        raise ValueError(
            f"evaluation.zero_shot={name}: {error}; or leave it out: evaluation.zero_shot=[]"
        ) from error
    test = data.test
    if test is None or test.labels is None:
        raise ValueError(f"evaluation.zero_shot={name}: there are no labelled images")
    if data.channels != 3:
        raise ValueError(f"evaluation.zero_shot={name}: images must have colours")
    if size is not None and size < len(test):
        test = images.subset(test, size, 0, name="evaluation.zero_shot_size")
    return test, data.classes


# --- encoders and method -------------------------------------------------------------------------


def make_encoder(config: Clip, found: RunCaptions | None = None) -> open_clip.CLIP:
    """Both encoders of open_clip's CLIP."""
    model = config.model
    return build_clip(model.embed_dim, model.vision, model.text)


def make_method(
    config: Clip, found: RunCaptions, encoder: nn.Module, options: dict[str, Any]
) -> Training:
    """A loss in both directions."""
    training = config.training
    return PairTraining(
        cast("open_clip.CLIP", encoder),
        BothDirections(build_loss(config.loss), learn=training.learn_temperature),
        normalisation_of(config),
        augment=training.augment,
        decoupled_decay=training.decoupled_decay,
        **options,
    )


def normalisation_of(config: Clip) -> Normalisation:
    """CLIP's own, at the size of the run's model."""
    return Normalisation(CLIP_MEAN, CLIP_STD, image_size(config))


def context_length(config: Clip) -> int:
    """How many tokens of a text the model reads."""
    return int(config.model.text.get("context_length", 77))


def image_size(config: Clip) -> int:
    """Side of the images that the model sees."""
    size = config.model.vision.get("image_size")
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"model.vision.image_size must be a whole number of pixels, got {size!r}")
    return size


# --- evaluation ----------------------------------------------------------------------------------


def evaluate(
    config: Clip, found: RunCaptions, encoder: nn.Module, trained: Trained, console: Console
) -> dict[str, Any]:
    """Retrieval, zero-shot classification and geometry."""
    model, part = cast("open_clip.CLIP", encoder), config.evaluation.part
    pairs, tokens = part_of(found.data, part), found.tokens[part]
    normalisation = normalisation_of(config)
    images = embed_images(model, pairs.images, normalisation)
    texts = embed_texts(model, tokens)
    batches = in_batches(images, texts, pairs.owners, config.training.batch_size)
    result = {
        "n_images": len(images),
        "n_captions": len(texts),
        "batch_size": batches.candidates[0],
        "whole_split": asdict(whole_split(images, texts, pairs.owners)),
        "in_batch": asdict(batches),
        "zero_shot": zero_shot(config, model, found),
        "modalities": asdict(measure_modalities(images, texts, pairs.owners)),
    }
    fixed = sharpness_of(config.loss)
    assert fixed is not None  # every loss across modalities has one
    sharpness = float(trained.rows[-1].get("sharpness", fixed))  # what was learnt, or what was set
    torch.manual_seed(derived_seed(config.seed, "weights"))
    gallery = pair_gallery(
        pairs,
        tokens,
        images,
        texts,
        {"before": make_encoder(config), "after": model},
        normalisation,
        count=config.evaluation.gallery,
        sharpness=sharpness,
    )
    return {
        "sharpness": sharpness,
        "metrics": metrics(result),
        "result": result,
        "notes": list(found.notes),
        "gallery": gallery,
    }


def zero_shot(
    config: Clip, model: open_clip.CLIP, found: RunCaptions
) -> dict[str, dict[str, float]]:
    """Accuracy on each image set, from the names of its classes alone."""
    rows = {}
    for name, (test, classes) in found.zero_shot.items():
        assert test.labels is not None
        images = embed_images(model, test.images, normalisation_of(config))
        named = class_embeddings(model, classes, context_length(config))
        rows[name] = asdict(classify(images, named, test.labels))
    return rows


def metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """The figures under flat names, such as ``in_batch/image_to_text/at1``."""
    found: dict[str, float] = {
        f"{place}/{direction}/{name}": value
        for place in ("whole_split", "in_batch")
        for direction in DIRECTIONS
        for name, value in result[place][direction].items()
    }
    found["in_batch/at1"] = sum(result["in_batch"][key]["at1"] for key in DIRECTIONS) / 2
    for name, row in result["zero_shot"].items():
        for top in ("top1", "top5"):
            found[f"zero_shot/{name}/{top}"] = row[top]
    for name, value in result["modalities"].items():
        found[f"modalities/{name}"] = value
    return found


def kept(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """What a record keeps: figures, what guessing would give (``chance/…``), sizes, notes."""
    result = evaluation["result"]
    chance = {
        f"chance/{place}/{direction}/{name}": value
        for place in ("whole_split", "in_batch")
        for direction, key in CHANCES.items()
        for name, value in result[place][key].items()
    }
    for name, row in result["zero_shot"].items():
        chance[f"chance/zero_shot/{name}/top1"] = row["chance"]
        chance[f"chance/zero_shot/{name}/top5"] = min(1.0, 5 * row["chance"])
    sizes = {name: result[name] for name in ("n_images", "n_captions", "batch_size")}
    return {"metrics": {**evaluation["metrics"], **chance, **sizes}, "notes": evaluation["notes"]}


def table(evaluation: Mapping[str, Any]) -> Table:
    """The content of an evaluation.json as a table."""
    result, geometry = evaluation["result"], evaluation["result"]["modalities"]
    told = (
        f"modality gap {geometry['gap']:.2f}, alignment {geometry['alignment']:.2f}, uniformity "
        f"{geometry['image_uniformity']:.2f} (images) {geometry['text_uniformity']:.2f} (texts)"
    )
    first = f"{evaluation['settings']['part']} set, % (chance)"
    found = result_table(evaluation, told, (first, "@1", "@5", "@10"))
    whole = f"whole split, {result['n_images']} images, {result['n_captions']} captions"
    batch = f"in batches of {result['batch_size']}"
    for place, name in (("in_batch", batch), ("whole_split", whole)):
        for key, direction in DIRECTIONS.items():
            recall, chance = result[place][key], result[place][CHANCES[key]]
            cells = (
                f"{100 * recall[k]:.1f} ({100 * chance[k]:.1f})" for k in ("at1", "at5", "at10")
            )
            found.add_row(f"{direction}, {name}", *cells)
    for name, row in result["zero_shot"].items():
        found.add_row(
            f"zero-shot {name}, {row['n_images']} images",
            f"{100 * row['top1']:.1f} ({100 * row['chance']:.1f})",
            f"{100 * row['top5']:.1f} ({500 * row['chance']:.1f})",
            "",
        )
    return found


# --- settings ------------------------------------------------------------------------------------


def flat(config: Clip) -> dict[str, Any]:
    """The settings that tell image-text runs apart, beside those of every kind."""
    training = config.training
    return {
        "model": config.model.name,
        "image_size": config.model.vision.get("image_size"),
        "decoupled_decay": training.decoupled_decay,
        "captions": training.captions,
        "learn_temperature": training.learn_temperature,
        "zero_shot_size": config.evaluation.zero_shot_size,
    }


CLIP = RunKind(
    name="clip",
    config=Clip,
    prefix=("clip",),
    network=attrgetter("model.name"),
    files=own_files,
    published=published,
    load=load_captions,
    encoder=make_encoder,
    method=make_method,
    evaluate=evaluate,
    kept=kept,
    flat=flat,
    table=table,
    chosen_by="in_batch/at1",
    gallery=True,
)
