"""Free vectors under Neg-MMIOT reach the optimum that theory predicts."""

import pytest
import torch

from tricouple import geometry
from tricouple.experiments.verify.descent import descend_from_random
from tricouple.losses import NegMMIOT


@pytest.mark.parametrize(("n_classes", "per_class", "dim"), [(10, 10, 16), (4, 5, 3), (5, 2, 20)])
def test_free_vectors_end_at_the_simplex_etf_and_its_loss(n_classes, per_class, dim):
    labels = torch.arange(n_classes).repeat_interleave(per_class)
    criterion = NegMMIOT(temperature=1.0, epsilon=0.5)
    (end,) = descend_from_random(criterion, labels, dim, torch.Generator().manual_seed(0))
    optimum = geometry.etf_loss(n_classes, per_class, temperature=1.0, epsilon=0.5)
    assert end.distances.alpha == pytest.approx(1.0, abs=1e-3)
    assert end.distances.beta == pytest.approx(-1 / (n_classes - 1), abs=1e-3)
    assert end.loss == pytest.approx(optimum, abs=1e-4)
    assert end.collapse.nc2_deviation < 1e-3
    assert min(end.losses) >= optimum - 1e-12
    assert end.losses[0] > optimum + 0.1
