"""The dense reference is the paper's algorithm: loops and finite differences say the same."""

from dataclasses import replace

import pytest
import torch

import tricouple as tc
from batches import batch
from conftest import SETTINGS
from reference import (
    admissible_triplets,
    class_pairs,
    class_target,
    cosine,
    divergence,
    pair_cost,
    pairs_of,
    positive_pairs,
    triplet_cost,
    uniform_on,
    with_gradients,
)

dense = tc.ot.dense
CLASSES = [name for name, there in SETTINGS.items() if there.triplets is None]


def of(function, there, **options):
    arguments = there.embeddings, there.labels, there.ref_emb, there.ref_labels
    return function(*arguments, triplets=there.triplets, **options)


def triplets_of(there):
    if there.triplets is None:
        return admissible_triplets(there.labels, there.ref_labels)
    return list(zip(*(index.tolist() for index in there.triplets), strict=True))


def neg_mmiot(there, marginals, temperature, epsilon):
    """Eq. neg_mmot_final."""
    cost = triplet_cost(cosine(*there.leaves), temperature, there.ref_emb is None)
    target = uniform_on(triplets_of(there), tuple(cost.shape))
    if marginals == "classes":
        target = class_target(there.labels, there.ref_labels)
    return divergence(cost, epsilon, target, marginals)


def push_pull(there, marginals, temperature, epsilon_pos, epsilon_neg, negatives="projected"):
    """Eq. iot_pushpull_final: A⁻ is the projection of A (Algorithm 1), or all unequal pairs."""
    within, contrast = there.ref_emb is None, -cosine(*there.leaves) / temperature
    shape, triplets = tuple(contrast.shape), triplets_of(there)
    pull, push = (uniform_on([(t[0], t[axis]) for t in triplets], shape) for axis in (1, 2))
    if negatives == "all" and there.triplets is None:
        push = uniform_on(pairs_of(there.labels, there.ref_labels, same=False), shape)
    if marginals == "classes":
        target = class_target(there.labels, there.ref_labels)
        pull, push = target.sum(2), target.sum(1)
    attracting = divergence(pair_cost(contrast, within), epsilon_pos, pull, marginals)
    return attracting + divergence(pair_cost(-contrast, within), epsilon_neg, push, marginals)


def iot(there, marginals, epsilon):
    """Eq. clot_final."""
    cost = pair_cost(1 - cosine(*there.leaves), there.ref_emb is None)
    pairs = positive_pairs(there.labels, there.ref_labels, there.triplets)
    target = uniform_on(pairs, tuple(cost.shape))
    if marginals == "classes":
        target = class_pairs(there.labels, there.ref_labels)
    return divergence(cost, epsilon, target, marginals)


LOOPS = {
    "neg_mmiot": (neg_mmiot, dense.neg_mmiot, {"temperature": 0.1, "epsilon": 0.1}),
    "push_pull": (
        push_pull,
        dense.push_pull,
        {"temperature": 0.1, "epsilon_pos": 0.1, "epsilon_neg": 0.2},
    ),
    "iot": (iot, dense.iot, {"epsilon": 0.01}),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", LOOPS)
def test_masks_say_what_loops_over_triplets_say(name, setting):
    there = SETTINGS[setting].to(torch.float64)
    loops, masks, scale = LOOPS[name]
    options = [
        {"marginals": marginals} | more
        for marginals in ("uniform", "target", *(["classes"] if setting in CLASSES else []))
        for more in ([{}, {"negatives": "all"}] if name == "push_pull" else [{}])
        if (marginals, more.get("negatives")) != ("classes", "all")  # which the loops do not know
    ]
    for chosen in options:
        wanted = with_gradients(loops(there, **scale, **chosen), there.leaves)
        found = with_gradients(of(masks, there, **scale, **chosen), there.leaves)
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["singletons", "two sets", "some in references"])
def test_the_gradient_is_the_slope_along_a_random_direction(kind):
    there = batch(kind, 7).to(torch.float64)
    generator = torch.Generator().manual_seed(0)
    way = torch.randn(there.embeddings.shape, generator=generator, dtype=torch.float64)

    def value(z):
        options = {"temperature": 0.5, "epsilon": 0.3, "marginals": "target"}
        return replace(there, embeddings=z).dense(dense.neg_mmiot, **options)

    (gradient,) = torch.autograd.grad(value(there.embeddings), there.embeddings)
    ends = [value(there.embeddings.detach() + step * way).detach() for step in (1e-5, -1e-5)]
    slope = (ends[0] - ends[1]) / 2e-5
    torch.testing.assert_close((gradient * way).sum(), slope, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("anti", [False, True])
def test_potentials_are_those_of_matrix_scaling(anti):
    generator = torch.Generator().manual_seed(1)
    cost = torch.rand(4, 5, generator=generator, dtype=torch.float64)
    cost[0, 1] = cost[2, 3] = torch.inf
    rows = torch.tensor([0.5, 0.2, 0.0, 0.3], dtype=torch.float64)
    columns = torch.full((5,), 0.2, dtype=torch.float64)
    signed = torch.where(cost == torch.inf, cost, -cost) if anti else cost
    kernel, v = (-signed / 0.1).exp(), torch.ones(5, dtype=torch.float64)
    for _ in range(7):
        u = rows / (kernel @ v)
        v = columns / (kernel.T @ u)
    f, g = dense.sinkhorn(cost, 0.1, (rows, columns), 7, anti=anti)
    plan = ((f[:, None] + g - signed) / 0.1).exp()
    torch.testing.assert_close(plan, u[:, None] * kernel * v, rtol=1e-12, atol=1e-15)


def test_three_axes_are_scaled_in_turn():
    generator = torch.Generator().manual_seed(2)
    cost = torch.rand(3, 4, 4, generator=generator, dtype=torch.float64)
    cost[1, 2, 0] = torch.inf
    p, q, r = masses = [torch.rand(n, generator=generator).double().softmax(0) for n in (3, 4, 4)]
    kernel = (-cost / 0.2).exp()
    b = c = torch.ones(4, dtype=torch.float64)
    for _ in range(5):
        a = p / torch.einsum("ijk,j,k->i", kernel, b, c)
        b = q / torch.einsum("ijk,i,k->j", kernel, a, c)
        c = r / torch.einsum("ijk,i,j->k", kernel, a, b)
    f, g, h = dense.sinkhorn(cost, 0.2, masses, 5)
    plan = ((f[:, None, None] + g[:, None] + h - cost) / 0.2).exp()
    wanted = torch.einsum("ijk,i,j,k->ijk", kernel, a, b, c)
    torch.testing.assert_close(plan, wanted, rtol=1e-12, atol=1e-15)
