"""Sharpness c = 1/(τε) from 0.1 to 10 000, and batches where naive arithmetic breaks."""

import pytest
import torch

from conftest import UNCONVERGED, Batch
from reference import with_gradients

SHARPNESS = [0.1, 10.0, 100.0, 1000.0, 10_000.0]


def at_sharpness(loss, c: float) -> dict[str, float]:
    """The options of a loss whose kernel is exp(±c·s)."""
    fixed = {"uniformity": loss.sharp["uniformity"]} if "uniformity" in loss.sharp else {}
    if loss.module == "IOT":
        return {"epsilon": 1 / c, **fixed}
    if loss.module == "PushPull":
        return {"temperature": 0.2, "epsilon_pos": 5 / c, "epsilon_neg": 5 / c}
    return {"temperature": 0.2, "epsilon": 5 / c}


def noise(n: int, seed: int = 0, dim: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64)


def rows_of(scene: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings and labels of a difficult batch."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(4)[:, None]
    direction = noise(1, 5)
    return {
        "identical": lambda: (direction.repeat(9, 1), labels),
        "antipodal classes": lambda: (direction * sign, torch.tensor([0, 1]).repeat(4)),
        "antipodal positives": lambda: (direction * sign, torch.tensor([0, 0, 1, 1]).repeat(2)),
        "duplicates": lambda: (noise(3, 6).repeat(3, 1), labels),
        "duplicates of the right class": lambda: (noise(3, 7)[labels], labels),
        "three samples": lambda: (noise(3, 8), torch.tensor([0, 0, 1])),
        "dominating class": lambda: (noise(10, 9), torch.tensor([0] * 9 + [1])),
        "hub": lambda: (noise(9, 10) * 0.2 + torch.where(labels == 2, 0.2, 1.0)[:, None], labels),
        "outlier": lambda: (
            torch.where(torch.arange(9)[:, None] == 4, -1.0, 1.0) + 0.05 * noise(9, 11),
            labels,
        ),
        "nearly identical": lambda: (direction + 1e-4 * noise(9, 12), labels),
        "random": lambda: (noise(9, 13), labels),
    }[scene]()


COLLAPSED = [
    "identical",
    "antipodal classes",
    "antipodal positives",
    "duplicates",
    "duplicates of the right class",
    "nearly identical",
]
SPREAD = ["three samples", "dominating class", "hub", "outlier", "random"]
SCENES = pytest.mark.parametrize("scene", COLLAPSED + SPREAD)


@SCENES
@pytest.mark.parametrize("across", [False, True], ids=["within", "across"])
def test_difficult_batches_equal_the_dense_loss(loss, scene, across):
    """The gradient of a collapsed batch is the small rest of forces of size c that balance."""
    rows, labels = rows_of(scene)
    for c in (0.1, 10.0, 100.0, 10_000.0):
        leaf = torch.nn.functional.normalize(rows).requires_grad_()
        batch = Batch(leaf, labels, *((leaf, labels) if across else ()))
        options = at_sharpness(loss, c) | {"n_iters": 4}
        value, gradient = with_gradients(batch.loss(loss.criterion(**options)), [leaf])
        wanted, slope = with_gradients(loss.dense(batch, **options), [leaf])
        in_balance = scene in COLLAPSED or (scene == "three samples" and not across)
        scale = max(float(slope.norm()), c if in_balance else 0.0)
        assert float((value - wanted).abs()) <= 1e-9 * max(float(wanted.abs()), 1.0), c
        assert float((gradient - slope).norm()) <= 1e-9 * scale, c


@UNCONVERGED
@SCENES
@pytest.mark.parametrize("marginals", ["uniform", "target"])
def test_values_are_finite_and_gradients_no_larger_than_forces_can_be(
    loss_and_mode, scene, marginals
):
    # Masses of at most one, moved through at most N samples, times c (and for the uniformity times
    # its own logarithms, of size c): anything larger is rounding, not gradient.
    loss, mode = loss_and_mode
    penalty = loss.sharp.get("uniformity", 0.0)
    rows, labels = rows_of(scene)
    for c in SHARPNESS:
        options = at_sharpness(loss, c) | {"marginals": marginals, "gradient": mode, "n_iters": 4}
        leaf = torch.nn.functional.normalize(rows).bfloat16().requires_grad_()
        value, gradient = with_gradients(loss.criterion(**options)(leaf, labels), [leaf])
        assert value.isfinite(), c
        assert gradient.norm() <= 100 * c * max(1.0, c * penalty), c


@pytest.mark.parametrize("c", [100.0, 1000.0, 10_000.0])
@pytest.mark.parametrize("spread", [1e-3, 0.3, 3.0])
def test_larger_float32_batches_stay_finite(loss, c, spread):
    labels = torch.arange(150) % 10
    rows = (noise(10, 20, 8)[labels] + spread * noise(150, 21, 8)).float().requires_grad_()
    value, gradient = with_gradients(loss.criterion(**at_sharpness(loss, c))(rows, labels), [rows])
    assert value.isfinite()
    assert value >= -1e-3
    assert gradient.isfinite().all()
    assert gradient.norm() > 0


@pytest.mark.parametrize("length", [1e-12, 1e-4, 1e6, 1e15])
def test_very_short_and_very_long_embeddings_are_normalised(loss, length):
    rows, labels = rows_of("random")
    criterion = loss.criterion(**at_sharpness(loss, 10.0))
    scaled = (rows * length).float().requires_grad_()
    value, gradient = with_gradients(criterion(scaled, labels), [scaled])
    wanted, wanted_gradient = with_gradients(criterion(rows.requires_grad_(), labels), [rows])
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    assert (
        float((gradient.double() * length - wanted_gradient).norm() / wanted_gradient.norm()) < 1e-5
    )
