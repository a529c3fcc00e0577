"""Every block of code of docs/adapters.md runs, in the order of its section."""

import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tricouple as tc
from conftest import classes, draw

GUIDE = (Path(__file__).parents[2] / "docs/adapters.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in GUIDE.split("\n## ")[1:])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run(section: str, **names: Any) -> dict[str, Any]:
    """Run the blocks of a section one after the other, with what they take for granted."""
    blocks = BLOCK.findall(SECTIONS[section])
    assert blocks
    for block in blocks:
        exec(block, names)
    return names


def rows(seed: int) -> torch.Tensor:
    return draw(12, seed).requires_grad_()


def test_all_code_is_in_a_section_that_is_run():
    with_code = {name for name, text in SECTIONS.items() if BLOCK.search(text)}
    tested = set(re.findall(r'run\(\s*"([^"]+)"', Path(__file__).read_text()))
    assert with_code == tested
    assert len(BLOCK.findall(GUIDE)) == sum(len(BLOCK.findall(t)) for t in SECTIONS.values())


def test_lightly():
    z0, z1 = rows(0), rows(1)
    found = run("lightly", z0=z0, z1=z1)
    assert torch.equal(found["loss"], tc.NegMMIOT(sharpness=10)(*tc.pair_views(z0, z1)))


def test_metric_learning():
    found = run("pytorch-metric-learning", embeddings=rows(0), labels=classes(4, 4, 4))
    assert found["loss"].isfinite()


def test_open_clip(monkeypatch):
    from open_clip_train import main

    monkeypatch.setattr(main, "create_loss", main.create_loss)
    features = {"image_features": rows(0), "text_features": rows(1)}
    found = run("open_clip", **features, logit_scale=torch.tensor(14.0))
    assert found["losses"]["contrastive_loss"].isfinite()
    options = dict.fromkeys(
        ("distill", "siglip", "local_loss", "gather_with_grad", "horovod"), False
    )
    made = main.create_loss(SimpleNamespace(**options, model="RN50", rank=0, world_size=1))
    assert isinstance(made, found["ClipLoss"])


def test_sentence_transformers(bert, tmp_path):
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    colours = ["red", "green", "blue", "black"]
    pairs = {"anchor": colours, "positive": [f"the {colour} car" for colour in colours]}
    found = run(
        "sentence-transformers",
        model=bert,
        train_dataset=Dataset.from_dict(pairs),
        SentenceTransformerTrainer=SentenceTransformerTrainer,
        arguments=SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=1, report_to=[], use_cpu=True
        ),
    )
    assert found["trainer"].state.global_step == 1


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:The number of training batches")
@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # lightning's own
def test_lightning(monkeypatch):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = functools.partial(
        lightning.Trainer, accelerator="cpu", enable_model_summary=False, **quiet
    )
    monkeypatch.setattr(lightning, "Trainer", trainer)
    encoder = nn.Linear(5, 3)
    before = encoder.weight.detach().clone()
    views = TensorDataset(rows(0).float().detach(), rows(1).float().detach())
    run("PyTorch Lightning", encoder=encoder, loader=DataLoader(views, batch_size=12))
    assert not torch.equal(encoder.weight, before)


def test_hugging_face_trainer(bert_folder, tmp_path):
    from transformers import BertModel, TrainingArguments

    labelled = [{"input_ids": [2, 6 + k % 4, 3], "labels": k % 2} for k in range(8)]
    found = run(
        "Hugging Face Trainer",
        transformer=BertModel.from_pretrained(bert_folder),
        labelled=labelled,
        arguments=TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=1,
            gradient_accumulation_steps=2,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            remove_unused_columns=False,
        ),
    )
    assert found["trainer"].state.global_step == 1
