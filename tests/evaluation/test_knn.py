"""k-NN and nearest means by cosine similarity, detection; against scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.neighbors import KNeighborsClassifier

from tricouple_lab.evaluation import probe as knn
from tricouple_lab.evaluation.probe import detect, knn_accuracy, knn_predictions, nearest_mean


def draw(n: int, d: int = 6, n_classes: int = 5, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(n_classes, (n,), generator=generator)
    means = torch.randn(n_classes, d, generator=torch.Generator().manual_seed(99))
    scale = 0.1 + torch.rand(n, 1, generator=generator)
    return scale * (means[labels] + torch.randn(n, d, generator=generator)), 3 * labels - 4


@pytest.mark.parametrize("k", [1, 5, 20, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_knn_equals_scikit_learn(k, dtype):
    (train, train_labels), (test, test_labels) = draw(64), draw(200, seed=1)
    train, test = train.to(dtype), test.to(dtype)
    peer = KNeighborsClassifier(k, metric="cosine", algorithm="brute")
    peer.fit(train.double().numpy(), train_labels.numpy())
    wanted = torch.from_numpy(peer.predict(test.double().numpy()))
    assert torch.equal(knn_predictions(train, train_labels, test, k), wanted)
    accuracy = knn_accuracy(train, train_labels, test, test_labels, k)
    assert accuracy == pytest.approx(float((wanted == test_labels).double().mean()))


def test_chunks_change_nothing(monkeypatch):
    (train, labels), (test, _) = draw(50), draw(33, seed=1)
    whole = knn_predictions(train, labels, test, 7)
    monkeypatch.setattr(knn, "_SIMILARITIES", 170)
    assert torch.equal(knn_predictions(train, labels, test, 7), whole)
    monkeypatch.setattr(knn, "_SIMILARITIES", 1)
    assert torch.equal(knn_predictions(train, labels, test, 7), whole)


def test_ties_go_to_the_smallest_label():
    train = torch.tensor([[1.0, 0.1], [1.0, 0.2], [1.0, -0.1], [1.0, -0.2]])
    labels = torch.tensor([8, 8, 3, 3])
    assert knn_predictions(train, labels, torch.tensor([[1.0, 0.0]]), 4).tolist() == [3]


def test_only_directions_count():
    (train, labels), (test, _) = draw(50), draw(40, seed=1)
    found = knn_predictions(10 * train, labels, 0.01 * test, 5)
    assert torch.equal(found, knn_predictions(train, labels, test, 5))


def test_half_precision_is_computed_in_float32():
    (train, labels), (test, _) = draw(50), draw(40, seed=1)
    train, test = train.bfloat16(), test.bfloat16()
    found = knn_predictions(train, labels, test, 5)
    assert torch.equal(found, knn_predictions(train.float(), labels, test.float(), 5))


def test_more_neighbours_than_samples_are_refused():
    train, labels = draw(10)
    with pytest.raises(ValueError, match="k is 20, but there are only 10 training samples"):
        knn_accuracy(train, labels, train, labels)


def test_bad_input_names_the_argument():
    train, labels = draw(10)
    with pytest.raises(ValueError, match="test_features have 5 dimensions, train_features 6"):
        knn_accuracy(train, labels, train[:, :5], labels, 3)
    with pytest.raises(ValueError, match="train_labels must hold one label per sample"):
        knn_accuracy(train, labels[:9], train, labels, 3)
    with pytest.raises(ValueError, match="test_labels must hold one label per sample"):
        knn_accuracy(train, labels, train, labels[:9], 3)
    with pytest.raises(ValueError, match="train_features must be finite"):
        knn_accuracy(train / 0, labels, train, labels, 3)
    with pytest.raises(ValueError, match="k must be at least 1"):
        knn_accuracy(train, labels, train, labels, 0)


def test_nearest_means_are_scikit_learn_s_on_the_sphere():
    generator = torch.Generator().manual_seed(0)
    train, test = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (60, 40))
    labels = torch.randint(4, (60,), generator=generator) * 3
    unit = torch.nn.functional.normalize(train, dim=1)
    means = torch.stack([unit[labels == label].mean(0) for label in labels.unique()])
    reference = KNeighborsClassifier(1, metric="cosine").fit(means, labels.unique())
    predicted, cosines = nearest_mean(train, labels, test)
    assert predicted.tolist() == reference.predict(test).tolist()
    torch.testing.assert_close(1 - cosines, torch.tensor(reference.kneighbors(test)[0][:, 0]))
    with pytest.raises(ValueError, match="test_features have 4 dimensions, train_features 5"):
        nearest_mean(train, labels, test[:, :4])


def test_detection_is_scikit_learn_s_area_and_rate_with_ties():
    generator = torch.Generator().manual_seed(0)
    inside = torch.randn(200, generator=generator).add(1).mul(4).round()
    outside = torch.randn(90, generator=generator).mul(4).round()
    truth = [1] * 200 + [0] * 90
    scores = torch.cat([inside, outside])
    found = detect(inside, outside)
    assert found.auroc == pytest.approx(roc_auc_score(truth, scores))
    false, true, _ = roc_curve(truth, scores)
    assert found.fpr95 == pytest.approx(false[true >= 0.95].min())
    assert detect(inside, inside).auroc == 0.5
