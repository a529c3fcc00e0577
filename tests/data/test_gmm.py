"""The mixture has the geometry that the paper describes."""

import pytest
import torch

from tricouple_lab.data.gmm import class_sizes, draw_mixture


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("n_classes", [2, 10, 50])
def test_means_sum_to_zero_and_span_k_minus_1_dimensions(n_classes):
    mixture = draw_mixture(n_classes, dim=100, generator=generator())
    assert mixture.means.sum(0).abs().max() < 1e-4
    assert int(torch.linalg.matrix_rank(mixture.means, rtol=1e-4)) == n_classes - 1
    inside = mixture.means @ mixture.subspace @ mixture.subspace.T
    torch.testing.assert_close(inside, mixture.means, atol=1e-5, rtol=0)
    gram = mixture.subspace.T @ mixture.subspace
    torch.testing.assert_close(gram, torch.eye(n_classes - 1), atol=1e-5, rtol=0)


def test_covariance_is_one_inside_and_kappa_outside_for_every_class():
    mixture = draw_mixture(4, dim=6, kappa=5.0, generator=generator())
    inputs, labels = mixture.sample([20_000] * 4, generator(1))
    inside = mixture.subspace @ mixture.subspace.T
    expected = inside + 5.0 * (torch.eye(6) - inside)
    for label in range(4):
        own = inputs[labels == label]
        assert (own.mean(0) - mixture.means[label]).abs().max() < 0.07
        assert (torch.cov(own.T) - expected).abs().max() < 0.3


def test_dimension_may_be_just_enough():
    mixture = draw_mixture(5, dim=4, generator=generator())
    inputs, labels = mixture.sample([3] * 5, generator(1))
    assert inputs.shape == (15, 4)
    assert labels.tolist() == sorted([0, 1, 2, 3, 4] * 3)
    assert bool(torch.isfinite(inputs).all())


def test_same_seed_gives_the_same_samples():
    first, second, other = (
        draw_mixture(3, dim=9, generator=generator(seed)).sample([4] * 3, generator(5))[0]
        for seed in (0, 0, 1)
    )
    torch.testing.assert_close(first, second, atol=0, rtol=0)
    assert (first - other).abs().max() > 0.1


def test_unbalanced_sizes_fall_geometrically_from_largest_to_smallest():
    assert class_sizes(10) == [50] * 10
    sizes = class_sizes(10, 50, imbalance=25)
    assert (sizes[0], sizes[-1]) == (50, 2)
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_mixture(1, generator=generator()), "n_classes is 1: a mixture needs 2"),
        (lambda: draw_mixture(10, 8, generator=generator()), "dim is 8: .* 10 classes need 9"),
        (lambda: draw_mixture(3, 9, -1.0, generator=generator()), "kappa must be finite and > 0"),
        (lambda: class_sizes(3, 10, imbalance=0.5), "imbalance is 0.5"),
        (lambda: class_sizes(3, 10, imbalance=11), "between 1 and 10 times the smallest"),
        (
            lambda: draw_mixture(3, 9, generator=generator()).sample([1, 2], generator()),
            "sizes has 2 entries for a mixture of 3 classes",
        ),
    ],
)
def test_impossible_mixtures_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
