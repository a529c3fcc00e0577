"""The geometry of embeddings of held-out images, as it is followed along training."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from tricouple.data.images import ImageSet
from tricouple.data.normalisation import Normalisation
from tricouple.evaluation.features import extract
from tricouple.evaluation.report import measure_geometry

MEASURES = ("nc1", "nc2_std", "nc2_deviation", "effective_rank", "alpha", "beta")


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
        """NC1 (a sum over the images), NC2, effective rank, α and β of their embeddings now.

        Empty if the images are too few: no two classes, or no two images of one.
        """
        features = extract(encoder, self.images, self.normalisation)
        found = measure_geometry(features.embedding, features.labels)
        return {} if found is None else {name: getattr(found, name) for name in MEASURES}
