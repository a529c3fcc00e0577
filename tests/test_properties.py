"""Laws that hold for every batch, tried on many."""

from dataclasses import replace

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tricouple as tc
from reference import cosine, dense_plan, marginal_error, own_marginals, triplet_cost

LOSSES = pytest.mark.parametrize("module", [tc.NegMMIOT, tc.PushPull, tc.IOT])
SEEDS = st.integers(0, 2**31)
MARGINALS = st.sampled_from(["uniform", "target"])
SIZES = st.integers(4, 9)
SHARPNESSES = st.floats(0.1, 200.0)


def rows_from(seed: int, n: int, dim: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64)


def shuffle(seed: int, n: int) -> torch.Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


@st.composite
def batches(draw):
    """Embeddings and labels with at least one positive and one negative pair."""
    n = draw(SIZES)
    labels = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    labels[:3] = [0, 0, 1]
    return rows_from(draw(SEEDS), n), torch.tensor(labels)


def build(module, sharpness, **options):
    """A loss of the given sharpness c."""
    if module is tc.IOT:
        return module(epsilon=1 / sharpness, **options)
    if module is tc.PushPull:
        options |= {"epsilon_pos": 2 / sharpness, "epsilon_neg": 2 / sharpness}
    else:
        options["epsilon"] = 2 / sharpness
    return module(temperature=0.5, **options)


def close(a, b, tolerance=1e-10):
    """Equal up to rounding of a loss whose terms are of the size of the sharpness."""
    return abs(float(a) - float(b)) <= tolerance * max(1.0, abs(float(a)))


@LOSSES
@given(
    batch=batches(),
    sharpness=SHARPNESSES,
    seed=SEEDS,
    marginals=st.sampled_from(["uniform", "target"]),
)
def test_order_of_samples_does_not_matter(module, batch, sharpness, seed, marginals):
    rows, labels = batch
    order = shuffle(seed, len(rows))
    criterion = build(module, sharpness, marginals=marginals)
    assert close(criterion(rows, labels), criterion(rows[order], labels[order]))


@LOSSES
@given(batch=batches(), sharpness=SHARPNESSES, seed=SEEDS)
def test_gradient_moves_with_the_order_of_samples(module, batch, sharpness, seed):
    rows, labels = batch
    order = shuffle(seed, len(rows))
    criterion = build(module, sharpness)
    first, second = rows.clone().requires_grad_(), rows[order].requires_grad_()
    (straight,) = torch.autograd.grad(criterion(first, labels), first)
    (shuffled,) = torch.autograd.grad(criterion(second, labels[order]), second)
    assert torch.allclose(straight[order], shuffled, rtol=0, atol=1e-9 * sharpness)


@LOSSES
@given(batch=batches(), sharpness=SHARPNESSES, names=st.permutations([-7, 0, 13, 10**12]))
def test_names_of_identities_do_not_matter(module, batch, sharpness, names):
    rows, labels = batch
    criterion = build(module, sharpness)
    assert close(criterion(rows, labels), criterion(rows, torch.tensor(names)[labels]))


@LOSSES
@given(batch=batches(), sharpness=SHARPNESSES, seed=SEEDS)
def test_rotation_and_length_do_not_matter(module, batch, sharpness, seed):
    rows, labels = batch
    rotation = torch.linalg.qr(rows_from(seed, 4)).Q
    lengths = rows_from(seed, len(rows), 1).exp()
    criterion = build(module, sharpness)
    assert close(criterion(rows, labels), criterion(rows @ rotation * lengths, labels))


@LOSSES
@given(batch=batches(), sharpness=SHARPNESSES)
def test_gradient_is_orthogonal_to_each_embedding(module, batch, sharpness):
    rows, labels = batch
    rows = rows.requires_grad_()
    (gradient,) = torch.autograd.grad(build(module, sharpness)(rows, labels), rows)
    assert ((gradient * rows).sum(1).abs() <= 1e-11 * sharpness).all()


@LOSSES
@given(batch=batches(), sharpness=st.floats(0.1, 10.0))
def test_divergence_is_not_negative_at_convergence(module, batch, sharpness):
    # Before convergence P need not have mass one, and the divergence could be anything.
    rows, labels = batch
    assert float(build(module, sharpness, n_iters=2000, tol=1e-12)(rows, labels)) >= -1e-9


@given(seed=SEEDS, n=SIZES, sharpness=st.floats(0.1, 8.0), within=st.booleans())
def test_triplet_plan_has_its_marginals_at_convergence(seed, n, sharpness, within):
    similarity = cosine(rows_from(seed, n), None if within else rows_from(seed + 1, n + 2))
    plan = tc.ot.triplet_sinkhorn(
        similarity, 0.5, 2 / sharpness, n_iters=5000, tol=1e-9, within=within
    )
    hypothesis.assume(plan.converged)
    for marginal in own_marginals(plan.dense()):
        assert (marginal - 1 / len(marginal)).abs().sum() <= 2e-9
    assert float(plan.dense().sum()) == pytest.approx(1, abs=2e-9)


@given(seed=SEEDS, n=SIZES, m=SIZES, epsilon=st.floats(0.2, 10.0), anti=st.booleans())
def test_pair_plan_has_its_marginals_at_convergence(seed, n, m, epsilon, anti):
    rows, columns = rows_from(seed, n, 1)[:, 0].softmax(0), rows_from(seed, m, 1)[:, 0].softmax(0)
    cost = rows_from(seed, n, m)
    imposed = {"row_marginal": rows, "column_marginal": columns}
    plan = tc.ot.sinkhorn(cost, epsilon, n_iters=20_000, tol=1e-10, anti=anti, **imposed)
    assert plan.converged
    assert marginal_error(plan.dense(), [rows, columns]) <= 2e-10


@given(seed=SEEDS, n=SIZES, shift=st.floats(-50, 50), epsilon=st.floats(0.05, 5.0))
def test_constant_added_to_a_cost_leaves_the_plan(seed, n, shift, epsilon):
    cost = rows_from(seed, n, n)
    plain = tc.ot.sinkhorn(cost, epsilon, n_iters=7).dense()
    assert torch.allclose(
        tc.ot.sinkhorn(cost + shift, epsilon, n_iters=7).dense(), plain, atol=1e-10
    )
    similarity = cosine(cost)
    plan = tc.ot.triplet_sinkhorn(similarity, 0.5, epsilon, n_iters=7).dense()
    moved = tc.ot.triplet_sinkhorn(similarity + shift, 0.5, epsilon, n_iters=7).dense()
    assert torch.allclose(moved, plan, atol=1e-10)


@given(seed=SEEDS, n=SIZES, shift=st.floats(-5, 5), epsilon=st.floats(0.05, 5.0))
def test_translation_of_potentials_leaves_the_plan(seed, n, shift, epsilon):
    cost = rows_from(seed, n, n)
    pair = tc.ot.sinkhorn(cost, epsilon, n_iters=7)
    f, g = pair.potentials
    moved = replace(pair, potentials=(f + shift, g - shift))
    assert torch.allclose(moved.dense(), dense_plan(cost, epsilon, 7), atol=1e-10)
    triplet = tc.ot.triplet_sinkhorn(cosine(cost), 0.5, epsilon, n_iters=7)
    phi, f, g = triplet.potentials
    wanted = dense_plan(triplet_cost(cosine(cost), 0.5, True), epsilon, 7)
    for potentials in ((phi + shift, f - shift, g), (phi, f + shift, g - shift)):
        moved = replace(triplet, potentials=potentials)
        assert torch.allclose(moved.dense(), wanted, atol=1e-10)


@given(batch=batches(), other=SEEDS, weight=st.floats(0, 1))
def test_divergence_is_convex_in_the_similarities(batch, other, weight):
    # Mathematics §6: g(C) = KL(P̃‖P^C) is convex, here on a segment of costs, at convergence.
    rows, labels = batch
    cost = 1 - cosine(rows).fill_diagonal_(-torch.inf)
    away = 1 - cosine(rows_from(other, len(rows))).fill_diagonal_(-torch.inf)
    target = (labels[:, None] == labels).double().fill_diagonal_(0)
    target /= target.sum()

    def divergence(matrix):
        plan = tc.ot.sinkhorn(
            matrix,
            0.5,
            n_iters=3000,
            tol=1e-12,
            row_marginal=target.sum(1),
            column_marginal=target.sum(0),
        ).dense()
        support = target > 0
        return float((target[support] * (target[support] / plan[support]).log()).sum())

    between = torch.where(cost.isfinite(), (1 - weight) * cost + weight * away, torch.inf)
    chord = (1 - weight) * divergence(cost) + weight * divergence(away)
    assert divergence(between) <= chord + 1e-9
