"""What a call may be given beside labels: a temperature of its own."""

import math

import numpy as np
import pytest
import torch

import tricouple as tc
from conftest import draw

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 1, 2])
ACROSS = {"ref_emb": draw(9, 5), "ref_labels": LABELS.flip(0)}
# Each loss with other settings of its own than a call will give, by what divides its similarities.
TEMPERED = {
    "neg_mmiot": lambda tau: tc.NegMMIOT(tau, 0.4, n_iters=3),
    "log_sigmoid": lambda tau: tc.NegMMIOT(tau, 0.4, n_iters=3, shaping="log_sigmoid"),
    "exponential": lambda tau: tc.NegMMIOT(tau, 0.4, n_iters=3, shaping="exponential"),
    "push_pull": lambda tau: tc.PushPull(tau, 0.4, 0.8, n_iters=3),
    "push_pull_exponential": lambda tau: tc.PushPull(tau, 0.4, 0.8, shaping="exponential"),
    "iot": lambda tau: tc.IOT(tau, n_iters=3),
    "iot_uniformity": lambda tau: tc.IOT(tau, n_iters=3, uniformity=0.5),
    "info_nce": tc.InfoNCE,
    "inva_spread": tc.InvaSpread,
    "dbot": lambda tau: tc.DBOT(tau, lower=0.9, upper=1.1),
    "fused_gromov": lambda tau: tc.FusedGromov(tau, alpha=0.1),
    "fused_gromov_published": lambda tau: tc.FusedGromov(tau, alpha=0.1, variant="published"),
}


@pytest.mark.parametrize("name", TEMPERED)
def test_temperature_of_a_call_replaces_the_setting(name):
    x, make = draw(9, 0), TEMPERED[name]
    criterion, wanted = make(0.9), make(0.5)(x, LABELS, **ACROSS)
    for tau in (0.5, np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5], dtype=torch.float64)):
        assert torch.equal(criterion(x, LABELS, **ACROSS, temperature=tau), wanted)
    assert torch.equal(criterion(x, LABELS, **ACROSS), make(0.9)(x, LABELS, **ACROSS))
    assert not torch.equal(criterion(x, LABELS, **ACROSS), wanted)


@pytest.mark.parametrize("across", [False, True], ids=["within", "across"])
@pytest.mark.parametrize("name", TEMPERED)
def test_temperature_of_a_call_receives_its_gradient(name, across):
    if name.startswith("fused_gromov") and not across:
        return  # it needs two sets
    criterion, options = TEMPERED[name](0.9), ACROSS if across else {}
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    x = draw(9, 0).requires_grad_()

    def value(x, tau):
        return criterion(x, LABELS, **options, temperature=tau)

    assert torch.autograd.gradcheck(value, (x, tau), atol=1e-6)


@pytest.mark.parametrize("name", TEMPERED)
@pytest.mark.parametrize(
    ("value", "found"),
    [
        (0.0, "got 0.0"),
        (-0.5, "got -0.5"),
        (math.nan, "got nan"),
        (math.inf, "got inf"),
        (torch.tensor(-1.0), "got -1.0"),
        (torch.tensor([0.1, 0.2]), "shape (2,)"),
        (torch.full((9,), 0.1), "shape (9,)"),
        (torch.tensor(1), "int64"),
    ],
)
def test_bad_temperature_of_a_call_is_named(name, value, found):
    with pytest.raises(ValueError, match="temperature must be") as error:
        TEMPERED[name](0.5)(draw(9, 0), LABELS, **ACROSS, temperature=value)
    assert found in str(error.value)


def test_a_loss_without_a_temperature_says_so():
    with pytest.raises(ValueError, match=r"temperature=0.1 has no meaning for VICReg"):
        tc.VICReg()(draw(9, 0), LABELS, temperature=0.1)
