"""Train a sentence encoder on pairs by sentence-transformers' own trainer, with Neg-MMIOT.

    python examples/sentence_transformers_pairs.py

Questions about things are paired with questions that mean the same. So that nothing is downloaded,
the encoder averages vectors of words; ``SentenceTransformer("microsoft/mpnet-base")`` takes its
place without another change. Lines that differ from that library's own example are marked.
"""

import tempfile

import tricouple as tc  # tricouple
from tricouple.adapters.sentence_transformers import SentenceLoss  # tricouple

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.training_args import BatchSamplers
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

THINGS = ["card", "phone", "password", "address", "order", "refund", "invoice", "account"]
INTENTS = {
    "how do i change my {}": "i would like another {}",
    "where is my {}": "my {} has not arrived",
    "why was my {} refused": "they did not accept my {}",
    "please cancel my {}": "i do not need the {} any more",
}


def pairs() -> Dataset:
    """Questions and others that mean the same."""
    asked = [text.format(thing) for text in INTENTS for thing in THINGS]
    meant = [text.format(thing) for text in INTENTS.values() for thing in THINGS]
    return Dataset.from_dict({"anchor": asked, "positive": meant})


def word_vectors(texts: list[str]) -> SentenceTransformer:
    """An encoder of the words of some texts, with random vectors."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[UNK]"]))
    torch.manual_seed(0)
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=32)])


def main(epochs: int = 30) -> list[float]:
    """Train; the loss of each step."""
    train_dataset = pairs()
    model = word_vectors([*train_dataset["anchor"], *train_dataset["positive"]])
    criterion = tc.NegMMIOT(sharpness=10)  # tricouple
    loss = SentenceLoss(model, criterion)  # tricouple, for MultipleNegativesRankingLoss(model)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            learning_rate=0.05,
            batch_sampler=BatchSamplers.NO_DUPLICATES,
            save_strategy="no",
            logging_steps=1,
            report_to=[],
        )
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=train_dataset, loss=loss
        )
        trainer.train()
    texts = ["my phone has not arrived", "where is my phone", "please cancel my phone"]
    vectors = model.encode(texts)
    for text, similarity in zip(texts, model.similarity(vectors[0], vectors)[0], strict=True):
        print(f"{texts[0]!r} and {text!r}: {similarity:.2f}")
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    main()
