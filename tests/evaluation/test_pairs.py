"""Retrieval, zero-shot classification and the geometry of two modalities."""

import pytest
import torch
from torch.nn.functional import normalize

from tricouple_lab.data.pairs import tokenise
from tricouple_lab.evaluation.features import embed_texts, measure_modalities
from tricouple_lab.evaluation.retrieval import (
    TEMPLATES,
    best_rank,
    class_embeddings,
    classify,
    in_batches,
    whole_split,
)
from tricouple_lab.models.encoders import build_clip


def draw(n=40, d=6, noise=1.0, seed=0):
    """Images with 1 to 4 captions each."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, d, generator=generator)
    counts = torch.randint(1, 5, (n,), generator=generator)
    owners = torch.repeat_interleave(torch.arange(n), counts)
    texts = images[owners] + noise * torch.randn(len(owners), d, generator=generator)
    return images, texts, owners


def looped_recall(similarity, right, k):
    """By sorting, as a reader would."""
    hits = 0
    for row, good in zip(similarity, right, strict=True):
        first = row.argsort(descending=True)[:k]
        hits += bool(good[first].any())
    return hits / len(similarity)


def test_recall_on_the_whole_split_counts_any_caption_of_the_image():
    images, texts, owners = draw()
    found = whole_split(images, texts, owners)
    z, w = (normalize(part, dim=1) for part in (images, texts))
    own = owners == torch.arange(40)[:, None]
    for k in (1, 5, 10):
        assert getattr(found.image_to_text, f"at{k}") == looped_recall(z @ w.T, own, k)
        assert getattr(found.text_to_image, f"at{k}") == looped_recall(w @ z.T, own.T, k)
    assert found.candidates == (len(texts), 40)
    assert 0 < found.text_to_image.at1 < found.text_to_image.at5 < 1


def test_chance_is_what_random_embeddings_reach():
    owners = torch.arange(30).repeat_interleave(3)
    found = []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        images, texts = (torch.randn(n, 8, generator=generator) for n in (30, 90))
        found.append(whole_split(images, texts, owners))
    for direction, chance in (("image_to_text", "chance"), ("text_to_image", "chance_text")):
        for k in ("at1", "at5", "at10"):
            mean = sum(getattr(getattr(one, direction), k) for one in found) / len(found)
            assert mean == pytest.approx(getattr(getattr(found[0], chance), k), abs=0.03)


def test_collapsed_embeddings_find_nothing():
    owners = torch.arange(6)
    found = whole_split(torch.ones(6, 3), torch.ones(6, 3), owners)
    assert found.image_to_text.at5 == found.text_to_image.at5 == 0
    assert classify(torch.ones(6, 3), torch.ones(4, 3), owners % 4).top1 == 0
    assert best_rank(torch.tensor([[1.0, 1.0]]), torch.tensor([[True, False]])).tolist() == [1]


def test_batches_have_the_training_size_and_are_easier_than_the_whole_split():
    images, texts, owners = draw(n=64, noise=1.5)
    batches, whole = in_batches(images, texts, owners, 16), whole_split(images, texts, owners)
    assert batches.candidates == (16, 16)
    assert batches.chance.at1 == batches.chance_text.at1 == pytest.approx(1 / 16)
    assert batches.chance.at10 == pytest.approx(10 / 16)
    assert batches.text_to_image.at1 > whole.text_to_image.at1
    assert in_batches(images, texts, owners, 16) == batches
    assert in_batches(images, texts, owners, 1000).candidates == (64, 64)
    # One batch of everything and one caption each: the same as the whole split.
    first = torch.searchsorted(owners, torch.arange(64))
    everything = in_batches(images, texts[first], torch.arange(64), 64)
    assert (
        everything.image_to_text
        == whole_split(images, texts[first], torch.arange(64)).image_to_text
    )


def test_class_embeddings_are_the_means_of_unit_sentences():
    vision = {"layers": 1, "width": 64, "patch_size": 8, "image_size": 16}
    torch.manual_seed(0)
    model = build_clip(4, vision, {"context_length": 12, "width": 64, "layers": 1}).train()
    found = class_embeddings(model, ["cat", "aquarium_fish"], 12)
    assert model.training
    for name, vector in zip(["cat", "aquarium fish"], found, strict=True):
        texts = tokenise([text.format(name) for text in TEMPLATES], 12).ids
        sentences = normalize(embed_texts(model, texts), dim=1)
        torch.testing.assert_close(vector, normalize(sentences.mean(0), dim=0))


def test_zero_shot_accuracy_is_that_of_the_nearest_class():
    generator = torch.Generator().manual_seed(0)
    classes = normalize(torch.randn(12, 5, generator=generator), dim=1)
    labels = torch.randint(12, (300,), generator=generator)
    images = classes[labels] + 0.5 * torch.randn(300, 5, generator=generator)
    order = (normalize(images, dim=1) @ classes.T).argsort(1, descending=True)
    found = classify(images, classes, labels)
    assert found.top1 == pytest.approx(float((order[:, 0] == labels).double().mean()))
    assert found.top5 == pytest.approx(
        float((order[:, :5] == labels[:, None]).any(1).double().mean())
    )
    assert (found.chance, found.n_images, found.n_classes) == (1 / 12, 300, 12)


def test_the_gap_and_the_cosines_of_two_modalities():
    images, texts, owners = draw()
    z, w = (normalize(part, dim=1) for part in (images, texts))
    found = measure_modalities(images, texts, owners)
    cosines = z @ w.T
    own = owners == torch.arange(40)[:, None]
    assert found.matched == pytest.approx(float(cosines[own].mean()), abs=1e-6)
    assert found.unmatched == pytest.approx(float(cosines[~own].mean()), abs=1e-6)
    assert found.alignment == pytest.approx(float((z[owners] - w).square().sum(1).mean()), abs=1e-5)
    assert found.gap == pytest.approx(float((z.mean(0) - w.mean(0)).norm()), abs=1e-6)
    assert measure_modalities(images, -images, torch.arange(40)).alignment == pytest.approx(4)
