"""What a task is: six methods, and the types that pass between them and ``execute``.

A task holds no state: ``execute`` calls ``load``, ``build``, ``loss`` and ``evaluate``,
``load_encoder`` calls ``restore`` and ``embed``.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor, nn

import tricouple as tc
from tricouple_lab import names
from tricouple_lab.config.compose import check_arguments
from tricouple_lab.names import UserError

Config = TypeVar("Config", contravariant=True)
Restored = tuple[nn.Module, Callable[[Any], Any]]  # an encoder and a transform of one item


class BatchedSet(Protocol):
    """Training samples that are read in whole batches."""

    def __len__(self) -> int: ...
    def __getitems__(self, indices: Sequence[int]) -> Any: ...


@dataclass(frozen=True, eq=False)
class Data:
    """What ``load`` returns."""

    train: BatchedSet
    splits: Mapping[str, Any]  # "train", "validation", "test": what evaluate() reads
    classes: tuple[str, ...]  # empty if there are none
    digest: str  # sha256 of the decoded content
    notes: tuple[str, ...] = ()  # printed once: reduced sets, equal images, a smaller batch
    about: Mapping[str, Any] = field(default_factory=dict)  # for restore(); must fit into JSON


class Model(nn.Module):
    """What is trained: an encoder, which is kept, and a loss, which may have parameters as well."""

    def __init__(self, encoder: nn.Module, objective: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective


class Share(NamedTuple):
    """Which part of each batch a process has: rows rank, rank + world, and so on."""

    rank: int = 0
    world: int = 1

    @property
    def rows(self) -> slice:
        """The rows of this process in what is drawn for the whole batch."""
        return slice(self.rank, None, self.world)


def rank() -> int:
    """Return the number of this process, also before they are connected; 0 if there is one."""
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)


class Header(NamedTuple):
    """What a file of weights says about its encoder, so that no training data are needed."""

    classes: tuple[str, ...]
    about: Mapping[str, Any]  # ``Data.about`` of the run


class Step(NamedTuple):
    """Where in a run a batch is."""

    seed: int  # of everything drawn for this step; derived from run, epoch and step
    number: int  # steps since the start of training
    total: int  # steps of the whole training
    share: Share = Share()


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Measurements on one split; accuracies are shares in [0, 1]."""

    metrics: dict[str, float]  # "features/knn", "embedding/linear", …
    chance: dict[str, float]  # the same keys: what a guess without an encoder has
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # for the page; empty unless full


class Task(Protocol[Config]):
    """Images, image-text, text and the mixture are tasks."""

    name: str
    metric: str  # what the best epoch and the sharpness are chosen by

    def load(self, config: Config) -> Data:
        """Read and decode the data."""

    def build(self, config: Config, data: Data) -> Model:
        """Build the model; the random state is seeded by the caller."""

    def loss(self, config: Config, model: Model, batch: Any, step: Step) -> Tensor:
        """Return the loss of a batch, a scalar with a gradient."""

    def evaluate(
        self, config: Config, data: Data, encoder: Any, split: str, *, full: bool
    ) -> Evaluation:
        """Measure the encoder on a split; unless ``full``, only what is cheap.

        The encoder is in evaluation mode and may be on another device: inputs are moved there.
        """

    def restore(self, config: Config, header: Header) -> Restored:
        """Return an encoder without its trained weights, and a transform of one item for it.

        A frozen backbone, which is not in the file of weights, has its own already.
        """

    def embed(self, config: Config, encoder: Any, items: Sequence[Any]) -> np.ndarray:
        """Return embeddings of images (paths or PIL images) or texts, shape (n, d)."""


def task_of(name: str) -> Any:
    """Return the task of a name; its module is imported when it is asked for."""
    return getattr(import_module(f"tricouple_lab.tasks.{name}"), name.capitalize())()


def make_loss(arguments: Mapping[str, object]) -> nn.Module:
    """Build the loss that a configuration names, with the arguments it gives.

    Batches without a positive or negative pair have loss 0, unless ``empty`` is given.
    """
    options = {key: value for key, value in arguments.items() if key != "name"}
    loss = loss_class(str(arguments["name"]))
    check_arguments("loss.", options, loss)
    if "empty" in inspect.signature(loss).parameters:
        options.setdefault("empty", "zero")
    try:
        return loss(**options)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise UserError(f"loss={arguments['name']}: {error}") from None


def contrast(
    config: Any, model: Model, encoders: tuple[Any, ...], inputs: tuple[Any, ...], labels: Tensor
) -> Tensor:
    """The loss of the embeddings of each input, ``training.chunk_size`` samples at a time."""
    size = config.training.chunk_size
    if size is not None:
        return tc.cached(model.objective, size)(encoders, inputs, labels)
    embeddings = [encoder(own) for encoder, own in zip(encoders, inputs, strict=True)]
    loss: Tensor = model.objective(*embeddings, labels)
    return loss


def loss_class(name: str) -> Callable[..., Any]:
    """Return the class of a loss, by its name in ``names.LOSSES``."""
    path = names.LOSSES[name].class_name or "tricouple_lab.models.byol.BYOL"
    module, _, own = path.rpartition(".")
    return getattr(import_module(module or "tricouple"), own)  # type: ignore[no-any-return]
