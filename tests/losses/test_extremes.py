"""Batches with one sample opposite to all others: time and digits."""

import time

import pytest
import torch

import tricouple as tc
from batches import batch, draw
from reference import with_gradients
from tricouple import numeric


def outlier(samples):
    """A tight cluster, and one sample opposite to it."""
    return batch("outlier", samples).embeddings, torch.arange(samples) // 4


def seconds(shaping, sharpness, rows, labels):
    """The shortest of five steps."""
    found, criterion = [], tc.NegMMIOT(sharpness=sharpness, shaping=shaping)
    for _ in range(5):
        leaf = rows.float().requires_grad_()
        start = time.process_time()
        criterion(leaf, labels).backward()
        found.append(time.process_time() - start)
    return min(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shaping", "samples", "most"),
    [
        ("linear", 512, {10: 3, 30: 3, 100: 3}),
        ("linear", 1024, {10: 3, 30: 3, 100: 3}),
        ("log_sigmoid", 128, {100: 20}),
        *(("log_sigmoid", n, {100: 20, 1000: 20}) for n in (256, 512)),
        *(("hinge", n, {100: 20, 1000: 20}) for n in (128, 256)),
    ],
)
def test_one_outlier_takes_a_few_times_as_long_as_an_easy_batch(shaping, samples, most):
    rows, labels = outlier(samples)
    easy = seconds(shaping, 10, draw(samples, 32), labels)
    ratios = {c: seconds(shaping, c, rows, labels) / easy for c in most}
    assert all(ratio <= most[c] for c, ratio in ratios.items()), ratios


@pytest.mark.parametrize("sharpness", [10.0, 30.0, 100.0, 140.0])
@pytest.mark.parametrize("memory", ["auto", "streamed"])
@pytest.mark.parametrize("where", ["cpu", "device"])
def test_no_sweep_of_a_batch_with_one_outlier_goes_by_rows(sharpness, memory, where, monkeypatch):
    """Its positives and negatives coincide in all rows: differences there would lose all digits."""
    rows, labels = outlier(80)
    leaf, how = rows.requires_grad_(), {"n_iters": 4}
    dense = tc.ot.dense.neg_mmiot(leaf, labels, temperature=0.2, epsilon=5 / sharpness, **how)
    wanted, slope = with_gradients(dense, [leaf])
    criterion = tc.NegMMIOT(sharpness=sharpness, memory=memory, check="shapes", **how)
    with monkeypatch.context() as patch:
        patch.setattr(numeric, "HOST", "cpu" if where == "cpu" else "none")
        patch.setattr(tc.ot.forms.Linear, "update", None)  # a sweep by rows would fail
        value, gradient = with_gradients(criterion(leaf, labels), [leaf])
    assert float((value - wanted).abs()) <= 1e-11 * float(wanted.abs())
    assert float((gradient - slope).norm()) <= max(sharpness, 10) * 1e-13 * float(slope.norm())
