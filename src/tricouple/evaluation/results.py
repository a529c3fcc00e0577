"""What an evaluation measures, as immutable results that turn into tables and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Geometry:
    """How features of the test set lie on the sphere; see ``tricouple.geometry``.

    Attributes:
        n_samples: How many test samples were measured; NC1 is a sum over them.
        nc1: Within-class scatter.
        nc2_std: Standard deviation of the cosines between centred class means.
        nc2_deviation: Their mean distance from −1/(K−1).
        spectrum: Eigenvalues of the class-mean covariance, descending.
        effective_rank: How many dimensions the samples fill.
        alpha: Mean cosine within classes.
        beta: Mean cosine across classes.
        uniformity: Of all pairs; lower is more uniform.
    """

    n_samples: int
    nc1: float
    nc2_std: float
    nc2_deviation: float
    spectrum: tuple[float, ...]
    effective_rank: float
    alpha: float
    beta: float
    uniformity: float


@dataclass(frozen=True)
class FeatureReport:
    """What one kind of features is worth.

    Attributes:
        features: ``"penultimate"`` (before the projection) or ``"embedding"`` (after it).
        dim: Dimension of the features.
        linear: Test accuracy of a linear probe.
        linear_train: Its training accuracy.
        knn: Test accuracy of k nearest neighbours.
        geometry: Of the test features; None if they have no two classes, or no two samples of one.
        confusion: Counts of the linear probe on the test set, true classes as rows.
    """

    features: str
    dim: int
    linear: float
    linear_train: float
    knn: float
    geometry: Geometry | None
    confusion: tuple[tuple[int, ...], ...]

    def row(self) -> dict[str, float | str]:
        """The numbers of a table."""
        numbers = {"linear": self.linear, "knn": self.knn}
        if self.geometry is not None:
            names = ("nc2_deviation", "effective_rank", "alpha", "beta")
            numbers |= {name: getattr(self.geometry, name) for name in names}
        return {"features": self.features, **numbers}


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluating an encoder: the same measures for both kinds of features.

    Attributes:
        classes: Names of the classes.
        n_train: How many labelled samples the probe and k-NN learned from.
        n_test: How many samples the accuracies are of.
        k: Neighbours of k-NN.
        penultimate: Of the features before the projection.
        embedding: Of the features after it, which the loss shaped.
    """

    classes: tuple[str, ...]
    n_train: int
    n_test: int
    k: int
    penultimate: FeatureReport
    embedding: FeatureReport

    def as_json(self) -> dict[str, Any]:
        """Plain lists, numbers and texts, for ``json.dump``."""
        return asdict(self)

    def rows(self) -> list[dict[str, float | str]]:
        """A table with one row a kind of features."""
        return [self.penultimate.row(), self.embedding.row()]

    def accuracy(self) -> dict[str, float]:
        """Every accuracy under a name that says which features it is of."""
        return {
            f"{report.features}/{measure}": getattr(report, measure)
            for report in (self.penultimate, self.embedding)
            for measure in ("linear", "knn")
        }
