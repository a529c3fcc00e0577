"""Who is whose positive and negative, seen through losses of batches on which all plans are flat.

Where all embeddings are equal, P is uniform on the pairs or triplets that may have mass after one
sweep, and a loss is the logarithm of a ratio of counts.
"""

import math

import pytest
import torch

import tricouple as tc
from reference import admissible_triplets, pairs_of

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


def call(criterion, name):
    """A loss of equal embeddings, the labels, and the numbers of pairs and triplets with mass."""
    ids, ref_ids = (None if ids is None else torch.tensor(ids) for ids in LABELS[name])
    n, across = len(ids), {}
    m = n if ref_ids is None else len(ref_ids)
    if ref_ids is not None:
        across = {"ref_emb": torch.ones(m, 2, dtype=torch.float64), "ref_labels": ref_ids}
    loss = criterion(torch.ones(n, 2, dtype=torch.float64), ids, **across)
    allowed = (n * (n - 1), n * (n - 1) * (n - 2)) if ref_ids is None else (n * m, n * m * (m - 1))
    return float(loss), (ids, ref_ids), allowed


@pytest.mark.parametrize("name", LABELS)
def test_sizes_are_counts(name):
    none = tc.IOT(empty="zero")(torch.ones(3, 2), torch.arange(3))
    assert float(none) == 0.0
    loss, ids, (pairs, triplets) = call(tc.IOT(), name)
    assert loss == pytest.approx(math.log(pairs / len(pairs_of(*ids, same=True))))
    admissible = admissible_triplets(*ids)
    if not admissible:
        with pytest.raises(ValueError, match="negative pair"):
            call(tc.NegMMIOT(), name)
        return
    assert call(tc.NegMMIOT(), name)[0] == pytest.approx(math.log(triplets / len(admissible)))
    pull, push = ({(t[0], t[axis]) for t in admissible} for axis in (1, 2))
    projected = math.log(pairs / len(pull)) + math.log(pairs / len(push))
    assert call(tc.PushPull(), name)[0] == pytest.approx(projected)
    every = len(pairs_of(*ids, same=False))
    wanted = math.log(pairs / len(pull)) + math.log(pairs / every)
    assert call(tc.PushPull(negatives="all"), name)[0] == pytest.approx(wanted)


def test_large_batches_need_no_cubic_object():
    # 3000 samples: N³ booleans would be 27 GB; counts are immediate.
    labels = torch.arange(3000) % 100
    loss = tc.IOT(n_iters=1)(torch.ones(3000, 2), labels)
    assert float(loss) == pytest.approx(math.log(3000 * 2999 / (3000 * 29)), rel=1e-5)


def test_mined_pairs_never_become_triplets():
    # 20 anchors with 1000 positives and 1000 negatives each: 2e7 triplets of 4e4 pairs.
    anchors, near = torch.arange(20).repeat_interleave(1000), torch.arange(1000).repeat(20)
    rows = torch.ones(20, 2, dtype=torch.float64)
    indices = anchors, near, anchors, near + 1000
    loss = tc.NegMMIOT(n_iters=1)(rows, indices_tuple=indices, ref_emb=rows[:1].repeat(2000, 1))
    wanted = math.log(20 * 2000 * 1999 / (20 * 1000**2))
    assert float(loss) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("number", [3, 4], ids=["triplets", "pairs"])
def test_what_is_listed_twice_counts_once(number):
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, p, n = torch.tensor([[0, 0, 4, 2, 4], [1, 1, 3, 1, 2], [2, 3, 0, 0, 1]])
    once = (a, p, n) if number == 3 else (a, p, a, n)
    twice = tuple(index.repeat(2) for index in once)
    for criterion in (tc.NegMMIOT(), tc.PushPull(), tc.IOT(), tc.InfoNCE()):
        found, wanted = (float(criterion(rows, indices_tuple=x)) for x in (twice, once))
        assert found == pytest.approx(wanted, rel=1e-12)
