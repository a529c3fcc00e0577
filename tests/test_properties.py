"""Laws that hold for every batch, tried on many."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tricouple as tc
from batches import draw as draw_rows
from batches import scales
from reference import cosine

LOSSES = pytest.mark.parametrize("module", [tc.NegMMIOT, tc.PushPull, tc.IOT])
SEEDS = st.integers(0, 2**31)
SIZES = st.integers(4, 9)
SHARPNESSES = st.floats(0.1, 200.0)


def shuffle(seed: int, n: int) -> torch.Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


@st.composite
def batches(draw):
    """Embeddings and labels with at least one positive and one negative pair."""
    n = draw(SIZES)
    labels = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    labels[:3] = [0, 0, 1]
    return draw_rows(n, 4, seed=draw(SEEDS)), torch.tensor(labels)


def build(module, c, **options):
    """A loss of the given sharpness, where it has one of temperature 0.5."""
    return module(**scales(module.__name__, c, 2 / c), **options)


def close(a, b, tolerance=1e-10):
    """Equal up to rounding of a loss whose terms are of the size of the sharpness."""
    return abs(float(a) - float(b)) <= tolerance * max(1.0, abs(float(a)))


@LOSSES
@given(
    batch=batches(),
    sharpness=SHARPNESSES,
    seed=SEEDS,
    marginals=st.sampled_from(["uniform", "target"]),
    names=st.permutations([-7, 0, 13, 10**12]),
)
def test_order_names_rotation_and_length_do_not_matter(
    module, batch, sharpness, seed, marginals, names
):
    rows, labels = batch
    criterion = build(module, sharpness, marginals=marginals)
    order, rotation = shuffle(seed, len(rows)), torch.linalg.qr(draw_rows(4, 4, seed=seed)).Q
    lengths = draw_rows(len(rows), 1, seed=seed).exp()
    changed = ((rows @ rotation)[order] * lengths).requires_grad_()
    value = criterion(changed, torch.tensor(names)[labels[order]])
    (moved,) = torch.autograd.grad(value, changed)
    (gradient,) = torch.autograd.grad(criterion(rows.requires_grad_(), labels), rows)
    assert close(criterion(rows.detach(), labels), value.detach())
    moved, gradient = moved * lengths, (gradient @ rotation)[order]
    assert torch.allclose(moved, gradient, rtol=0, atol=1e-9 * sharpness)
    assert ((moved * changed / lengths).sum(1).abs() <= 1e-10 * sharpness).all()  # orthogonal


@given(seed=SEEDS, n=SIZES, shift=st.floats(-50, 50), epsilon=st.floats(0.05, 5.0))
def test_constant_added_to_a_cost_leaves_the_plan(seed, n, shift, epsilon):
    cost = draw_rows(n, n, seed=seed)
    plain = tc.ot.sinkhorn(cost, epsilon, n_iters=7).dense()
    assert torch.allclose(
        tc.ot.sinkhorn(cost + shift, epsilon, n_iters=7).dense(), plain, atol=1e-10
    )
    similarity = cosine(cost)
    plan = tc.ot.triplet_sinkhorn(similarity, 0.5, epsilon, n_iters=7).dense()
    moved = tc.ot.triplet_sinkhorn(similarity + shift, 0.5, epsilon, n_iters=7).dense()
    assert torch.allclose(moved, plan, atol=1e-10)
