"""Free vectors reach the optimum that the theory predicts."""

import dataclasses

import pytest

from tricouple import cli
from tricouple.experiments.free_vectors import FreeVectorsSetup, descend


@pytest.fixture(scope="module")
def default_run():
    losses = []
    result = descend(FreeVectorsSetup(), lambda step, loss: losses.append((step, loss)))
    return result, losses


def test_ten_classes_in_16_dimensions_reach_the_simplex_etf(default_run):
    result, _ = default_run
    assert result.alpha == pytest.approx(1.0, abs=1e-3)
    assert result.beta == pytest.approx(-1 / 9, abs=1e-3)
    assert result.loss == pytest.approx(result.optimal_loss, abs=1e-4)
    assert result.nc1 < 1e-3
    assert result.nc2_std < 1e-3
    assert result.nc2_deviation < 1e-3
    assert result.reached


def test_no_vector_beats_the_closed_form_optimum(default_run):
    result, losses = default_run
    assert min(loss for _, loss in losses) >= result.optimal_loss - 1e-12


def test_descent_starts_far_from_the_optimum_and_reports_every_step(default_run):
    result, losses = default_run
    assert [step for step, _ in losses] == list(range(1, result.setup.steps + 1))
    assert losses[0][1] > result.optimal_loss + 0.1


@pytest.mark.parametrize(("classes", "dim", "per_class"), [(2, 2, 3), (4, 3, 5), (5, 20, 2)])
def test_other_sizes_reach_their_simplex(classes, dim, per_class):
    setup = FreeVectorsSetup(classes=classes, dim=dim, per_class=per_class, seed=1)
    result = descend(setup)
    assert result.beta == pytest.approx(-1 / (classes - 1), abs=1e-3)
    assert result.reached


def test_same_seed_gives_the_same_result():
    setup = FreeVectorsSetup(classes=3, dim=4, per_class=3, steps=20, seed=7)
    assert descend(setup) == descend(setup)
    assert descend(setup) != descend(dataclasses.replace(setup, seed=8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 1}, "classes is 1"),
        ({"per_class": 1}, "per_class is 1"),
        ({"classes": 2, "dim": 1}, "dim is 1: a simplex of 2 classes needs dim of 2 or more"),
        ({"dim": 8}, "dim is 8: a simplex of 10 classes needs dim of 9 or more"),
    ],
)
def test_impossible_setups_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        FreeVectorsSetup(**change)


def test_command_prints_the_table_and_succeeds(capsys):
    assert cli.main(["demo", "--classes", "4", "--dim", "3", "--per-class", "4"]) == 0
    shown = capsys.readouterr().out
    for quantity in ("loss", "α", "β", "NC1", "NC2"):
        assert quantity in shown
    assert "-0.333333" in shown  # β of a tetrahedron


def test_command_admits_when_the_optimum_was_not_reached(capsys):
    assert cli.main(["demo", "--steps", "2"]) == 1
    assert "Not there yet" in capsys.readouterr().out
