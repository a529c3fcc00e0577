"""What representations are worth: against scikit-learn, by hand, and in degenerate cases."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.functional import normalize

import tricouple as tc
from image_files import random_pixels
from tricouple_lab.data.sources import ImageSplit
from tricouple_lab.evaluation import probe

CLASSIFIERS = {
    "knn": lambda *rows: probe.knn_predictions(*rows, 5),
    "linear": lambda *rows: probe.linear_predictions(*rows, 1e-3),
    "nearest_mean": lambda *rows: probe.nearest_mean(*rows)[0],
}


def clusters(n: int = 90, seed: int = 0, spread: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Three noisy directions; the labels are not 0, 1, 2."""
    generator = np.random.default_rng(seed)
    labels = np.array([3, 7, 20])[np.arange(n) % 3]
    means = np.eye(3, 8, dtype=np.float32)[np.arange(n) % 3]
    noise = spread * generator.standard_normal((n, 8), dtype=np.float32)
    return (means + noise) * generator.uniform(1, 5, (n, 1)).astype(np.float32), labels


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_read_what_is_there_and_nothing_from_noise(name):
    bank, labels = clusters()
    queries, truth = clusters(300, seed=1)
    found = CLASSIFIERS[name](bank, labels, queries)
    assert set(found) <= {3, 7, 20}
    assert (found == truth).mean() > 0.85
    noise = np.random.default_rng(2).standard_normal((300, 8)).astype(np.float32)
    blind = CLASSIFIERS[name](noise[:90], labels, noise)[90:]
    assert abs((blind == truth[90:]).mean() - 1 / 3) < 0.12


def test_knn_votes_by_similarity_as_a_loop_does():
    (bank, labels), (queries, _) = clusters(), clusters(50, seed=1)
    cosines = normalize(torch.from_numpy(queries)) @ normalize(torch.from_numpy(bank)).T
    wanted = []
    for row in cosines.numpy():
        votes = dict.fromkeys(labels, 0.0)
        for place in np.argsort(-row)[:20]:
            votes[labels[place]] += np.exp(row[place] / probe.TEMPERATURE)
        wanted.append(max(votes, key=votes.get))
    assert probe.knn_predictions(bank, labels, queries, 20).tolist() == wanted


def test_more_neighbours_than_samples_and_many_queries_are_fine(monkeypatch):
    (bank, labels), (queries, _) = clusters(9), clusters(100, seed=1)
    whole = probe.knn_predictions(bank, labels, queries, 1000)
    rows = probe.nearest_rows(bank, queries, 5)
    monkeypatch.setattr(probe, "_AT_A_TIME", 7)
    assert all(map(np.array_equal, probe.nearest_rows(bank, queries, 5), rows))
    assert set(whole) <= set(labels)


def test_nearest_mean_is_the_nearest_unit_mean_of_unit_rows():
    (bank, labels), (queries, _) = clusters(spread=0.8), clusters(200, seed=1, spread=0.8)
    unit = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    means = np.stack([unit[labels == label].mean(0) for label in (3, 7, 20)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    queries_unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    distances = np.linalg.norm(queries_unit[:, None] - means, axis=2)
    found, cosines = probe.nearest_mean(bank, labels, queries)
    assert np.array_equal(found, np.array([3, 7, 20])[distances.argmin(axis=1)])
    np.testing.assert_allclose(cosines, 1 - distances.min(axis=1) ** 2 / 2, atol=1e-5)


def test_the_linear_probe_is_logistic_regression_on_standardised_inputs():
    (bank, labels), (queries, _) = clusters(spread=0.8), clusters(300, seed=1, spread=0.8)
    found = []
    for decay in (1e-2, 10.0):
        reference = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (decay * len(bank))))
        wanted = reference.fit(bank, labels).predict(queries)
        found.append(probe.linear_predictions(bank, labels, queries, decay))
        assert (found[-1] == wanted).mean() > 0.99
    assert not np.array_equal(*found)


def test_one_class_and_constant_rows_are_no_failure():
    bank = np.ones((4, 3), np.float32)
    for classify in CLASSIFIERS.values():
        assert classify(bank, np.full(4, 5), bank[:2]).tolist() == [5, 5]
        assert len(classify(np.zeros((4, 3), np.float32), np.array([0, 0, 1, 1]), bank)) == 4


def test_chance_is_the_share_of_the_most_frequent_training_class():
    assert probe.chance(np.array([4, 4, 9]), np.array([4, 9, 9, 9])) == 0.25
    assert probe.chance(np.array([4]), np.array([])) == 0


def test_geometry_is_that_of_the_library():
    rows, labels = clusters()
    found, spectrum = probe.geometry(rows, labels)
    wanted = tc.geometry.neural_collapse(torch.from_numpy(rows), torch.from_numpy(labels))
    assert found["geometry/nc1"] == pytest.approx(wanted.nc1)
    assert found["geometry/nc2_std"] == pytest.approx(wanted.nc2_std)
    assert spectrum.shape == (2,)
    rank = tc.geometry.effective_rank(torch.from_numpy(rows))
    assert found["geometry/effective_rank"] == pytest.approx(rank)


def test_geometry_without_labels_or_with_one_class_is_the_rank_alone(monkeypatch):
    rows, labels = clusters()
    for given in (None, np.zeros(len(rows), dtype=np.int64)):
        found, spectrum = probe.geometry(rows, given)
        assert (list(found), spectrum.shape) == (["geometry/effective_rank"], (0,))
    assert probe.geometry(rows[:1], None)[0] == {}
    monkeypatch.setattr(probe, "MOST", 30)
    assert probe.geometry(rows, labels)[0]["geometry/nc2_std"] < 1


class Means(nn.Module):
    """Features are the mean colours."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2, bias=False)

    def features(self, images):
        return images.float().mean((2, 3))


def pictures(n: int, side: int = 8, seed: int = 0) -> ImageSplit:
    pixels = torch.from_numpy(random_pixels(n, 3, side, side, seed=seed))
    return ImageSplit.whole(pixels, torch.arange(n) % 2)


def test_both_representations_come_in_one_pass_in_the_order_of_the_split():
    split, encoder = pictures(600), Means()
    part = split.rows(np.arange(599, -1, -1))
    found = probe.encoded(encoder, part)
    wanted = split.pixels.float().mean((2, 3)).flip(0)
    assert np.array_equal(found["features"], wanted.numpy())
    torch.testing.assert_close(torch.from_numpy(found["embedding"]), encoder.head(wanted).detach())


def test_examples_are_images_with_their_nearest_training_images():
    train, test, encoder = pictures(20, side=80), pictures(9, seed=1), Means()
    bank, queries = (probe.encoded(encoder, split)["features"] for split in (train, test))
    some = np.array([0, 3, 4, 7])
    shown, answers = probe.thumbnails(test, some), partial(probe.thumbnails, train)
    ids = test.labels.numpy()[some], train.labels.numpy()
    found = probe.examples("examples", queries[some], bank, shown, answers, *ids)
    shapes = {name: value.shape for name, value in found.items()}
    assert shapes == {
        "examples_queries": (4, 8, 8, 3),
        "examples_answers": (4, 5, 64, 64, 3),
        "examples_scores": (4, 5),
        "examples_right": (4, 5),
    }
    assert found["examples_answers"].dtype == np.uint8
    assert (np.diff(found["examples_scores"], axis=1) <= 0).all()
    rows = np.arange(20)
    itself = probe.examples("own", bank, bank, rows, lambda nearest: nearest, rows, rows)
    assert np.array_equal(itself["own_answers"][:, 0], rows)
    assert itself["own_scores"][:, 0] == pytest.approx(1)
    assert itself["own_right"].sum(axis=1).tolist() == [1] * 20
    unknown = probe.examples("own", bank, bank, rows, lambda nearest: nearest, rows - 1, rows)
    assert "own_right" not in unknown


def test_features_show_the_images_that_they_were_computed_from():
    images = pictures(5)
    features = ImageSplit(torch.zeros(5, 2), torch.arange(5), images.labels, images=images)
    wanted = images.pixels[[3]].permute(0, 2, 3, 1).numpy()
    assert np.array_equal(probe.thumbnails(features.rows(np.array([3])), np.array([0])), wanted)
