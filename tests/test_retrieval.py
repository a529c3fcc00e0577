"""Retrieval without hubs: the potentials are those of the plan, streamed, and they help."""

import math
import runpy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from conftest import draw
from reference import Largest
from tricouple import retrieval

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples/retrieval.py"))
BANK, VALIDATION, QUERIES, GALLERY = EXAMPLE["made"]()
IDS = torch.arange(len(GALLERY))


def cosine(one, other):
    return normalize(one.double()) @ normalize(other.double()).T


def recall(scores):
    return float((scores.argmax(1) == IDS).double().mean())


@pytest.mark.parametrize("c", [5.0, 20.0, 200.0])
@pytest.mark.parametrize("n_iters", [1, 3, 50])
def test_scores_are_those_of_the_dense_plan(n_iters, c):
    z, x, queries = draw(40, 0), draw(9, 1), draw(4, 2)
    s, f = c * cosine(z, x), torch.zeros(40, dtype=torch.float64)
    for _ in range(n_iters):
        g = -math.log(9) - torch.logsumexp(s + f[:, None], 0)
        f = -math.log(40) - torch.logsumexp(s + g, 1)
    if n_iters == 1:  # the inverted softmax
        g = -torch.logsumexp(c * cosine(z, x), 0)
    scores = retrieval.debias(z, x, c, n_iters)
    assert torch.allclose(scores.bias, (g - g.mean()) / c, atol=1e-13)
    wanted = cosine(queries, x) + scores.bias
    assert torch.allclose(scores(queries), wanted, atol=1e-13)
    for found, best in zip(scores.topk(queries, 3), wanted.topk(3), strict=True):
        assert torch.allclose(found, best)
    both = retrieval.sinkhorn_scores(z, x, c, n_iters)
    assert torch.allclose(both, (s + f[:, None] + g - g.mean()) / c, atol=1e-13)


def test_hubs_are_removed_and_queries_find_their_items():
    """As much as nnn-retrieval: score − α · mean of the item's k highest cosines with the bank."""
    plain, c = cosine(QUERIES, GALLERY), 20.0
    highest = cosine(BANK, GALLERY).topk(64, 0).values.mean(0)
    nearest = max(recall(plain - alpha * highest) for alpha in (0.25, 0.5, 0.75, 1.0))
    bank = recall(retrieval.debias(BANK, GALLERY, c)(QUERIES))
    assert bank > recall(plain) + 0.04
    assert bank > nearest - 0.02
    assert recall(retrieval.sinkhorn_scores(QUERIES, GALLERY, c)) > bank + 0.01


def test_a_sharpness_is_chosen_where_it_helps_and_none_where_it_does_not():
    pairs = VALIDATION, GALLERY, IDS, IDS.tolist()
    chosen = retrieval.choose_sharpness(*pairs, BANK)
    counts = {c: recall(retrieval.debias(BANK, GALLERY, c)(VALIDATION)) for c in (5, 10, 20, 40)}
    assert chosen == max(counts, key=counts.get)
    assert retrieval.choose_sharpness(*pairs) in (20.0, 40.0)  # on the queries themselves
    assert retrieval.choose_sharpness(*pairs, -BANK) is None  # of another domain
    assert retrieval.choose_sharpness(*pairs, BANK, grid=[0.01]) is None
    assert retrieval.choose_sharpness(GALLERY, GALLERY, IDS, IDS, BANK) is None  # right already


def test_no_matrix_of_all_pairs_is_made():
    bank, gallery, queries = draw(4000, 0).float(), draw(3000, 1).float(), draw(5000, 2).float()
    with Largest() as largest:
        retrieval.debias(bank, gallery, n_iters=2).topk(queries, 5)
        retrieval.choose_sharpness(queries, gallery, [0] * 5000, [0] * 3000, bank, [9.0], 2)
    assert 0 < largest.entries <= 2**22


PAIRS = {"queries": QUERIES, "gallery": GALLERY, "query_ids": IDS, "gallery_ids": IDS}
BAD = {
    "bank has 5 dimensions, the gallery 32": lambda: retrieval.debias(BANK[:, :5], GALLERY),
    "bank must be a non-empty matrix": lambda: retrieval.debias(BANK[:0], GALLERY),
    "bank must not hold zero vectors": lambda: retrieval.debias(0 * BANK, GALLERY),
    "sharpness must be finite and > 0, got 0": lambda: retrieval.debias(BANK, GALLERY, 0),
    "queries has 32 .* gallery 3": lambda: retrieval.sinkhorn_scores(QUERIES, GALLERY[:, :3]),
    "no validation pair": lambda: retrieval.choose_sharpness(**PAIRS | {"query_ids": IDS + 500}),
    "query_ids must hold": lambda: retrieval.choose_sharpness(**PAIRS | {"query_ids": IDS[:9]}),
    "grid must hold": lambda: retrieval.choose_sharpness(**PAIRS, grid=[]),
    "bank has 31 dim": lambda: retrieval.choose_sharpness(**PAIRS, bank=BANK[:, 1:]),
}


@pytest.mark.parametrize("found", BAD)
def test_bad_input_is_named(found):
    with pytest.raises(ValueError, match=found):
        BAD[found]()
