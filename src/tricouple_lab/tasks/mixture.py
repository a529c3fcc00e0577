"""The synthetic mixture: which geometry each loss ends in."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tricouple import geometry
from tricouple_lab.config.schema import Mixture as Config
from tricouple_lab.data.generated import load_mixture
from tricouple_lab.evaluation.probe import knn_predictions
from tricouple_lab.models.byol import BYOL, class_pairs
from tricouple_lab.names import UserError
from tricouple_lab.tasks.base import Data, Evaluation, Header, Model, Step, contrast, make_loss

ETF_DEVIATION, ETF_RATIO, ALIVE, NO_SPREAD, ONE_DIRECTION = 0.01, 0.95, 0.01, 0.01, 1.5


class Mixture:
    """Learn a three-layer network on the mixture with any loss."""

    name = "mixture"
    metric = "embedding/knn"

    def load(self, config: Config) -> Data:
        """Draw the samples of a seed."""
        found = load_mixture(config.data, config.seed, config.training.batch_size)
        return Data(found.splits["train"], found.splits, found.classes, found.digest())

    def build(self, config: Config, data: Data) -> Model:
        """The network comes first: it is the same for all losses."""
        encoder, objective = network(config), make_loss(config.loss)
        if isinstance(objective, BYOL):
            objective.attach(encoder, config.network.dim)
        return Model(encoder, objective)

    def loss(
        self, config: Config, model: Model, batch: tuple[Tensor, Tensor], step: Step
    ) -> Tensor:
        """Samples of one class are positives; BYOL takes them as two views, in batch order."""
        inputs, labels = batch
        if isinstance(model.objective, BYOL):
            first, second = class_pairs(labels)
            return model.objective(model.encoder, inputs[first], inputs[second])  # type: ignore[no-any-return]
        return contrast(config, model, (model.encoder,), (inputs,), labels)

    @torch.no_grad()
    def evaluate(
        self, config: Config, data: Data, encoder: Any, split: str, *, full: bool
    ) -> Evaluation:
        """Geometry of the training embeddings; k-NN of held-out samples among them."""
        device = next(encoder.parameters()).device
        parts = data.splits["train"], data.splits[split]
        train, queries = (encoder(part.inputs.to(device)).float().cpu() for part in parts)
        labels, truth = (part.labels for part in parts)
        chance = {self.metric: 1 / config.data.n_classes}
        if not bool(torch.isfinite(train).all() & torch.isfinite(queries).all()):
            return Evaluation({self.metric: 0.0}, chance)
        rows = train.numpy(), labels.numpy(), queries.numpy()
        predicted = knn_predictions(*rows, config.evaluation.knn_k)
        collapse = geometry.neural_collapse(train, labels)
        distances = geometry.two_distance(train, labels)
        metrics = {
            self.metric: float((predicted == truth.numpy()).mean()),
            "geometry/nc1": collapse.nc1,
            "geometry/nc2_std": collapse.nc2_std,
            "geometry/nc2_deviation": collapse.nc2_deviation,
            "geometry/alpha": distances.alpha,
            "geometry/beta": distances.beta,
            "geometry/effective_rank": geometry.effective_rank(train),
            **spectrum_metrics(collapse.spectrum, config.network.dim),
        }
        arrays = {"labels": truth.numpy(), "predicted": predicted, "embedding": queries.numpy()}
        return Evaluation(metrics, chance, arrays if full else {})

    def restore(self, config: Config, header: Header) -> tuple[nn.Module, Any]:
        """The network without its weights."""
        return network(config), torch.as_tensor

    def embed(self, config: Config, encoder: Any, items: Sequence[Any]) -> np.ndarray:
        """A mixture has no files."""
        raise UserError("a run on the synthetic mixture has no images or texts to embed")


def network(config: Config) -> nn.Module:
    """A multilayer perceptron of three layers."""
    hidden = config.network.hidden
    first, second = nn.Linear(config.data.dim, hidden), nn.Linear(hidden, hidden)
    last = nn.Linear(hidden, config.network.dim)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def spectrum_metrics(spectrum: Tensor, dim: int) -> dict[str, float]:
    """What the K−1 eigenvalues of the class-mean covariance, descending, say of the directions."""
    total, largest = float(spectrum.sum()), max(float(spectrum[0]), 1e-300)
    shares = (spectrum / max(total, 1e-300)).clamp_min(1e-300)
    return {
        "geometry/variance": total,
        "geometry/directions": math.exp(-float((shares * shares.log()).sum())),
        "geometry/least": float(spectrum[min(dim, len(spectrum)) - 1]) / largest,
        "geometry/evenness": float(spectrum[-1]) / largest,
    }


def outcome(metrics: Mapping[str, float]) -> str:
    """Name where a run ended, from the metrics of its evaluation.

    ``diverged``: numbers were no longer finite. ``collapsed``: the class means fill 1.5 directions
    or fewer, or their variance is below 0.01. ``etf``: all angles are equal (deviation at most
    0.01) and so are all K−1 eigenvalues (95 %). Else ``rich`` if every direction that the class
    means could fill has 1 % of the largest eigenvalue, ``reduced`` if not.
    """
    if "geometry/variance" not in metrics:
        return "diverged"
    spread, directions = metrics["geometry/variance"], metrics["geometry/directions"]
    if spread < NO_SPREAD or directions <= ONE_DIRECTION:
        return "collapsed"
    even = metrics["geometry/evenness"] >= ETF_RATIO
    if even and metrics["geometry/nc2_deviation"] <= ETF_DEVIATION:
        return "etf"
    return "rich" if metrics["geometry/least"] >= ALIVE else "reduced"
