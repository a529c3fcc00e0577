"""Sentence encoders that are made here: nothing is downloaded."""

import os

import pytest

import tricouple.adapters  # noqa: F401 (lets torchvision be imported)
from tiny_bert import word_tokenizer, write_bert

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def bert(bert_folder):
    """A sentence encoder with dropout, the same weights every time."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(bert_folder))
    transformer.model.pooler.requires_grad_(False)  # unused
    return SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu")


@pytest.fixture
def static():
    """A sentence encoder that averages vectors of words."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    torch.manual_seed(0)
    embedding = StaticEmbedding(word_tokenizer(), embedding_dim=16)
    return SentenceTransformer(modules=[embedding], device="cpu")
