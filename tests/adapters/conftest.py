"""Sentence encoders that are made here: nothing is downloaded."""

import os

import pytest

import tricouple.adapters  # noqa: F401 (lets torchvision be imported)

os.environ["HF_HUB_OFFLINE"] = "1"

COLOURS = ["red", "green", "blue", "black", "white", "grey", "brown", "pink"]
THINGS = ["car", "tree", "house", "dog"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "the", *COLOURS, *THINGS]


def word_tokenizer():
    """Whole words, between [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    numbers = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory):
    """A BERT of one layer with random weights, saved as transformers saves models."""
    import torch
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(), sep_token="[SEP]", model_max_length=16, **special
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 16}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(VOCABULARY), **sizes, **layers)
    BertModel(config).save_pretrained(folder)
    return folder


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
