"""Counts and target marginals of a relation against the sets they count, listed one by one."""

import math

import pytest
import torch

from reference import admissible_triplets, pairs_of, relative_error, uniform_on, with_gradients
from tricouple.relations import Identities, ListedTriplets, MinedPairs

LABELS = {
    "balanced": ([0, 0, 1, 1, 2, 2], None),
    "unbalanced": ([5, 5, 5, 5, -1, -1, 8], None),
    "dominating": ([0, 0, 0, 0, 0, 1], None),
    "one class": ([3, 3, 3], None),
    "singletons": ([0, 1, 2, 2], None),
    "across": ([0, 1, 2], [0, 1, 2]),
    "captions": ([0, 1, 2], [0, 0, 1, 2, 2, 2]),
    "unmatched": ([0, 1, 9], [0, 0, 1, 4]),
    "all alike across": ([1, 1], [1, 1, 1]),
}


def relation_of(name):
    """The relation, its triplets and its shape."""
    anchors, references = (None if ids is None else torch.tensor(ids) for ids in LABELS[name])
    triplets = admissible_triplets(anchors, references)
    if references is None:
        return Identities.within_one_set(anchors), triplets, (len(anchors), len(anchors))
    relation = Identities(anchors, references, within=False)
    return relation, triplets, (len(anchors), len(references))


def listed_relation(repeat=1):
    triplets = [(0, 1, 2), (0, 1, 3), (4, 3, 0), (2, 1, 0), (4, 2, 1)]
    columns = (torch.tensor(column) for column in zip(*(triplets * repeat), strict=True))
    return ListedTriplets.distinct(*columns, shape=(5, 4)), triplets, (5, 4)


def mined_relation(repeat=1):
    """Pairs of four anchors: two have both kinds, one has positives alone, one negatives alone."""
    near = [(0, 1), (0, 2), (2, 1), (3, 0)] * repeat
    far = [(0, 0), (0, 3), (2, 3), (2, 0), (2, 2), (4, 1)] * repeat
    columns = (torch.tensor(column) for pairs in (near, far) for column in zip(*pairs, strict=True))
    triplets = [(i, j, k) for i, j in set(near) for a, k in set(far) if a == i]
    return MinedPairs.distinct(*columns, shape=(5, 4)), triplets, (5, 4)


MADE = {
    "listed": listed_relation,
    "listed twice": lambda: listed_relation(2),
    "mined": mined_relation,
    "mined twice": lambda: mined_relation(2),
}
WITH_TRIPLETS = [*(name for name in LABELS if relation_of(name)[1]), *MADE]


def example(name):
    return MADE[name]() if name in MADE else relation_of(name)


def assert_target(relation, target, dense):
    """A sparse pair target is the dense one: marginals, support, inner products."""
    rows, columns = target.marginals
    assert relative_error(rows, dense.sum(1)) <= 1e-14
    assert relative_error(columns, dense.sum(0)) <= 1e-14
    assert ((rows == 0) == (dense.sum(1) == 0)).all()  # exactly zero, not a rounding error
    assert ((columns == 0) == (dense.sum(0) == 0)).all()
    assert torch.equal(target.mask(), dense > 0)
    assert relative_error(target.dense(), dense) <= 1e-14
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(dense.shape[0], 3, generator=generator, dtype=torch.float64)
    right = torch.randn(dense.shape[1], 3, generator=generator, dtype=torch.float64)
    if getattr(relation, "within", False):
        right = left
    wanted = (dense * (left @ right.T)).sum()
    assert abs(float(target.inner(left, right) - wanted)) <= 1e-13


@pytest.mark.parametrize("name", list(LABELS))
def test_sizes_are_counts(name):
    relation, triplets, _ = relation_of(name)
    ids = (None if ids is None else torch.tensor(ids) for ids in LABELS[name])
    assert relation.n_triplets == len(triplets)
    assert relation.n_positives == len(pairs_of(*ids, same=True))


@pytest.mark.parametrize("name", WITH_TRIPLETS)
def test_triplet_target_has_the_marginals_of_the_dense_target(name):
    relation, triplets, (n, m) = example(name)
    dense = uniform_on(triplets, (n, m, m))
    target = relation.triplets()
    assert target.entropy == pytest.approx(math.log(len(triplets)))
    for axis, marginal in enumerate(target.marginals):
        others = tuple({0, 1, 2} - {axis})
        assert relative_error(marginal, dense.sum(others)) <= 1e-14
    assert_target(relation, target.positives, dense.sum(2))
    assert_target(relation, target.negatives, dense.sum(1))


@pytest.mark.parametrize("name", WITH_TRIPLETS)
def test_projections_are_uniform_on_their_pairs(name):
    relation, triplets, shape = example(name)
    pull, push = {(i, j) for i, j, _ in triplets}, {(i, k) for i, _, k in triplets}
    attracting, repelling = relation.attracting(), relation.repelling()
    sizes = math.log(len(pull)), math.log(len(push))
    assert (attracting.entropy, repelling.entropy) == pytest.approx(sizes)
    assert_target(relation, attracting.pairs, uniform_on(list(pull), shape))
    assert_target(relation, repelling.pairs, uniform_on(list(push), shape))


@pytest.mark.parametrize(
    ("side", "name"),
    [("positives", name) for name in ("balanced", "one class", "captions", "unmatched")]
    + [("negatives", name) for name in ("balanced", "singletons", "captions", "unmatched")],
)
def test_positives_and_negatives_do_not_need_each_other(side, name):
    relation, _, shape = relation_of(name)
    ids = (None if ids is None else torch.tensor(ids) for ids in LABELS[name])
    pairs = pairs_of(*ids, same=side == "positives")
    target = getattr(relation, side)()
    assert target.entropy == pytest.approx(math.log(len(pairs)))
    assert_target(relation, target.pairs, uniform_on(pairs, shape))


def test_mined_positives_and_negatives_do_not_need_each_other():
    relation, triplets, shape = mined_relation(repeat=2)
    assert relation.n_triplets == len(triplets) == 2 * 2 + 1 * 3
    assert relation.n_positives == 4
    assert_target(
        relation, relation.positives().pairs, uniform_on([(0, 1), (0, 2), (2, 1), (3, 0)], shape)
    )
    far = [(0, 0), (0, 3), (2, 3), (2, 0), (2, 2), (4, 1)]
    assert_target(relation, relation.negatives().pairs, uniform_on(far, shape))
    per_anchor = torch.zeros(shape, dtype=torch.float64)
    per_anchor[[0, 0, 2, 3], [1, 2, 1, 0]] = torch.tensor([0.5, 0.5, 1, 1]).double() / 3
    assert_target(relation, relation.per_anchor(), per_anchor)


def test_mined_pairs_never_become_triplets():
    # 100 anchors with 2000 positives and 2000 negatives each: 4e8 triplets of 4e5 pairs.
    anchors = torch.arange(100).repeat_interleave(2000)
    near = torch.arange(2000).repeat(100)
    relation = MinedPairs.distinct(anchors, near, anchors, near + 2000, (100, 4000))
    assert relation.n_triplets == 100 * 2000**2
    assert len(relation.triplets().contrast.weights) == 2 * 100 * 2000


def test_listed_triplets_are_a_set():
    relation, triplets, _ = listed_relation(repeat=3)
    assert relation.n_triplets == len(triplets)
    assert relation.n_positives == len({(i, j) for i, j, _ in triplets})
    found = zip(
        *(index.tolist() for index in (
            relation.anchors, relation.positive_indices, relation.negative_indices
        )), strict=True,
    )  # fmt: skip
    assert set(found) == set(triplets)


@pytest.mark.parametrize("name", WITH_TRIPLETS)
def test_inner_product_is_differentiable(name):
    relation, triplets, (n, m) = example(name)
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(n, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    right = torch.randn(m, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    if getattr(relation, "within", False):
        right = left
    dense, target = uniform_on(triplets, (n, m, m)), relation.triplets()
    pairs = [
        (target.positives, dense.sum(2)),
        (target.negatives, dense.sum(1)),
        (target.contrast, dense.sum(2) - dense.sum(1)),
        (relation.attracting().pairs, uniform_on([(i, j) for i, j, _ in triplets], (n, m))),
        (relation.repelling().pairs, uniform_on([(i, k) for i, _, k in triplets], (n, m))),
    ]
    leaves = [left] if right is left else [left, right]
    for ours, wanted in pairs:
        value, gradient = with_gradients(ours.inner(left, right), leaves)
        dense_value, dense_gradient = with_gradients((wanted * (left @ right.T)).sum(), leaves)
        assert abs(float(value - dense_value)) <= 1e-13
        assert relative_error(gradient, dense_gradient) <= 1e-13


def test_large_batches_need_no_cubic_object():
    # 20 000 samples: N² booleans would be 400 MB, N³ out of reach; counts are immediate.
    labels = torch.arange(20_000) % 100
    relation = Identities.within_one_set(labels)
    target = relation.triplets()
    assert relation.n_triplets == 20_000 * 199 * 19_800
    for marginal in target.marginals:
        assert relative_error(marginal, torch.full((20_000,), 1 / 20_000)) <= 1e-6
    rows = torch.ones(20_000, 2, dtype=torch.float64) / 2**0.5
    assert float(target.negatives.inner(rows, rows)) == pytest.approx(1, abs=1e-12)
