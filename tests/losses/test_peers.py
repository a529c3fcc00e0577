"""Well-kept implementations elsewhere agree with ours, value and gradient, in the same dtype."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor

import ot
import tricouple as tc
from reference import relative_error, with_gradients
from tricouple_lab.models.byol import negative_cosine

# lightly and open_clip import torchvision.
from tricouple.torchvision_ops import declare_missing  # isort: skip

declare_missing()

from lightly.loss import NegativeCosineSimilarity, VICRegLoss  # noqa: E402
from open_clip.loss import ClipLoss  # noqa: E402

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float32", "float64"])
# Up to 64 samples the library computes in float64 whatever it is given.
SIZES = pytest.mark.parametrize("n", [12, 80])
TEMPERATURES = pytest.mark.parametrize("temperature", [0.07, 0.5])


def rows(n: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(n, 16, generator=generator)).to(dtype).requires_grad_()


def assert_equal(ours, peer, *leaves: Tensor) -> None:
    """Two losses of the same tensors agree to the tolerance of their dtype."""
    found = with_gradients(ours(*leaves), leaves)
    wanted = with_gradients(peer(*leaves), leaves)
    tolerance = TOLERANCE[leaves[0].dtype]
    assert found[0].dtype == found[1].dtype == leaves[0].dtype
    assert relative_error(found[0], wanted[0]) <= tolerance
    assert relative_error(found[1], wanted[1]) <= tolerance


@DTYPES
@SIZES
@TEMPERATURES
@pytest.mark.parametrize("classes", ["balanced", "unbalanced", "singletons"])
def test_info_nce_of_labels_is_sup_con(n, dtype, temperature, classes):
    labels = {
        "balanced": torch.arange(n) % 4,
        "unbalanced": torch.arange(n).sqrt().long(),
        "singletons": torch.cat([torch.arange(n // 2) % 3, torch.arange(n - n // 2) + 10]),
    }[classes]
    assert_equal(
        lambda x: tc.InfoNCE(temperature)(x, labels),
        lambda x: SupConLoss(temperature)(x, labels),
        rows(n, dtype),
    )


def clip_loss(images: Tensor, texts: Tensor, logit_scale: Tensor | float) -> Tensor:
    unit = [torch.nn.functional.normalize(features) for features in (images, texts)]
    return ClipLoss()(*unit, logit_scale)


@DTYPES
@SIZES
def test_temperature_learns_as_the_logit_scale_of_clip(n, dtype):
    assert_equal(
        lambda a, b, scale: tc.BothDirections(tc.InfoNCE(torch.exp(-scale)))(a, b, torch.arange(n)),
        lambda a, b, scale: clip_loss(a, b, torch.exp(scale)),
        rows(n, dtype),
        rows(n, dtype, seed=1),
        torch.tensor(1.7, dtype=dtype, requires_grad=True),
    )


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


@DTYPES
@SIZES
def test_byol_compares_by_the_negative_cosine_of_lightly(n, dtype):
    targets = rows(n, dtype, seed=1).detach()
    assert_equal(
        lambda x: negative_cosine(x, targets),
        lambda x: NegativeCosineSimilarity()(x, targets),
        rows(n, dtype),
    )


@DTYPES
@pytest.mark.parametrize("shape", [(9, 9), (70, 65)])
def test_pair_plan_is_that_of_pot(shape, dtype):
    n, m = shape
    epsilon, weights = 0.5, rows(n, dtype)[:, :1].detach() * rows(m, dtype, seed=1)[:, 0].detach()
    masses = [torch.linspace(1, 2, size, dtype=torch.float64) for size in shape]
    masses = [(mass / mass.sum()).to(dtype) for mass in masses]

    def cost(x: Tensor, y: Tensor) -> Tensor:
        unit = [torch.nn.functional.normalize(side) for side in (x, y)]
        return 1 - unit[0] @ unit[1].T

    def ours(x: Tensor, y: Tensor) -> Tensor:
        plan = tc.ot.sinkhorn(
            cost(x, y), epsilon, row_marginal=masses[0], column_marginal=masses[1], n_iters=60
        )
        return (plan.dense() * weights).sum()

    def theirs(x: Tensor, y: Tensor) -> Tensor:
        plan = ot.sinkhorn(*masses, cost(x, y), epsilon, numItermax=60, stopThr=0, warn=False)
        return (plan * weights).sum()

    assert_equal(ours, theirs, rows(n, dtype), rows(m, dtype, seed=1))


def test_pair_plan_within_one_set_is_that_of_pot():
    unit = torch.nn.functional.normalize(rows(30, torch.float64).detach())
    cost = (1 - unit @ unit.T).fill_diagonal_(torch.inf)
    uniform = torch.full((30,), 1 / 30, dtype=torch.float64)
    wanted = ot.sinkhorn(uniform, uniform, cost, 0.3, numItermax=200, stopThr=0, warn=False)
    plan = tc.ot.sinkhorn(cost, 0.3, n_iters=200).dense()
    assert relative_error(plan, wanted) <= 1e-10
    assert (plan.diagonal() == 0).all()
