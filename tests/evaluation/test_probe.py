"""The linear probe is the paper's: cross-entropy, AdamW, shuffled batches."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from tricouple_lab.data import images
from tricouple_lab.evaluation.probe import _initial_layer, linear_probe


def draw(n: int, d: int = 8, n_classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(n_classes, (n,), generator=generator)
    means = torch.randn(n_classes, d, generator=torch.Generator().manual_seed(99))
    return means[labels] + torch.randn(n, d, generator=generator), labels


def reference(train, train_labels, test, *, epochs, lr, batch_size, weight_decay, seed) -> Tensor:
    """The same training by autograd, one loss at a time; returns the logits of test samples."""
    layer = _initial_layer(train, 4, seed)
    optimizer = torch.optim.AdamW(layer.parameters(), lr, weight_decay=weight_decay)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(train), generator=order).split(batch_size):
            loss = nn.functional.cross_entropy(layer(train[batch]), train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return layer(test)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_probe_equals_training_by_autograd(weight_decay):
    (train, train_labels), (test, test_labels) = draw(150), draw(400, seed=1)
    train, test = train.double(), test.double()
    options = {"epochs": 7, "lr": 0.03, "batch_size": 32, "weight_decay": weight_decay, "seed": 5}
    found = linear_probe(train, train_labels, test, test_labels, 4, **options)
    wanted = reference(train, train_labels, test, **options).argmax(1)
    assert torch.equal(found.predictions, wanted)
    assert found.accuracy == pytest.approx(float((wanted == test_labels).double().mean()))


def test_the_initial_layer_is_pytorchs():
    layer = _initial_layer(torch.zeros(1, 400), 300, seed=0)
    theirs = nn.Linear(400, 300)
    for ours, peer in zip(layer.parameters(), theirs.parameters(), strict=True):
        assert float(ours.detach().std() / peer.detach().std()) == pytest.approx(1, abs=0.1)
        assert float(ours.detach().abs().max()) == pytest.approx(0.05, rel=0.02)


def test_probe_on_real_images_is_as_good_as_logistic_regression():
    data = images.load("digits")
    train, test = (part.images.flatten(1) / 255 for part in (data.train, data.test))
    result = linear_probe(train, data.train.labels, test, data.test.labels, 10)
    peer = LogisticRegression(max_iter=1000).fit(train.numpy(), data.train.labels.numpy())
    assert result.accuracy > peer.score(test.numpy(), data.test.labels.numpy()) - 0.02
    assert result.train_accuracy > 0.93


def test_a_seed_repeats_the_probe_and_leaves_the_global_generator_alone():
    (train, labels), (test, test_labels) = draw(100), draw(300, seed=1)
    state = torch.random.get_rng_state()
    runs = [linear_probe(train, labels, test, test_labels, 4, epochs=3, seed=s) for s in (0, 0, 1)]
    assert torch.equal(runs[0].predictions, runs[1].predictions)
    assert not torch.equal(runs[0].predictions, runs[2].predictions)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("d", "within"), [(8, 1), (4000, 2)])
def test_small_steps_use_one_thread_and_the_number_is_restored(d, within):
    train, labels = draw(300, d)
    seen = []
    torch.set_num_threads(2)
    try:
        linear_probe(
            *(train, labels, train, labels, 4),
            epochs=1,
            progress=lambda *done: seen.append(torch.get_num_threads()),
        )
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(1)
    assert seen == [within]
    assert after == 2


def test_features_get_no_gradient_and_are_not_changed():
    (train, labels), (test, test_labels) = draw(60), draw(30, seed=1)
    train.requires_grad_()
    before = train.detach().clone()
    linear_probe(train, labels, test, test_labels, 4, epochs=2)
    assert train.grad is None
    assert torch.equal(train, before)


def test_half_precision_features_are_probed_in_float32():
    (train, labels), (test, test_labels) = draw(200), draw(100, seed=1)
    train, test = train.bfloat16(), test.bfloat16()
    found = linear_probe(train, labels, test, test_labels, 4, epochs=5, lr=0.05)
    wanted = linear_probe(train.float(), labels, test.float(), test_labels, 4, epochs=5, lr=0.05)
    assert torch.equal(found.predictions, wanted.predictions)


def test_progress_is_told_after_every_epoch():
    train, labels = draw(20)
    seen = []
    linear_probe(
        train, labels, train, labels, 4, epochs=3, progress=lambda *done: seen.append(done)
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"n_classes": 3}, "train_labels must be between 0 and n_classes − 1 = 2, found 0 to 3"),
        ({"train_labels": torch.full((20,), -1)}, "found -1 to -1"),
        ({"test_features": torch.zeros(20, 5)}, "test_features have 5 dimensions"),
        ({"test_features": torch.full((20, 8), torch.nan)}, "test_features must be finite"),
        ({"train_labels": torch.arange(19)}, "train_labels must hold one label per sample"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"lr": 0.0}, "lr must be finite and > 0"),
        ({"weight_decay": -1.0}, "weight_decay must be finite and >= 0"),
    ],
)
def test_bad_input_names_the_argument(change, problem):
    x, y = draw(20)
    arguments = {
        "train_features": x,
        "train_labels": y,
        "test_features": x,
        "test_labels": y,
        "n_classes": 4,
    }
    with pytest.raises(ValueError, match=problem):
        linear_probe(**arguments | change)
