"""The baselines are their formulas, in every setting where they have a meaning."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import tricouple as tc
from baseline_reference import (
    loop_dbot,
    loop_fused_gromov,
    loop_inva_spread,
    loop_siglip,
    loop_vicreg,
)
from batches import KINDS, batch
from conftest import SETTINGS, Batch
from reference import relative_error

ACROSS = [name for name in SETTINGS if "across" in name]
LABELLED = [name for name in SETTINGS if "triplets" not in name]


PUBLISHED = {"variant": "published"}
# A baseline, its loops, options of both, and the settings in which it has a meaning.
BASELINES = {
    "inva_spread": (tc.InvaSpread, loop_inva_spread, {}, SETTINGS),
    "inva_spread_published": (tc.InvaSpread, loop_inva_spread, PUBLISHED, SETTINGS),
    "inva_spread_soft": (tc.InvaSpread, loop_inva_spread, {"temperature": 0.5}, SETTINGS),
    "siglip": (tc.SigLIP, loop_siglip, {}, SETTINGS),
    "siglip_soft": (tc.SigLIP, loop_siglip, {"temperature": 0.4, "bias": -1.5}, SETTINGS),
    "dbot": (tc.DBOT, loop_dbot, {}, SETTINGS),
    "dbot_tight": (tc.DBOT, loop_dbot, {"lower": 0.9, "upper": 1.05, "n_iters": 3}, SETTINGS),
    "dbot_published": (tc.DBOT, loop_dbot, PUBLISHED | {"regularisation": 1.0}, ACROSS),
    "fused_gromov": (tc.FusedGromov, loop_fused_gromov, {}, ACROSS),
    "fused_gromov_strong": (
        *(tc.FusedGromov, loop_fused_gromov),
        *({"epsilon": 0.3, "alpha": 0.05, "n_outer": 3}, ACROSS),
    ),
    "fused_gromov_published": (
        *(tc.FusedGromov, loop_fused_gromov),
        *(PUBLISHED | {"epsilon": 0.01}, ACROSS),
    ),
    "vicreg": (tc.VICReg, loop_vicreg, {}, LABELLED),
}


def gradients(value: Tensor, leaves: list[Tensor]) -> tuple[Tensor, Tensor]:
    """As `with_gradients`, with zeros where a gradient is stopped."""
    parts = torch.autograd.grad(value, leaves, materialize_grads=True)
    return value.detach(), torch.cat([part.flatten() for part in parts])


def compare(name: str, batch: Batch) -> float:
    """The larger error of value and gradient against the loops on the same numbers."""
    module, oracle, options, _ = BASELINES[name]
    value, gradient = gradients(batch.loss(module(**options)), batch.leaves)
    exact = batch.to(torch.float64)
    wanted = gradients(exact.dense(oracle, **options), exact.leaves)
    assert value.dtype == gradient.dtype == batch.embeddings.dtype
    return max(relative_error(value, wanted[0]), relative_error(gradient, wanted[1]))


@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, setting) for name, (*_, settings) in BASELINES.items() for setting in settings],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_baseline_equals_its_loops(name, setting, dtype, tolerance):
    assert compare(name, SETTINGS[setting].to(dtype)) <= tolerance


@pytest.mark.parametrize("name", BASELINES)
def test_larger_float32_batches_equal_the_loops(name):
    # Above 64 × 64 pairs the library computes in float32 itself.
    generator = torch.Generator().manual_seed(0)
    rows, others = torch.randn(2, 70, 6, generator=generator)
    labels = torch.randint(12, (70,), generator=generator)
    batch = Batch(rows, labels)
    if BASELINES[name][3] is ACROSS:
        batch = replace(batch, ref_emb=others, ref_labels=labels.flip(0))
    assert compare(name, batch.to(torch.float32)) <= 1e-5


@pytest.mark.parametrize("c", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("n", [3, 9])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("module", "oracle"),
    [(tc.InvaSpread, loop_inva_spread), (tc.DBOT, loop_dbot), (tc.SigLIP, loop_siglip)],
)
def test_baselines_of_degenerate_batches_equal_the_loops(module, oracle, kind, n, c):
    if module is tc.InvaSpread and c == 10:
        return  # the loops lose the digits of 1 − p
    there = batch(kind, n).to(torch.float64)
    options = {module.scale: 1 / c}
    found = gradients(there.loss(module(**options)), there.leaves)
    wanted = gradients(there.dense(oracle, **options), there.leaves)
    assert relative_error(found[0], wanted[0]) <= 1e-9
    assert float((found[1] - wanted[1]).norm()) <= 1e-9 * max(c, float(wanted[1].norm()))


# --- claims about one loss -----------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.1, 0.01, 0.001])
def test_inva_spread_is_finite_where_one_minus_p_rounds_to_zero(temperature):
    # Every anchor is sure of a *negative*: 1 − p is below 1e-80 and log(1 − p) far from −∞.
    angles = torch.tensor([0.0, 1.5, 0.001, 1.499])
    rows = torch.stack([angles.cos(), angles.sin()], 1).requires_grad_()
    value, gradient = gradients(
        tc.InvaSpread(temperature)(rows, torch.tensor([0, 0, 1, 1])), [rows]
    )
    assert value.isfinite()
    assert value > 0.5 / temperature
    assert gradient.isfinite().all()
    assert gradient.norm() > 0


@pytest.mark.parametrize("setting", ["balanced", "two_views", "across_unique"])
def test_dbot_within_its_bounds_is_info_nce(settings, setting):
    batch = settings[setting]
    loose = batch.loss(tc.DBOT(regularisation=0.5, lower=0.0, upper=1000.0))
    assert relative_error(loose, batch.loss(tc.InfoNCE(temperature=0.5))) <= 1e-13


def test_published_fused_gromov_prefers_pairs_that_are_unlike():
    ids = torch.arange(4)
    corners = torch.eye(4, dtype=torch.float64)
    formula, published = (
        [tc.FusedGromov(variant=name)(corners, ids, None, sign * corners, ids) for sign in (1, -1)]
        for name in ("formula", "published")
    )
    assert formula[0] < formula[1]
    assert published[0] > published[1]


def test_fused_gromov_without_geometry_has_the_gradient_of_iot():
    there = batch("some in references", 9).to(torch.float64)  # which forbids the anchor itself
    slopes = (
        gradients(there.loss(criterion), there.leaves)[1]
        for criterion in (tc.FusedGromov(0.3, alpha=0.0, n_outer=1), tc.IOT(0.3, n_iters=5))
    )
    assert relative_error(*slopes) <= 1e-12


@pytest.mark.parametrize("module", [tc.DBOT, tc.FusedGromov])
def test_published_read_out_can_hardly_move(module):
    n = 256
    ids = torch.arange(n)
    rows = torch.randn(n, 16, generator=torch.Generator().manual_seed(0))
    loss = module(variant="published")(rows, ids, None, rows, ids)
    assert math.log(n - 1 + math.e) - 1 <= float(loss) <= math.log(n - 1 + math.e)


def test_vicreg_depends_on_the_length_of_the_embeddings(settings):
    batch = settings["two_views"]
    longer = replace(batch, embeddings=2 * batch.embeddings)
    assert relative_error(longer.loss(tc.VICReg()), batch.loss(tc.VICReg())) > 0.1
    zeros = torch.zeros(4, 3, requires_grad=True)
    value, gradient = gradients(tc.VICReg()(zeros, torch.tensor([0, 0, 1, 1])), [zeros])
    assert value == pytest.approx(25 * (1 - 1e-2))
    assert gradient.isfinite().all()


def test_vicreg_pairs_samples_in_batch_order():
    def value(first, second):
        views = rows[first], rows[second]
        return tc.VICReg()(*tc.pair_views(*views))

    rows = torch.randn(13, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([7, 3, 7, 3, 7, 3, 3, 9])
    found = tc.VICReg()(rows[:8], labels)
    assert relative_error(found, value([0, 1, 5], [2, 3, 6])) <= 1e-6
    references = torch.tensor([1, 5, 2, 5, 5])
    found = tc.VICReg()(
        rows[:4], torch.tensor([5, 5, 1, 8]), ref_emb=rows[8:], ref_labels=references
    )
    assert relative_error(found, value([0, 1, 2], [9, 11, 8])) <= 1e-6
