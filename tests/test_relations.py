"""Who is whose positive and negative, seen through losses of batches on which all plans are flat.

Where all embeddings are equal, P is uniform on the pairs or triplets that may have mass after one
sweep, and a loss is the logarithm of a ratio of counts.
"""

import math

import pytest
import torch

import tricouple as tc


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
