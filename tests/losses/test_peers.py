"""Well-kept implementations elsewhere agree with ours, value and gradient, in the same dtype."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tricouple as tc
from reference import assert_same, with_gradients

# lightly imports torchvision.
from tricouple.torchvision_ops import declare_missing  # isort: skip

declare_missing()

from lightly.loss import VICRegLoss  # noqa: E402

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float32", "float64"])
# Up to 64 samples the library computes in float64 whatever it is given.
SIZES = pytest.mark.parametrize("n", [12, 80])


def rows(n: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(n, 16, generator=generator)).to(dtype).requires_grad_()


def assert_equal(ours, peer, *leaves: Tensor) -> None:
    """Two losses of the same tensors agree to the tolerance of their dtype."""
    found = with_gradients(ours(*leaves), leaves)
    wanted = with_gradients(peer(*leaves), leaves)
    tolerance = TOLERANCE[leaves[0].dtype]
    assert found[0].dtype == found[1].dtype == leaves[0].dtype
    assert_same(found, wanted, tolerance)


@DTYPES
@pytest.mark.parametrize("n", [2, 12, 80, 4200])
def test_vicreg_of_two_views_is_that_of_lightly(n, dtype):
    assert_equal(
        lambda a, b: tc.VICReg()(*tc.pair_views(a, b)), VICRegLoss(),
        rows(n, dtype), rows(n, dtype, seed=1),
    )  # fmt: skip


@DTYPES
def test_vicreg_across_is_that_of_lightly_in_any_order(dtype):
    ids, order = torch.arange(80), torch.randperm(80, generator=torch.Generator().manual_seed(0))
    assert_equal(
        lambda a, b: tc.VICReg(10, 20, 2, 1e-3)(a, ids, ref_emb=b[order], ref_labels=ids[order]),
        VICRegLoss(lambda_param=10, mu_param=20, nu_param=2, eps=1e-3),
        rows(80, dtype),
        rows(80, dtype, seed=1),
    )
