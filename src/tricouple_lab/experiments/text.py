"""``tricouple text``: sentence encoders trained on classes or pairs, and what they are worth."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from tricouple_lab.conf.compose import build_loss, sharpness_of
from tricouple_lab.conf.schema import SentenceModel, Text
from tricouple_lab.data import texts
from tricouple_lab.data.images.sets import BatchedSet, check_batch_size
from tricouple_lab.data.texts import TextData, Texts
from tricouple_lab.evaluation.features import MEASURES, evaluating, measure_geometry
from tricouple_lab.evaluation.gallery import text_gallery
from tricouple_lab.evaluation.probe import detect, knn_accuracy, linear_probe, nearest_mean
from tricouple_lab.evaluation.retrieval import Recall, whole_split
from tricouple_lab.experiments.runs.folder import Trained
from tricouple_lab.experiments.runs.identity import listing
from tricouple_lab.experiments.runs.kind import Loaded, RunKind, device_of, result_table
from tricouple_lab.files import cache_home, load_tensors, locked, save_tensors
from tricouple_lab.models.sentences import Backbone, SentenceEncoder, build_backbone, package_folder
from tricouple_lab.names import FEATURES, LOSSES
from tricouple_lab.training.module import TextTraining, Training

DIRECTIONS = {"there": "text → pair", "back": "pair → text"}
_AT_A_TIME = 256


# --- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Samples(BatchedSet):
    """Texts as the encoder takes them: features of a frozen one, or the texts themselves.

    Batches are those of ``TextTraining``.
    """

    columns: tuple[Tensor | tuple[str, ...], ...]  # of pairs two
    labels: Tensor
    noun = "texts"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Any, ...]:
        """A batch in one step; loaders prefer this to item after item."""
        chosen = torch.as_tensor(indices)
        return *(_rows(column, chosen) for column in self.columns), self.labels[chosen]

    def embedded(self, encoder: nn.Module) -> dict[str, list[Tensor]]:
        """Both kinds of features of each column, shape (n, d) each, on the CPU."""
        found = [embed(encoder, column) for column in self.columns]
        return {kind: [both[place] for both in found] for place, kind in enumerate(FEATURES)}


def _rows(column: Tensor | tuple[str, ...], chosen: Tensor) -> Tensor | tuple[str, ...]:
    if isinstance(column, Tensor):
        return column[chosen]
    return tuple(column[place] for place in chosen.tolist())


@torch.no_grad()
def embed(encoder: nn.Module, column: Tensor | tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Features before the head and embeddings after it, shape (n, d) each, on the CPU."""
    sentences = cast(SentenceEncoder, encoder)
    with evaluating(encoder) as (device, dtype):
        if isinstance(column, Tensor):
            features = column.to(dtype)
        else:
            assert sentences.backbone is not None
            features = sentences.backbone.encode(column)
        parts = [sentences.project(part.to(device)).cpu() for part in features.split(_AT_A_TIME)]
    return features, torch.cat(parts)


@dataclass(frozen=True, eq=False)
class HeldOutTexts:
    """Texts that are not trained on, followed along training."""

    samples: Samples
    pairs: bool

    def measure(self, encoder: nn.Module) -> dict[str, float]:
        """The geometry of classes, or recall@1 of pairs."""
        columns = self.samples.embedded(encoder)["embedding"]
        if self.pairs:
            return {"recall": _right(retrieve(columns, self.samples.labels))}
        return _geometry(columns[0], self.samples.labels)


@dataclass(frozen=True, eq=False)
class RunTexts(Loaded):
    """What a run trains on and is measured on."""

    data: TextData
    width: int  # of the features
    parts: dict[str, Samples]  # train, test, and validation and out_of_scope if there are such


def own_files(config: Text) -> list[Path]:
    """The tables of one's own, and the files of the encoder that training starts from."""
    data, model = config.data, config.model
    tables = [Path(path) for path in (data.path, data.test_path) if path is not None]
    return [*tables, *sorted(_files(model.path))]


def _files(folder: str | None) -> list[Path]:
    """All files below a folder, none if it is not there: an encoder may be a name on the hub."""
    return [path for path in Path(folder).rglob("*") if path.is_file()] if folder else []


def published(config: Text) -> tuple[Path, list[Path]]:
    """The files of a published data set."""
    return texts.published_files(config.data.name, config.data.root)


def load_texts(config: Text) -> RunTexts:
    """Load the texts of a run, and what a frozen encoder says of them.

    Raises:
        ValueError: If files are missing, the sizes are not possible, or training could only fail.
    """
    data = texts.load(config.data, config.seed)
    _check_trainable(config, data)
    columns: dict[str, tuple[tuple[str, ...], ...]] = {
        part: tuple(column for column in found.columns if column)
        for part in ("train", "test", "validation")
        if (found := getattr(data, part)) is not None
    }
    if data.out_of_scope:
        columns["out_of_scope"] = (data.out_of_scope,)
    labels = {part: _labels(data, part, len(own[0])) for part, own in columns.items()}
    if config.model.finetune:
        backbone = build_backbone(place_of(config.model))
        cut = {part: sum(map(backbone.n_cut, own)) for part, own in columns.items()}
        parts = {part: Samples(own, labels[part]) for part, own in columns.items()}
        width = backbone.width
    else:
        frozen = Frozen(config.model, device_of(config))
        found = {p: [frozen.features(c, f"{p} texts") for c in own] for p, own in columns.items()}
        cut = {part: sum(n for _, n in own) for part, own in found.items()}
        parts = {p: Samples(tuple(x for x, _ in own), labels[p]) for p, own in found.items()}
        width = found["train"][0][0].shape[1]
    check_batch_size(parts["train"], config.training.batch_size, name="training.batch_size")
    counts = ", ".join(f"{n} of {part.replace('_', ' ')}" for part, n in cut.items() if n)
    notes = [f"texts longer than the encoder reads were cut: {counts}"] if counts else []
    followed = parts.get("validation", parts["test"])
    places = torch.randperm(len(followed), generator=torch.Generator().manual_seed(config.seed))
    chosen = places[: config.training.geometry_samples].sort().values
    some = Samples(tuple(_rows(c, chosen) for c in followed.columns), followed.labels[chosen])
    held_out = HeldOutTexts(some, pairs=not data.classes)
    return RunTexts((*data.notes, *notes), parts["train"], held_out, data, width, parts)


def _labels(data: TextData, part: str, n: int) -> Tensor:
    found = getattr(data, part)
    return found.labels if isinstance(found, Texts) else torch.full((n,), -1)


def _check_trainable(config: Text, data: TextData) -> None:
    """Refuse, before anything is computed, what training or evaluation could only fail at."""
    if config.evaluation.part == "validation" and data.validation is None:
        raise ValueError("evaluation.part=validation needs data.validation_size above 0")
    if not data.classes:
        if not LOSSES[config.loss["name"]].across:
            fitting = ", ".join(key for key, loss in LOSSES.items() if loss.across and loss.within)
            raise ValueError(
                f"loss={config.loss['name']} compares texts of one set, and these are pairs: "
                f"choose one of {fitting}"
            )
        return
    counts = data.train.labels.bincount(minlength=len(data.classes))
    single = [data.classes[code] for code in (counts < 2).nonzero().flatten().tolist()]
    if single:
        more = f" and {len(single) - 5} more" * (len(single) > 5)
        raise ValueError(
            f"{len(single)} of {len(data.classes)} classes have fewer than two training texts, an "
            f"anchor and a positive: {', '.join(single[:5])}{more}; add texts, or hold out fewer"
        )


# --- the encoder ----------------------------------------------------------------------------------


def place_of(model: SentenceModel) -> str | None:
    """The folder or the name on the hub that a model is loaded from; None for one made here."""
    return str(package_folder(model.package)) if model.package is not None else model.path


class Frozen:
    """What an encoder that is not trained says of texts: computed once, and kept."""

    def __init__(self, model: SentenceModel, device: torch.device) -> None:
        self.place, self.device = place_of(model), device

    @cached_property
    def backbone(self) -> Backbone:
        """The encoder, loaded when something has to be computed."""
        return build_backbone(self.place).to(self.device)

    def features(self, column: tuple[str, ...], what: str) -> tuple[Tensor, int]:
        """Features (n, width) of texts, and how many of these are longer than it reads."""
        if self.place is None:  # quicker than a file
            return self._compute(column, "")
        identity = listing(_files(self.place)) or self.place
        name = hashlib.sha256(json.dumps([identity, column]).encode()).hexdigest()[:32]
        path = cache_home() / "features" / f"sentences-{name}.pt"
        with locked(path.with_suffix(".lock"), lambda who: None):
            if not path.exists():
                features, cut = self._compute(column, what)
                save_tensors(path, {"features": features, "cut": cut})
        content = load_tensors(path)
        return content["features"], int(content["cut"])

    def _compute(self, column: tuple[str, ...], what: str) -> tuple[Tensor, int]:
        return self.backbone.encode(column, what), self.backbone.n_cut(column)


def make_encoder(config: Text, found: RunTexts) -> nn.Module:
    """A head on given features, or the encoder with a head; one of equal weights every time."""
    backbone = build_backbone(place_of(config.model)) if config.model.finetune else None
    return SentenceEncoder(found.width, config.model.head_dim, backbone)


def about(config: Text, found: RunTexts) -> dict[str, Any]:
    """What it takes to use the encoder without the texts."""
    return {"width": found.width, "classes": list(found.data.classes)}


def make_method(
    config: Text, found: RunTexts, encoder: nn.Module, options: dict[str, Any]
) -> Training:
    """A loss of embeddings."""
    return TextTraining(encoder, build_loss(config.loss), **options)


# --- evaluation ----------------------------------------------------------------------------------


def evaluate(
    config: Text, found: RunTexts, encoder: nn.Module, trained: Trained, console: Console
) -> dict[str, Any]:
    """Classification and out-of-scope detection, or retrieval; before the head and after it."""
    part = config.evaluation.part
    encoder.to(device_of(config))
    known, unseen = (found.parts[name].embedded(encoder) for name in ("train", part))
    outside = found.parts.get("out_of_scope")
    strange = outside.embedded(encoder) if outside else None
    result: dict[str, Any] = {
        "n_train": len(found.parts["train"]),
        "n_test": len(found.parts[part]),
        "n_out_of_scope": len(found.data.out_of_scope),
        "n_classes": len(found.data.classes),
    }
    for kind in FEATURES:
        if found.data.classes:
            result[kind] = classify(config, found, known[kind][0], unseen[kind][0])
            if strange:
                scores = (
                    nearest_mean(known[kind][0], found.parts["train"].labels, own[kind][0])[1]
                    for own in (unseen, strange)
                )
                result[kind] |= asdict(detect(*scores))
        else:
            retrieval = retrieve(unseen[kind], found.parts[part].labels)
            result[kind] = {
                f"{direction}/{k}": value
                for direction, recall in retrieval.items()
                for k, value in asdict(recall).items()
            } | {"recall": _right(retrieval)}
    gallery = text_gallery(
        (found.data.train, getattr(found.data, part)),
        {kind: (known[kind], unseen[kind]) for kind in FEATURES},
        found.data.classes,
        config.evaluation.gallery,
    )
    return {
        "sharpness": sharpness_of(config.loss),
        "result": result,
        "notes": list(found.notes),
        "gallery": gallery,
    }


def classify(config: Text, found: RunTexts, known: Tensor, unseen: Tensor) -> dict[str, Any]:
    """Nearest class mean, k-NN, linear probe and geometry of one kind of features."""
    settings = config.evaluation
    learnt, truth = (found.parts[name].labels for name in ("train", settings.part))
    probe = linear_probe(
        known,
        learnt,
        unseen,
        truth,
        len(found.data.classes),
        epochs=settings.probe_epochs,
        lr=settings.probe_learning_rate,
        batch_size=settings.probe_batch_size,
        weight_decay=settings.probe_weight_decay,
        seed=config.seed,
    )
    predicted = nearest_mean(known, learnt, unseen)[0]
    return {
        "ncm": float((predicted == truth).double().mean()),
        "knn": knn_accuracy(known, learnt, unseen, truth, min(settings.neighbours, len(learnt))),
        "linear": probe.accuracy,
        **_geometry(unseen, truth, config.seed),
    }


def _geometry(features: Tensor, labels: Tensor, seed: int = 0) -> dict[str, float]:
    found = measure_geometry(features, labels, seed)
    return {} if found is None else {name: getattr(found, name) for name in MEASURES}


def retrieve(columns: Sequence[Tensor], labels: Tensor) -> dict[str, Recall]:
    """Recall of pairs in both directions, among all texts; equal first texts are one query."""
    owners = labels.unique(return_inverse=True)[1]
    first = torch.zeros(int(owners.max()) + 1, dtype=torch.int64)
    first[owners.flip(0)] = torch.arange(len(owners)).flip(0)
    order = owners.argsort(stable=True)
    whole = whole_split(columns[0][first], columns[1][order], owners[order])
    return {"there": whole.image_to_text, "back": whole.text_to_image}


def _right(retrieval: Mapping[str, Recall]) -> float:
    """Recall@1, the mean of both directions."""
    return sum(recall.at1 for recall in retrieval.values()) / len(retrieval)


def kept(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """What a record keeps: ``right`` is the nearest class mean's accuracy, or recall@1 of pairs."""
    result = evaluation["result"]
    metrics = {f"{kind}/{name}": value for kind in FEATURES for name, value in result[kind].items()}
    sizes = {name: value for name, value in result.items() if name not in FEATURES}
    own = result["embedding"]
    right = own["ncm"] if "ncm" in own else own["recall"]
    return {"metrics": {"right": right, **metrics, **sizes}, "notes": evaluation["notes"]}


_COLUMNS = {
    "ncm": "nearest mean %",
    "knn": "k-NN %",
    "linear": "linear %",
    "auroc": "AUROC %",
    "fpr95": "FPR95 %",
    **{f"{key}/at{k}": f"{words} @{k} %" for key, words in DIRECTIONS.items() for k in (1, 5)},
}


def table(evaluation: Mapping[str, Any]) -> Table:
    """The content of an evaluation.json as a table."""
    result, settings = evaluation["result"], evaluation["settings"]
    told = (
        f"{result['n_test']} {settings['part']} texts, {result['n_train']} to learn from; "
        f"k = {settings['neighbours']}"
        + "; AUROC and FPR at 95 % TPR are of texts out of scope"
        * bool(result["n_out_of_scope"])
    )
    shown = [name for name in _COLUMNS if name in result["embedding"]]
    found = result_table(evaluation, told, ["features", *(_COLUMNS[name] for name in shown)])
    for kind, words in zip(FEATURES, ("the encoder's", "after the head"), strict=True):
        found.add_row(words, *(f"{100 * result[kind][name]:.1f}" for name in shown))
    return found


# --- settings ------------------------------------------------------------------------------------


def network(config: Text) -> str:
    """The name of the encoder; of one's own, that of its folder."""
    model = config.model
    name = model.name if model.path is None else Path(model.path).name
    return f"{name}-tuned" if model.finetune else name


def flat(config: Text) -> dict[str, Any]:
    """The settings that tell text runs apart, beside those of every kind."""
    # Only where they are not as usual: most runs have none of them.
    special = {"shots": config.data.shots, "head_dim": config.model.head_dim}
    return {
        "model": network(config),
        "validation_size": config.data.validation_size,
        "neighbours": config.evaluation.neighbours,
        **{name: value for name, value in special.items() if value is not None},
    }


TEXT = RunKind(
    name="text",
    config=Text,
    prefix=("text",),
    network=network,
    files=own_files,
    published=published,
    load=load_texts,
    encoder=make_encoder,
    about=about,
    method=make_method,
    evaluate=evaluate,
    kept=kept,
    flat=flat,
    table=table,
    chosen_by="right",
    chosen_on="validation texts",
    gallery=True,
)
