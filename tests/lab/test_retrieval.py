"""Recall, chance and ties; geometry of two modalities."""

import pytest
import torch
from torch.nn.functional import normalize

from tricouple_lab.evaluation import retrieval
from tricouple_lab.evaluation.retrieval import RANKS, both_ways, in_batches, modalities, retrieve


def test_recall_equals_a_loop_over_sorted_similarities():
    generator = torch.Generator().manual_seed(0)
    queries, items = (torch.randn(n, 4, generator=generator) for n in (13, 31))
    query_ids = torch.arange(13)
    item_ids = torch.cat([query_ids, torch.randint(13, (18,), generator=generator)])
    found = retrieve(queries, items, query_ids, item_ids).recall
    similarity = normalize(queries, dim=1) @ normalize(items, dim=1).T
    for rank, recall in zip(RANKS, found.tolist(), strict=True):
        first = similarity.argsort(1, descending=True)[:, :rank]
        hits = [(item_ids[first[query]] == query).any().item() for query in range(13)]
        assert recall == pytest.approx(sum(hits) / 13)


def test_queries_in_parts_give_the_same(monkeypatch):
    z, ids = torch.randn(20, 3), torch.arange(20)
    whole = retrieve(z, z.roll(1, 1), ids, ids)
    monkeypatch.setattr(retrieval, "AT_A_TIME", 7)
    assert torch.equal(retrieve(z, z.roll(1, 1), ids, ids).recall, whole.recall)


@pytest.mark.parametrize("captions", [1, 3])
def test_collapsed_embeddings_have_the_recall_of_chance(captions):
    n = 12
    index = torch.arange(n).repeat_interleave(captions)
    metrics, chance = both_ways(torch.ones(n, 4), torch.ones(len(index), 4), index, ("a", "b"))
    assert metrics == pytest.approx(chance)
    assert metrics["recall/b_to_a@5"] == pytest.approx(5 / n)


def test_chance_equals_random_orders():
    index = torch.arange(6).repeat_interleave(2)
    expected = both_ways(torch.ones(6, 2), torch.ones(12, 2), index, ("a", "b"))[1]
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(4000):
        hits += bool((torch.randperm(12, generator=generator)[:5] < 2).any())
    assert expected["recall/a_to_b@5"] == pytest.approx(hits / 4000, abs=0.03)


def test_half_of_the_ties_count_half():
    queries = torch.tensor([[1.0, 0.0]])
    items = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = retrieve(queries, items, torch.tensor([0]), torch.tensor([0, 1, 2]))
    assert found.recall.tolist() == pytest.approx([0.5, 1.0, 1.0])


def test_recall_in_batches_uses_every_common_caption_and_is_higher():
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(40, 6, generator=generator)
    index = torch.arange(40).repeat_interleave(3)
    texts = images[index] + torch.randn(120, 6, generator=generator)
    batches, chance = in_batches(images, texts, index, batch_size=8)
    whole, _ = both_ways(images, texts, index, ("image", "text"))
    assert chance["recall_in_batch/image_to_text@1"] == pytest.approx(1 / 8)
    assert batches["recall_in_batch/mean@1"] > whole["recall/mean@1"]
    assert in_batches(images, images[index], index, 8)[0]["recall_in_batch/mean@1"] == 1.0


def test_geometry_of_two_orthogonal_modalities():
    images, texts = torch.tensor([[1.0, 0.0, 0.0]] * 3), torch.tensor([[0.0, 2.0, 0.0]] * 3)
    found = modalities(images, texts, torch.arange(3))
    assert found["geometry/modality_gap"] == pytest.approx(2**0.5)
    assert found["geometry/alignment"] == pytest.approx(2.0)
    assert found["geometry/image_uniformity"] == pytest.approx(0.0, abs=1e-5)
