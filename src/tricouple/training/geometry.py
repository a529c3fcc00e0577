"""The geometry of embeddings of held-out images, as it is followed along training."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tricouple import geometry
from tricouple.data.images import ImageSet
from tricouple.data.normalisation import Normalisation
from tricouple.evaluation.features import extract


@dataclass(frozen=True)
class HeldOut:
    """Labelled images that are not trained on.

    Attributes:
        images: All of them are measured.
        normalisation: As in training.
    """

    images: ImageSet
    normalisation: Normalisation

    def measure(self, encoder: nn.Module) -> dict[str, float]:
        """The geometry of the embeddings that an encoder gives them now."""
        features = extract(encoder, self.images, self.normalisation)
        return measures(features.embedding, features.labels)


def measures(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """NC1 (a sum over the samples), NC2, effective rank, α and β of embeddings.

    Example:
        >>> found = measures(torch.eye(3).repeat(2, 1), torch.arange(3).repeat(2))
        >>> found["alpha"], found["nc1"]
        (1.0, 0.0)
    """
    collapse = geometry.neural_collapse(embeddings, labels)
    distances = geometry.two_distance(embeddings, labels)
    return {
        "nc1": collapse.nc1,
        "nc2_std": collapse.nc2_std,
        "nc2_deviation": collapse.nc2_deviation,
        "effective_rank": geometry.effective_rank(embeddings),
        "alpha": distances.alpha,
        "beta": distances.beta,
    }
