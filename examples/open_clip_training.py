"""Train a model of open_clip by its own program, with Neg-MMIOT in the place of its loss.

    python examples/open_clip_training.py --model RN50 --train-data captions.csv ...

takes all options of ``open_clip_train.main``. Without any, a small model learns the colours of
drawn squares in some seconds. Lines that differ from open_clip's own are marked.
"""

import json
import sys
import tempfile
from pathlib import Path

import tricouple as tc  # tricouple
from tricouple.adapters.open_clip import install  # tricouple

import open_clip
import open_clip_train.main
from PIL import Image

COLOURS = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple"]
MODEL = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "layers": 1, "width": 32, "head_width": 16},
    "text_cfg": {"context_length": 8, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}


def train(arguments: list[str]) -> None:
    """What open_clip's program does, with another loss."""
    install(open_clip_train.main, tc.NegMMIOT())  # tricouple
    open_clip_train.main.main(arguments)


def demonstration(folder: Path, epochs: int = 30) -> list[str]:
    """Squares with captions and a small model, and the options to train it."""
    rows = ["filepath\ttitle"]
    for colour in COLOURS:
        Image.new("RGB", (16, 16), colour).save(folder / f"{colour}.png")
        rows.append(f"{folder / colour}.png\ta {colour} square")
    (folder / "captions.csv").write_text("\n".join(rows))
    (folder / "squares.json").write_text(json.dumps(MODEL))
    open_clip.add_model_config(folder / "squares.json")
    options = {
        "model": "squares",
        "train-data": folder / "captions.csv",
        "dataset-type": "csv",
        "batch-size": len(COLOURS),
        "epochs": epochs,
        "lr": 1e-3,
        "warmup": 0,
        "workers": 0,
        "device": "cpu",
        "logs": folder / "logs",
        "save-frequency": 0,
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(sys.argv[1:] or demonstration(Path(folder)))
