"""A BERT of one layer with random weights, and its tokenizer: nothing is downloaded."""

from pathlib import Path

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


def write_bert(folder: Path) -> Path:
    """As transformers saves models; it reads at most 16 tokens."""
    import torch
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(), sep_token="[SEP]", model_max_length=16, **special
    ).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 16}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(VOCABULARY), **sizes, **layers)).save_pretrained(folder)
    return folder
