"""Sharpness c = 1/(τε) from 0.1 to 10 000, and batches where naive arithmetic breaks."""

import pytest
import torch

from conftest import UNCONVERGED
from reference import with_gradients

SHARPNESS = [0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0]


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


def errors(loss, scene, c, dtype, across):
    """Errors of value and gradient against the float64 oracle on the same numbers.

    The gradient of a collapsed batch is the small rest of forces of size c that balance (and with
    three samples within one set it is exactly zero), so there the error is compared with c instead
    of the gradient's own norm; likewise a value below 1.
    """
    rows, labels = rows_of(scene)
    rows = torch.nn.functional.normalize(rows).to(dtype).requires_grad_()
    exact = rows.detach().double().requires_grad_()
    options = at_sharpness(loss, c)
    pair = (lambda z: {"ref_emb": z, "ref_labels": labels}) if across else (lambda z: {})
    ours = with_gradients(loss.criterion(**options)(rows, labels, **pair(rows)), [rows])
    wanted = with_gradients(loss.oracle(exact, labels, **pair(exact), **options), [exact])
    assert torch.isfinite(ours[0])
    assert torch.isfinite(ours[1]).all()
    value, gradient = wanted
    in_balance = scene in COLLAPSED or (scene == "three samples" and not across)
    scale = max(float(gradient.norm()), c if in_balance else 0.0)
    return (
        float((ours[0] - value).abs()) / max(float(value.abs()), 1.0),
        float((ours[1].double() - gradient).norm()) / scale,
    )


@pytest.mark.usefixtures("sweeps")
@SCENES
@pytest.mark.parametrize("across", [False, True], ids=["within", "across"])
@pytest.mark.parametrize("c", SHARPNESS)
def test_float64_is_accurate_at_every_sharpness(loss, scene, c, across):
    value_error, gradient_error = errors(loss, scene, c, torch.float64, across)
    assert value_error <= 1e-9
    assert gradient_error <= 1e-9


@pytest.mark.usefixtures("sweeps", "tiny_batches")
@SCENES
@pytest.mark.parametrize("across", [False, True], ids=["within", "across"])
@pytest.mark.parametrize("c", [c for c in SHARPNESS if c <= 100])
def test_float32_is_accurate_up_to_the_papers_sharpness(loss, scene, c, across):
    value_error, gradient_error = errors(loss, scene, c, torch.float32, across)
    assert value_error <= 1e-5
    assert gradient_error <= 1e-5


def every_sharpness(loss, mode, scene, dtype, marginals):
    """Sharpness, value and gradient of a batch of unit vectors, from c = 0.1 to c = 10 000."""
    rows, labels = rows_of(scene)
    for c in SHARPNESS:
        leaf = torch.nn.functional.normalize(rows).to(dtype).requires_grad_()
        options = at_sharpness(loss, c) | {"marginals": marginals, "gradient": mode}
        yield c, *with_gradients(loss.criterion(**options)(leaf, labels), [leaf])


MARGINALS = pytest.mark.parametrize("marginals", ["uniform", "target"])


@UNCONVERGED
@SCENES
@MARGINALS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_value_and_gradient_are_finite_at_every_sharpness(
    loss_and_mode, scene, dtype, marginals, request
):
    if dtype == torch.float32:
        request.getfixturevalue("float32")
    for c, value, gradient in every_sharpness(*loss_and_mode, scene, dtype, marginals):
        assert value.isfinite(), c
        assert gradient.isfinite().all(), c


@UNCONVERGED
@SCENES
@MARGINALS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_no_larger_than_its_forces_can_be(
    loss_and_mode, scene, dtype, marginals, request
):
    if dtype == torch.float32:
        request.getfixturevalue("float32")
    # Masses of at most one, moved through at most N samples, times c (and for the uniformity times
    # its own logarithms, of size c): anything larger is rounding, not gradient.
    penalty = loss_and_mode[0].sharp.get("uniformity", 0.0)
    for c, _, gradient in every_sharpness(*loss_and_mode, scene, dtype, marginals):
        bound = 100 * c * max(1.0, c * penalty)
        assert gradient.norm() <= bound, c


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
