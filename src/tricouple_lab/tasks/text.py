"""Texts: classes (texts of one class are positives) or pairs (a text and what belongs to it)."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import tricouple as tc
from tricouple_lab import names
from tricouple_lab.config import schema
from tricouple_lab.data.texts import TextSplit, load_texts
from tricouple_lab.evaluation import probe, retrieval
from tricouple_lab.models import sentences
from tricouple_lab.models.sentences import SentenceEncoder
from tricouple_lab.names import UserError
from tricouple_lab.tasks.base import Data, Evaluation, Header, Model, Step, contrast, make_loss

EXAMPLES = 8  # queries on the page
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
        if config.model.train == "head":
            dimension = data.splits["train"].columns[0].shape[1]
            encoder = SentenceEncoder(nn.Identity(), dimension, config.model.head_dim)
        else:
            encoder = sentences.build(config.model)
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
        if not data.classes:
            return _recall(config, rows, encoder, full)
        found, known = embedded(encoder, rows), embedded(encoder, train)
        labels, bank_labels = rows.labels.numpy(), train.labels.numpy()
        kinds = ("ncm", "knn", "linear") if full else ("ncm",)
        both = known, bank_labels, found, labels
        metrics, predicted = probe.accuracies(*both, config.evaluation, kinds)
        chance = dict.fromkeys(metrics, probe.chance(bank_labels, labels))
        if not full:
            return Evaluation(metrics, chance)
        outside = data.splits.get("out_of_scope")
        if outside and split == "test":
            for layer, others in embedded(encoder, outside).items():
                queries = found[layer], others
                cosines = (probe.nearest_mean(known[layer], bank_labels, q)[1] for q in queries)
                detected = out_of_scope(*cosines)
                metrics |= {f"{layer}/{key}": value for key, value in detected.items()}
                chance |= {f"{layer}/auroc": 0.5, f"{layer}/fpr95": 0.95}
        geometry, spectrum = probe.geometry(found["embedding"], labels)
        arrays = {
            "labels": labels[:DRAWN],
            "predicted": predicted[:DRAWN],
            "embedding": found["embedding"][:DRAWN],
            "spectrum": spectrum,
        }
        if config.model.train == "head" and found["features"].shape == found["embedding"].shape:
            arrays["embedding_before"] = found["features"][:DRAWN]
        if config.evaluation.figures:
            z, bank = found["embedding"], known["embedding"]
            arrays |= _examples(z, bank, rows.source, train.source)
        return Evaluation(metrics | geometry, chance, arrays)

    def restore(self, config: schema.Text, header: Header) -> tuple[nn.Module, Any]:
        """The sentence encoder with a head; a frozen encoder has its own weights already."""
        wanted = header.about.get("weights")
        if wanted and config.model.train == "head":
            folder = sentences.model_folder(config.model)
            if sentences.folder_digest(folder) != wanted:
                raise UserError(f"{folder}: is not the model that the head was trained on")
        return sentences.build(config.model), str

    def embed(self, config: schema.Text, encoder: Any, items: Sequence[Any]) -> np.ndarray:
        """Embed texts."""
        texts = tuple(str(item) for item in items)
        none = torch.zeros(len(texts))
        rows = TextRows((texts,), none, TextSplit(texts, none))
        return embedded(encoder, rows)["embedding"]

    def export(self, config: schema.Text, encoder: Any, folder: Path) -> None:
        """Save the encoder with its head as a folder of sentence-transformers, if it is one."""
        backbone = encoder.backbone
        if isinstance(backbone, nn.Identity):
            backbone = sentences.build_backbone(config.model)
        if config.model.name != "words":
            sentences.save(backbone, encoder.head, folder)


def _check(config: schema.Text, train: TextSplit, classes: Sequence[str]) -> None:
    """Refuse, before features are computed, what training could only fail at."""
    if train.pairs:
        fitting = names.TABLES["clip"]["loss"].keys() & names.TABLES["text"]["loss"].keys()
        if config.loss["name"] not in fitting:
            name, choices = config.loss["name"], ", ".join(sorted(fitting))
            raise UserError(f"loss={name}: is not for pairs of texts; choices: {choices}")
        return
    counts = train.labels.bincount(minlength=len(classes))
    single = [classes[index] for index in (counts < 2).nonzero().flatten().tolist()]
    if len(single) == len(classes):
        why = f"no class has two training texts, an anchor and a positive ({single[0]}, …)"
        raise UserError(f"{why}: add texts, or hold out fewer")


@torch.inference_mode()
def embedded(encoder: Any, rows: TextRows, column: int = 0) -> dict[str, np.ndarray]:
    """Return features and embeddings of a column, float32 (n, d)."""
    found = rows.columns[column]
    if not isinstance(found, Tensor):
        found = sentences.encode(encoder.backbone, found)
    device = next(encoder.head.parameters()).device
    embedding = encoder.head(found.to(device)).float().cpu()
    return {"features": found.numpy(), "embedding": embedding.numpy()}


def out_of_scope(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """Detection by a score that is higher inside: AUROC, and the false positives at 95 % recall."""
    from sklearn.metrics import roc_auc_score

    truth = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    threshold = np.sort(inside)[int(0.05 * len(inside))]
    return {
        "auroc": float(roc_auc_score(truth, np.r_[inside, outside])),
        "fpr95": float((outside >= threshold).mean()),
    }


def _recall(config: schema.Text, rows: TextRows, encoder: Any, full: bool) -> Evaluation:
    """Recall of pairs; equal first texts are one query with several right answers."""
    texts, pairs = (embedded(encoder, rows, column)["embedding"] for column in range(2))
    ids, codes = rows.labels.unique(return_inverse=True)
    order = codes.argsort(stable=True)
    first = order[torch.searchsorted(codes[order], torch.arange(len(ids)))]
    both = torch.from_numpy(texts)[first], torch.from_numpy(pairs)[order]
    metrics, chance = retrieval.both_ways(*both, codes[order], ("text", "pair"))
    if not full:
        return Evaluation(metrics, chance)
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
    shown = np.array(asked.texts)[chosen]
    ids = asked.labels.numpy()[chosen], answers.labels.numpy()
    texts = np.array(answers.texts)
    return probe.examples("examples", queries[chosen], bank, shown, texts.__getitem__, *ids)
