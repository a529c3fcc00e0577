"""Half-precision temperatures and autocast change no digit; an unconverged plan warns."""

import warnings

import pytest
import torch

import tricouple as tc
from conftest import COUPLED, OTHERS, draw
from reference import relative_error

LABELS = torch.arange(80) // 4
CRITERIA = COUPLED | OTHERS | {"uniformity": lambda: tc.IOT(uniformity=0.2), "vicreg": tc.VICReg}
del CRITERIA["exponential"]  # of 80 samples


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("module", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE, tc.InvaSpread, tc.IOT])
def test_temperature_in_half_precision_is_its_number(module, dtype):
    scale = torch.tensor(0.01, dtype=dtype, requires_grad=True)
    options = (0.001,) if module in (tc.NegMMIOT, tc.PushPull) else ()  # c = 1e5 > 65504
    x = draw(80, 0).float().requires_grad_()
    found = module(scale, *options)(x, LABELS)
    wanted = module(float(scale.detach()), *options)(x, LABELS)
    assert relative_error(found, wanted) <= 1e-5
    (slope,) = torch.autograd.grad(found, scale)
    assert slope.dtype == dtype
    assert not slope.isnan()


@pytest.mark.parametrize("name", CRITERIA)
def test_backward_inside_autocast_gives_the_same_gradients(name):
    criterion, references = CRITERIA[name](), draw(80, 1).float()
    x = draw(80, 0).float().requires_grad_()
    across = {"ref_emb": references, "ref_labels": LABELS.flip(0)}
    for options in [across] if name == "fused_gromov" else [{}, across]:
        (outside,) = torch.autograd.grad(criterion(x, LABELS, **options), x)
        with torch.autocast("cpu", torch.bfloat16):
            (inside,) = torch.autograd.grad(criterion(x, LABELS, **options), x)
        assert torch.equal(inside, outside)


def test_implicit_gradient_of_an_unconverged_plan_warns():
    x = draw(80, 0).requires_grad_()
    with pytest.warns(UserWarning, match=r'gradient="implicit".*marginals.*off.*n_iters'):
        tc.NegMMIOT(0.05, 0.1, n_iters=2, gradient="implicit")(x, LABELS).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        soft = tc.NegMMIOT(1.0, 1.0, n_iters=1000, tol=1e-6, gradient="implicit")
        soft(x, LABELS).backward()


@pytest.mark.parametrize("c", [1e4, 1e6])
def test_dbot_keeps_the_digits_of_its_potentials(c):
    unit = torch.nn.functional.normalize(draw(80, 0)).float()
    gradients = []
    for dtype in (torch.float32, torch.float64):
        x = unit.to(dtype).requires_grad_()
        loss = tc.DBOT(sharpness=c, lower=0.9, upper=1.1)(x, LABELS)
        gradients.append(torch.autograd.grad(loss, x)[0].double())
    # The norms of unit vectors in float32 are off by 6e-8, which moves scores by so many times c.
    assert relative_error(gradients[0], gradients[1]) <= 1e-6 + 2e-9 * c


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("module", [tc.InfoNCE, tc.InvaSpread, tc.DBOT, tc.IOT])
def test_a_sharpness_beyond_the_dtype_is_named(module, tensor):
    tiny = torch.tensor(1e-39, dtype=torch.float64) if tensor else 1e-39
    x = draw(80, 0).float()
    with pytest.raises(ValueError, match=r"temperature 1e-39 .* too large for torch\.float32"):
        module(tiny)(x, LABELS)
    assert module(tiny)(x.double(), LABELS).isfinite()


@pytest.mark.parametrize("name", CRITERIA)
def test_large_gradients_fit_bfloat16(name):
    # Small embeddings have large gradients.
    x, references = ((draw(80, seed) * 1e-4).bfloat16().requires_grad_() for seed in (0, 1))
    across = {"ref_emb": references, "ref_labels": LABELS.flip(0)}
    (CRITERIA[name]()(x, LABELS, **across) * (1e9 if name == "vicreg" else 1e5)).backward()
    assert x.grad.isfinite().all()
    assert references.grad.isfinite().all()
