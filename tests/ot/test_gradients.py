"""Three notions of a gradient, each against what defines it.

`unrolled` is autograd through the dense truncated algorithm, `implicit` through the dense algorithm
at convergence (both in tests/dense), `envelope` is ∂g/∂C = (P̃ − P)/ε at the final plan.
"""

import pytest
import torch
from torch import nn

from reference import relative_error, with_gradients

AT_CONVERGENCE = {"n_iters": 1000, "tol": 1e-13}


def gradient_of(loss, batch, **options):
    criterion = loss(**AT_CONVERGENCE, **options)
    return with_gradients(batch.loss(criterion), batch.leaves)[1]


EQUAL = ("balanced", "two_views", "three_views", "across_unique")
UNEQUAL = ("unbalanced", "singleton", "triplets_within")


@pytest.mark.parametrize("marginals", ["uniform", "target"])
@pytest.mark.parametrize("setting", [*EQUAL, *UNEQUAL])
def test_envelope_is_exact_for_equal_class_sizes_or_target_marginals(
    tempered_loss, settings, setting, marginals
):
    envelope, implicit = (
        gradient_of(tempered_loss, settings[setting], gradient=gradient, marginals=marginals)
        for gradient in ("envelope", "implicit")
    )
    error = relative_error(envelope, implicit)
    assert error > 0.01 if marginals == "uniform" and setting in UNEQUAL else error <= 1e-10


def test_temperature_learns_alone_when_embeddings_are_frozen(tempered_loss, settings):
    batch = settings["singleton"]
    temperature = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    criterion = tempered_loss(temperature=temperature)
    (joint,) = torch.autograd.grad(batch.loss(criterion), temperature)
    (alone,) = torch.autograd.grad(criterion(batch.embeddings.detach(), batch.labels), temperature)
    assert relative_error(alone, joint) <= 1e-14
