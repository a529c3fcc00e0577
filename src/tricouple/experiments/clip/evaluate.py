"""What a trained pair of encoders is worth, written beside it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tricouple.conf.schema import Clip
from tricouple.evaluation.features import embed_images, embed_texts
from tricouple.evaluation.geometry import measure_modalities
from tricouple.evaluation.retrieval import Retrieval, in_batches, whole_split
from tricouple.evaluation.zero_shot import class_embeddings, classify
from tricouple.experiments.clip.captions import RunCaptions
from tricouple.experiments.clip.gallery import draw_gallery
from tricouple.experiments.clip.method import build_model, normalisation_of
from tricouple.experiments.clip.run_folder import GALLERY
from tricouple.experiments.runs.evaluation import Beginning, write_evaluation
from tricouple.experiments.runs.loss_settings import sharpness_of
from tricouple.experiments.runs.run_folder import RunFolder, digest
from tricouple.experiments.runs.trained import Trained
from tricouple.files import write_atomically

if TYPE_CHECKING:
    from open_clip import CLIP


def evaluate_trained(
    config: Clip, folder: RunFolder, trained: Trained, found: RunCaptions
) -> dict[str, Any]:
    """Evaluate weights, and write evaluation.json and the gallery.

    Returns:
        The content of evaluation.json.
    """
    began = Beginning()
    model = build_model(config)
    trained.restore(model, digest(config), folder)
    part = config.evaluation.part
    pairs = found.part(part)
    images = embed_images(model, pairs.images, normalisation_of(config))
    texts = embed_texts(model, found.tokens[part])
    whole = whole_split(images, texts, pairs.owners)
    batches = in_batches(images, texts, pairs.owners, config.training.batch_size)
    result = {
        "n_images": len(images),
        "n_captions": len(texts),
        "batch_size": batches.candidates[0],
        "whole_split": asdict(whole),
        "in_batch": asdict(batches),
        "zero_shot": zero_shot(config, model, found),
        "modalities": measure_modalities(images, texts, pairs.owners).row(),
    }
    sharpness = sharpness_now(config, trained)
    gallery = draw_gallery(config, found, model, images, texts, sharpness)
    write_atomically(folder.path / GALLERY, lambda file: file.write(gallery))
    return write_evaluation(
        config,
        folder,
        trained,
        began,
        sharpness=sharpness,
        metrics=metrics(whole, batches, result),
        result=result,
        notes=list(found.notes),
    )


def sharpness_now(config: Clip, trained: Trained) -> float:
    """The sharpness c of the loss: what was learnt, or what was set."""
    fixed = sharpness_of(config.loss)
    assert fixed is not None  # every loss across modalities has one
    return float(trained.rows[-1].get("sharpness", fixed))


def zero_shot(config: Clip, model: CLIP, found: RunCaptions) -> dict[str, dict[str, float]]:
    """Accuracy on each image set, from the names of its classes alone."""
    length = int(config.model.text.get("context_length", 77))
    rows = {}
    for name, classes in found.zero_shot.items():
        assert classes.images.labels is not None
        images = embed_images(model, classes.images.images, normalisation_of(config))
        named = class_embeddings(model, classes.names, length)
        rows[name] = classify(images, named, classes.images.labels).row()
    return rows


def metrics(whole: Retrieval, batches: Retrieval, result: dict[str, Any]) -> dict[str, float]:
    """The figures under flat names, such as ``in_batch/image_to_text/at1``."""
    found: dict[str, float] = {}
    for place, retrieval in (("whole_split", whole), ("in_batch", batches)):
        for direction in ("image_to_text", "text_to_image"):
            for name, value in getattr(retrieval, direction).row().items():
                found[f"{place}/{direction}/{name}"] = value
    found["in_batch/at1"] = (batches.image_to_text.at1 + batches.text_to_image.at1) / 2
    for name, row in result["zero_shot"].items():
        for top in ("top1", "top5"):
            found[f"zero_shot/{name}/{top}"] = row[top]
    for name, value in result["modalities"].items():
        found[f"modalities/{name}"] = value
    return found
