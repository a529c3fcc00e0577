"""A trained encoder, ready to use: ``load_encoder``; its training data are not needed."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tricouple_lab.files import write_text
from tricouple_lab.names import EXTRAS, UserError
from tricouple_lab.runs.folder import Record, load_weights, read_config, read_header, weights_file
from tricouple_lab.tasks.base import Task, task_of

SHARED = (
    "config.yaml", ".identity", "encoder.safetensors", "best.safetensors", "metrics.json",
    "history.csv", "report.html",
)  # fmt: skip
WHAT = {
    "images": ("An encoder of images", '"photo.jpg"', "image-feature-extraction"),
    "clip": ("Encoders of images and texts", '"photo.jpg"', "zero-shot-image-classification"),
    "text": ("An encoder of texts", '"where is my card?"', "sentence-similarity"),
    "mixture": ("An encoder of vectors", "", "feature-extraction"),
}


@dataclass(frozen=True, eq=False)
class Encoder:
    """A trained encoder; unpacks as ``model, transform, classes``."""

    model: nn.Module  # batches of what ``transform`` returns → embeddings; in evaluation mode
    transform: Callable[[Any], Any]
    classes: tuple[str, ...]  # of the training samples; empty if they had none
    task: Task[Any]
    config: Any
    folder: Path  # of the run

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.transform, self.classes))

    def embed(self, items: Sequence[Any]) -> np.ndarray:
        """Return embeddings of images (paths or PIL images) or texts, float32 of shape (n, d)."""
        return self.task.embed(self.config, self.model, items)

    def save_card(self, folder: Path | str, repo: str = "OWNER/NAME") -> Path:
        """Write a model card, ``README.md``: accuracies, data, how it was trained and is used."""
        from huggingface_hub import ModelCard, ModelCardData

        from tricouple_lab.report.run_page import method_name, run_table

        record = Record.read(self.folder / "metrics.json")
        what, item, pipeline = WHAT[record.task]
        header = ModelCardData(
            library_name="tricouple", tags=["tricouple", record.task], pipeline_tag=pipeline
        )
        shares = run_table(record).map("{:.1f}".format)
        card = ModelCard.from_template(
            header,
            template_path=str(Path(__file__).with_name("card.md")),
            record=record,
            what=what,
            item=item,
            loss=method_name(record.config["loss"]),
            rows=[(f"`{key}`", *row) for key, row in zip(shares.index, shares.values, strict=True)],
            repo=repo,
        )
        file = Path(folder) / "README.md"
        write_text(file, str(card))
        return file

    def push_to_hub(self, repo: str, *, private: bool = False) -> str:
        """Upload weights, configuration, record, page and a model card; return the address.

        The repository ``owner/name`` is created if it does not exist.
        """
        from huggingface_hub import HfApi

        with tempfile.TemporaryDirectory() as place:
            for name in filter(lambda name: (self.folder / name).exists(), SHARED):
                shutil.copy(self.folder / name, place)
            if hasattr(self.task, "export"):  # also loads without tricouple, by its own library
                self.task.export(self.config, self.model, Path(place))
            self.save_card(place, repo)
            try:
                api = HfApi()
                address = api.create_repo(repo, private=private, exist_ok=True)
                api.upload_folder(repo_id=repo, folder_path=place)
            except Exception as error:  # of HTTP, of the hub, of the network
                reason = str(error).strip().split("\n")[0]
                raise UserError(f"push_to_hub({repo!r}): {reason}") from None
        return str(address)


def load_encoder(run: Path | str, which: str = "last") -> Encoder:
    """Load the encoder of a run of ``tricouple train``, ``clip`` or ``text``.

    Weights are tensors only and the configuration is data: nothing in the folder is executed.

    Args:
        run: The folder of the run.
        which: ``last``: after the last epoch; ``best``: after the epoch with the best validation
            metric, which may be the one before training.
    """
    folder = Path(run).expanduser()
    config = read_config(folder)
    task = task_of(config.task)
    try:
        header = read_header(weights_file(folder, which))
        model, transform = task.restore(config, header)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name), "train")
        raise ImportError(
            f"load_encoder needs {error.name}: pip install 'tricouple[{extra}]'"
        ) from error
    except (LookupError, TypeError) as error:
        raise UserError(f"{folder}: its weights and config.yaml do not fit ({error})") from None
    load_weights(folder, model, which)
    return Encoder(model.eval(), transform, header.classes, task, config, folder)
