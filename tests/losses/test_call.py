"""What a call may be given beside labels: a temperature of its own, pairs from a miner."""

import math

import numpy as np
import pytest
import torch

import tricouple as tc
from conftest import draw
from reference import assert_same, with_gradients

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 1, 2])
ACROSS = {"ref_emb": draw(9, 5), "ref_labels": LABELS.flip(0)}
# Each loss with other settings of its own than a call will give, by what divides its similarities.
TEMPERED = {
    "neg_mmiot": lambda tau: tc.NegMMIOT(tau, 0.4, n_iters=3),
    "log_sigmoid": lambda tau: tc.NegMMIOT(
        tau, 0.4, n_iters=3, shaping="log_sigmoid", kernel_tol=1e-8
    ),
    "exponential": lambda tau: tc.NegMMIOT(tau, 0.4, n_iters=3, shaping="exponential"),
    "push_pull": lambda tau: tc.PushPull(tau, 0.4, 0.8, n_iters=3),
    "push_pull_exponential": lambda tau: tc.PushPull(tau, 0.4, 0.8, shaping="exponential"),
    "iot": lambda tau: tc.IOT(tau, n_iters=3),
    "iot_uniformity": lambda tau: tc.IOT(tau, n_iters=3, uniformity=0.5),
    "info_nce": tc.InfoNCE,
    "inva_spread": tc.InvaSpread,
    "siglip": tc.SigLIP,
    "dbot": lambda tau: tc.DBOT(tau, lower=0.9, upper=1.1),
    "fused_gromov": lambda tau: tc.FusedGromov(tau, alpha=0.1),
    "fused_gromov_published": lambda tau: tc.FusedGromov(tau, alpha=0.1, variant="published"),
}
CALLS = pytest.mark.parametrize(
    ("name", "across"),
    [
        pytest.param(name, across, id=f"{name}-{'across' if across else 'within'}")
        for name in TEMPERED
        for across in (False, True)
        if across or not name.startswith("fused_gromov")  # which needs two sets
    ],
)


@pytest.mark.parametrize("name", TEMPERED)
def test_temperature_of_a_call_replaces_the_setting(name):
    x, make = draw(9, 0), TEMPERED[name]
    criterion, wanted = make(0.9), make(0.5)(x, LABELS, **ACROSS)
    for tau in (0.5, np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5], dtype=torch.float64)):
        assert torch.equal(criterion(x, LABELS, **ACROSS, temperature=tau), wanted)
    assert torch.equal(criterion(x, LABELS, **ACROSS), make(0.9)(x, LABELS, **ACROSS))
    assert not torch.equal(criterion(x, LABELS, **ACROSS), wanted)


@CALLS
def test_temperature_of_a_call_receives_its_gradient(name, across):
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


# --- pairs from a miner --------------------------------------------------------------------------

# Every anchor has positives and negatives; one pair comes twice.
PAIRS = (
    torch.tensor([0, 0, 1, 3, 3, 3, 5, 0]),
    torch.tensor([1, 2, 0, 4, 5, 8, 3, 1]),
    torch.tensor([0, 0, 0, 1, 3, 5, 5]),
    torch.tensor([4, 5, 8, 7, 0, 1, 2]),
)


def products(a1, p, a2, n):
    """All triplets of the pairs, listed."""
    near = set(zip(a1.tolist(), p.tolist(), strict=True))
    far = set(zip(a2.tolist(), n.tolist(), strict=True))
    triplets = [(i, j, k) for i, j in sorted(near) for a, k in sorted(far) if a == i]
    return torch.tensor(triplets).unbind(1)


@CALLS
def test_pairs_are_all_the_triplets_of_each_anchor(name, across):
    criterion, x = TEMPERED[name](0.5), draw(9, 0).requires_grad_()
    options = {"ref_emb": draw(9, 5)} if across else {}
    found, wanted = (
        with_gradients(criterion(x, indices_tuple=indices, **options), [x])
        for indices in (PAIRS, products(*PAIRS))
    )
    tolerance = 1e-6 if name == "log_sigmoid" else 1e-12  # its mean cost is a quadrature
    assert_same(found, wanted, tolerance)


@pytest.mark.parametrize("name", TEMPERED)
@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        (([0, 1], [1, 1], [0], [2]), r"pairs of distinct samples, entry 1 is \(1, 1\)"),
        (([0], [1], [2, 3], [0, 3]), r"pairs of distinct samples, entry 1 is \(3, 3\)"),
        (([0], [1], [9], [2]), r"\(a2\) must be between 0 and 8, got 9"),
        (([0], [-1], [0], [2]), r"\(p\) must be between 0 and 8, got -1"),
        (([0], [1], [0, 1], [2]), r"\(n\) must hold .* \(2,\), got \(1,\)"),
        (([0.5], [1], [0], [2]), r"\(a1\) must be integers"),
        (([0, 0], [1, 2], [0, 0], [3, 2]), r"pair \(0, 2\) as positive .* and as negative"),
    ],
)
def test_bad_pairs_are_named(name, pairs, found):
    with pytest.raises((ValueError, TypeError), match=f"indices_tuple.*{found}"):
        TEMPERED[name](0.5)(draw(9, 0), indices_tuple=pairs)


def test_across_two_sets_an_index_may_meet_itself():
    pairs = ([0, 1], [0, 1], [0, 1], [1, 0])
    assert tc.NegMMIOT()(draw(3, 0), indices_tuple=pairs, ref_emb=draw(3, 1)) > 0


def test_pairs_without_a_triplet_are_an_empty_batch():
    pairs = ([0], [1], [2], [3])
    with pytest.raises(ValueError, match=r"no negative pair for an anchor .*empty"):
        tc.NegMMIOT()(draw(9, 0), indices_tuple=pairs)
    assert tc.NegMMIOT(empty="zero")(draw(9, 0), indices_tuple=pairs) == 0
    nothing = torch.zeros(4, 0, dtype=torch.int64).unbind()
    assert tc.IOT(empty="zero")(draw(9, 0), indices_tuple=nothing) == 0
