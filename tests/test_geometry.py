"""The geometry of known configurations, and the closed-form optimum against the loss itself."""

import math

import pytest
import torch

import tricouple as tc
from batches import draw
from tricouple import geometry


def simplex(n_classes: int) -> torch.Tensor:
    """Unit vectors with pairwise cosine −1/(K−1), as rows."""
    centred = torch.eye(n_classes, dtype=torch.float64) - 1 / n_classes
    return torch.nn.functional.normalize(centred, dim=1)


def at_simplex(n_classes: int, per_class: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(n_classes).repeat_interleave(per_class)
    return simplex(n_classes)[labels], labels


def test_simplex_etf_is_fully_collapsed():
    z, labels = at_simplex(7, 4)
    result = geometry.neural_collapse(z, labels)
    assert result.nc1 == pytest.approx(0, abs=1e-12)
    assert result.nc2_std == pytest.approx(0, abs=1e-12)
    assert result.nc2_deviation == pytest.approx(0, abs=1e-12)
    assert result.spectrum.shape == (6,)
    assert result.row()["spectrum_ratio"] == pytest.approx(1, abs=1e-9)
    # Each class mean has length 1: eigenvalues of μᵀμ/(K−1) sum to K/(K−1).
    assert float(result.spectrum.sum()) == pytest.approx(7 / 6, abs=1e-12)


def test_spectrum_is_that_of_the_class_mean_covariance():
    z = draw(40, 6, seed=0)
    labels = torch.arange(40) % 5
    unit = z / z.norm(dim=1, keepdim=True)
    means = torch.stack([unit[labels == label].mean(0) for label in range(5)])
    centred = means - means.mean(0)
    wanted = torch.linalg.eigvalsh(centred.T @ centred / 4).flip(0)[:4]
    result = geometry.neural_collapse(z, labels)
    assert torch.allclose(result.spectrum, wanted, atol=1e-12)
    scatter = sum((unit[labels == k] - means[k]).square().sum() for k in range(5))
    assert result.nc1 == pytest.approx(float(scatter), rel=1e-12)
    directions = centred / centred.norm(dim=1, keepdim=True)
    cosines = torch.tensor(
        [float(directions[i] @ directions[j]) for i in range(5) for j in range(i)]
    )
    assert result.nc2_std == pytest.approx(float(cosines.std(correction=0)), rel=1e-6)
    assert result.nc2_deviation == pytest.approx(float((cosines + 0.25).abs().mean()), rel=1e-6)


def test_two_distances_are_means_over_pairs():
    z = draw(12, 3, seed=1)
    labels = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
    unit = z / z.norm(dim=1, keepdim=True)
    pairs = [(i, j) for i in range(12) for j in range(12) if i != j]
    same = [float(unit[i] @ unit[j]) for i, j in pairs if labels[i] == labels[j]]
    other = [float(unit[i] @ unit[j]) for i, j in pairs if labels[i] != labels[j]]
    result = geometry.two_distance(z, labels)
    assert result.alpha == pytest.approx(sum(same) / len(same), rel=1e-12)
    assert result.beta == pytest.approx(sum(other) / len(other), rel=1e-12)
    assert geometry.alignment(z, labels) == pytest.approx(2 - 2 * result.alpha, rel=1e-12)


@pytest.mark.parametrize(("temperature", "epsilon"), [(1.0, 0.5), (0.5, 0.2), (0.1, 0.1)])
@pytest.mark.parametrize(("n_classes", "per_class"), [(2, 2), (3, 4), (10, 3)])
def test_etf_loss_is_the_loss_at_the_simplex(n_classes, per_class, temperature, epsilon):
    z, labels = at_simplex(n_classes, per_class)
    measured = tc.NegMMIOT(temperature, epsilon, n_iters=50)(z, labels)
    closed = geometry.etf_loss(n_classes, per_class, temperature=temperature, epsilon=epsilon)
    assert closed == pytest.approx(float(measured), rel=1e-9, abs=1e-12)


def test_closed_form_holds_at_other_two_distance_configurations():
    # Orthogonal class means: α = 1, β = 0.
    z = torch.eye(5, dtype=torch.float64).repeat_interleave(3, 0)
    labels = torch.arange(5).repeat_interleave(3)
    measured = tc.NegMMIOT(1.0, 0.5, n_iters=50)(z, labels)
    closed = geometry.etf_loss(5, 3, temperature=1.0, epsilon=0.5, alpha=1.0, beta=0.0)
    assert closed == pytest.approx(float(measured), rel=1e-12)


def test_effective_rank_counts_equal_directions():
    z = torch.cat([torch.eye(5), -torch.eye(5)]).double()
    assert geometry.effective_rank(z) == pytest.approx(5, rel=1e-9)
    line = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert geometry.effective_rank(line) == pytest.approx(1, rel=1e-5)
    assert geometry.effective_rank(torch.ones(4, 3)) == 0.0


def test_uniformity_is_the_log_of_mean_gaussian_potentials():
    z = draw(9, 4, seed=2)
    unit = z / z.norm(dim=1, keepdim=True)
    potentials = [
        math.exp(-2 * float((unit[i] - unit[j]).square().sum()))
        for i in range(9)
        for j in range(9)
        if i != j
    ]
    wanted = math.log(sum(potentials) / len(potentials))
    assert geometry.uniformity(z) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: geometry.neural_collapse(torch.ones(3, 2), torch.zeros(3).long()), "2 classes"),
        (lambda: geometry.neural_collapse(torch.ones(3, 2), torch.zeros(2).long()), "labels"),
        (
            lambda: geometry.neural_collapse(torch.full((2, 2), torch.nan), torch.arange(2)),
            "finite",
        ),
        (lambda: geometry.two_distance(torch.eye(2), torch.arange(2)), "two samples"),
        (lambda: geometry.etf_loss(1, 5), "n_classes"),
        (lambda: geometry.etf_loss(3, 3, temperature=-1.0), "temperature"),
        (lambda: geometry.uniformity(torch.ones(1, 2)), "2 samples"),
        (lambda: geometry.uniformity(torch.eye(2), t=0.0), "t must be"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
