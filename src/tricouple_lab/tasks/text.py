"""Texts: classes (texts of one class are positives) or pairs (a text and what belongs to it)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import tricouple as tc
from tricouple_lab import names
from tricouple_lab.config import schema
from tricouple_lab.data.texts import TextSplit, load_texts
from tricouple_lab.evaluation import probe, retrieval
from tricouple_lab.models import sentences
from tricouple_lab.models.sentences import SentenceEncoder
from tricouple_lab.names import UserError
from tricouple_lab.tasks.base import Data, Evaluation, Header, Model, Step, contrast, make_loss

EXAMPLES, ANSWERS = 8, 5  # queries on the page, and what is retrieved for each
DRAWN = 2000  # rows of embeddings that are kept for the page

Column = Tensor | tuple[str, ...]  # features of a frozen encoder (n, d), or texts


@dataclass(frozen=True, eq=False)
class TextRows:
    """What the encoder reads of a split."""

    columns: tuple[Column, ...]  # one; of pairs two
    labels: Tensor  # int64 (n,)
    source: TextSplit  # the texts

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Any, ...]:
        """Return a whole batch at once: the columns, then the labels."""
        chosen = torch.as_tensor(indices)
        parts = (
            column[chosen] if isinstance(column, Tensor) else tuple(column[i] for i in indices)
            for column in self.columns
        )
        return *parts, self.labels[chosen]


class Text:
    """Learn a head on a frozen sentence encoder, or fine-tune all of it."""

    name = "text"
    metric = "embedding/ncm"

    def load(self, config: schema.Text) -> Data:
        """Read the texts; for a frozen encoder, replace them by its features."""
        found = load_texts(config.data, config.seed)
        _check(config, found.splits["train"], found.classes)
        notes, about = list(found.notes), {} if found.classes else {"metric": "recall/mean@1"}
        if config.model.name != "words":
            about["weights"] = sentences.folder_digest(sentences.model_folder(config.model))
        columns: list[Column] = [
            part for split in found.splits.values() for part in (split.texts, split.pairs) if part
        ]
        if config.model.train == "head":
            weights = about.get("weights", "")
            columns, cut = sentences.frozen_features(columns, config.model, weights)  # type: ignore[arg-type,assignment]
            if cut:
                notes.append(f"{cut} texts are longer than the encoder reads, and are cut")
        each = iter(columns)
        splits = {
            name: TextRows(
                (next(each), next(each)) if split.pairs else (next(each),), split.labels, split
            )
            for name, split in found.splits.items()
        }
        digest = found.digest()
        if config.model.name == "own":  # its path does not say which weights it has
            digest = hashlib.sha256(f"{digest} {about['weights']}".encode()).hexdigest()
        return Data(splits["train"], splits, found.classes, digest, tuple(notes), about)

    def build(self, config: schema.Text, data: Data) -> Model:
        """The head alone if the encoder is frozen; it starts as the identity."""
        columns = data.splits["train"].columns
        if config.model.train == "head":
            dimension = columns[0].shape[1]
            encoder = SentenceEncoder(nn.Identity(), dimension, config.model.head_dim)
        else:
            encoder = whole_encoder(config)
        objective = make_loss(config.loss)
        if not data.classes:
            objective = tc.BothDirections(objective)  # type: ignore[arg-type]
        return Model(encoder, objective)

    def loss(self, config: schema.Text, model: Model, batch: tuple[Any, ...], step: Step) -> Tensor:
        """The loss of texts and classes, or of pairs in both directions."""
        *columns, labels = batch
        return contrast(config, model, (model.encoder,) * len(columns), tuple(columns), labels)

    def evaluate(
        self, config: schema.Text, data: Data, encoder: Any, split: str, *, full: bool
    ) -> Evaluation:
        """Nearest class mean, with ``full`` also k-NN, linear probe and geometry; or recall."""
        rows, train = data.splits[split], data.splits["train"]
        queries = embedded(encoder, rows)
        if not data.classes:
            return _recall(config, rows, queries["embedding"], full)
        known, outside = embedded(encoder, train), data.splits.get("out_of_scope")
        unknown = embedded(encoder, outside) if outside and full and split == "test" else None
        labels, bank_labels = rows.labels.numpy(), train.labels.numpy()
        metrics: dict[str, float] = {}
        guess, chance = probe.chance(bank_labels, labels), {}
        for layer in ("features", "embedding"):
            bank, found = known[layer][0], queries[layer][0]
            predicted, score = nearest_mean(bank, train.labels, found)
            accuracies = {"ncm": predicted.numpy()}
            if full:
                arguments = (bank.numpy(), bank_labels, found.numpy())
                decay = config.evaluation.probe_weight_decay
                accuracies["knn"] = probe.knn_predictions(*arguments, config.evaluation.knn_k)
                accuracies["linear"] = probe.linear_predictions(*arguments, decay)
            for name, guessed in accuracies.items():
                metrics[f"{layer}/{name}"] = float((guessed == labels).mean())
                chance[f"{layer}/{name}"] = guess
            if unknown is not None:
                others = nearest_mean(bank, train.labels, unknown[layer][0])[1]
                detected = out_of_scope(score.numpy(), others.numpy())
                metrics |= {f"{layer}/{key}": value for key, value in detected.items()}
                chance |= {f"{layer}/auroc": 0.5, f"{layer}/fpr95": 0.95}
        if not full:
            return Evaluation(metrics, chance)
        embedding = queries["embedding"][0].numpy()
        geometry, spectrum = probe.geometry(embedding, labels)
        metrics |= geometry
        arrays = {
            "labels": labels[:DRAWN],
            "predicted": predicted.numpy()[:DRAWN],
            "embedding": embedding[:DRAWN],
            "spectrum": spectrum,
        }
        if config.model.train == "head" and queries["features"][0].shape[1] == embedding.shape[1]:
            arrays["embedding_before"] = queries["features"][0][:DRAWN].numpy()
        if config.evaluation.figures:
            arrays |= _examples(embedding, known["embedding"][0].numpy(), rows.source, train.source)
        return Evaluation(metrics, chance, arrays)

    def restore(
        self, config: schema.Text, header: Header
    ) -> tuple[nn.Module, Callable[[Any], str]]:
        """The sentence encoder with a head; a frozen encoder has its own weights already."""
        wanted = header.about.get("weights")
        if wanted and config.model.train == "head":
            folder = sentences.model_folder(config.model)
            if sentences.folder_digest(folder) != wanted:
                raise UserError(f"{folder}: is not the model that the head was trained on")
        return whole_encoder(config), str

    def embed(self, config: schema.Text, encoder: Any, items: Sequence[Any]) -> np.ndarray:
        """Embed texts."""
        texts = tuple(str(item) for item in items)
        rows = TextRows(
            (texts,), torch.zeros(len(texts)), TextSplit(texts, torch.zeros(len(texts)))
        )
        return embedded(encoder, rows)["embedding"][0].numpy()

    def export(self, config: schema.Text, encoder: Any, folder: Path) -> bool:
        """Save the encoder with its head as a folder of sentence-transformers, if it is one."""
        if config.model.name == "words":
            return False
        backbone = encoder.backbone
        if isinstance(backbone, nn.Identity):
            backbone = sentences.build_backbone(config.model)
        sentences.save(backbone, encoder.head, folder)
        return True


def _check(config: schema.Text, train: TextSplit, classes: Sequence[str]) -> None:
    """Refuse, before features are computed, what training could only fail at."""
    if train.pairs:
        fitting = names.TABLES["clip"]["loss"].keys() & names.TABLES["text"]["loss"].keys()
        if config.loss["name"] not in fitting:
            raise UserError(
                f"loss={config.loss['name']}: compares texts of one set, and these are pairs; "
                f"choices: {', '.join(sorted(fitting))}"
            )
        return
    counts = train.labels.bincount(minlength=len(classes))
    single = [classes[index] for index in (counts < 2).nonzero().flatten().tolist()]
    if len(single) == len(classes):
        raise UserError(
            f"no class has two training texts, an anchor and a positive ({', '.join(single[:3])}, "
            "…): add texts, or hold out fewer"
        )


def whole_encoder(config: schema.Text) -> SentenceEncoder:
    """Texts → features → embedding."""
    backbone = sentences.build_backbone(config.model)
    return SentenceEncoder(backbone, backbone.dimension, config.model.head_dim)


@torch.inference_mode()
def embedded(encoder: Any, rows: TextRows) -> dict[str, list[Tensor]]:
    """Return features and embeddings of each column, float32 (n, d) on the CPU."""
    device = next(encoder.head.parameters()).device
    features = [
        column if isinstance(column, Tensor) else sentences.encode(encoder.backbone, column)
        for column in rows.columns
    ]
    embedding = [encoder.head(part.to(device)).float().cpu() for part in features]
    return {"features": features, "embedding": embedding}


def nearest_mean(bank: Tensor, labels: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class whose mean direction is nearest to each query, and its cosine."""
    classes, codes = labels.unique(return_inverse=True)
    unit = normalize(bank, dim=1)
    means = torch.zeros(len(classes), bank.shape[1]).index_add(0, codes, unit)
    cosine, nearest = (normalize(queries, dim=1) @ normalize(means, dim=1).T).max(1)
    return classes[nearest], cosine


def out_of_scope(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """Detection by a score that is higher inside: AUROC, and the false positives at 95 % recall."""
    from sklearn.metrics import roc_auc_score

    truth = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    threshold = np.sort(inside)[int(0.05 * len(inside))]
    return {
        "auroc": float(roc_auc_score(truth, np.r_[inside, outside])),
        "fpr95": float((outside >= threshold).mean()),
    }


def _recall(
    config: schema.Text, rows: TextRows, columns: Sequence[Tensor], full: bool
) -> Evaluation:
    """Recall of pairs; equal first texts are one query with several right answers."""
    ids, codes = rows.labels.unique(return_inverse=True)
    order = codes.argsort(stable=True)
    first = order[torch.searchsorted(codes[order], torch.arange(len(ids)))]
    metrics, chance = retrieval.both_ways(
        columns[0][first], columns[1][order], codes[order], ("text", "pair")
    )
    if not full:
        return Evaluation(metrics, chance)
    texts, pairs = (column.numpy() for column in columns)
    arrays = {"embedding": texts[:DRAWN]}
    if config.evaluation.figures:
        answers = TextSplit(rows.source.pairs, rows.labels)
        arrays |= _examples(texts, pairs, rows.source, answers)
    return Evaluation(metrics, chance, arrays)


def _examples(
    queries: np.ndarray, bank: np.ndarray, asked: TextSplit, answers: TextSplit
) -> dict[str, np.ndarray]:
    """A few texts with their nearest training texts, or the nearest of their pairs."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(asked))[:EXAMPLES])
    scores, found = probe.nearest_rows(bank, queries[chosen], ANSWERS)
    return {
        "examples_queries": np.array(asked.texts)[chosen],
        "examples_answers": np.array(answers.texts)[found],
        "examples_scores": scores,
        "examples_right": answers.labels.numpy()[found] == asked.labels.numpy()[chosen][:, None],
    }
