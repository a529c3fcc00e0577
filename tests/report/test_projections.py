"""The pictures show what they say: planes, circles, t-SNE and the packed frames of the movie."""

import base64

import numpy as np
import pytest

from report import fake
from tricouple.report import projections
from tricouple.report.read import read_study
from tricouple.report.synthetic.figures import circle, movie
from tricouple.report.synthetic.figures.scatter import MOST_POINTS, read_pictures
from tricouple.report.synthetic.groups import group


@pytest.fixture
def picture(tmp_path):
    folder = fake.write_study(tmp_path, [fake.run("iot", 5)], samples=20)
    study = read_study(folder)
    (found,) = read_pictures(study, group(study.runs))
    return found


def test_the_leading_plane_holds_most_of_the_class_means():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(7, 9))
    plane = projections.leading_plane(means)
    np.testing.assert_allclose(plane.T @ plane, np.eye(2), atol=1e-12)
    captured = np.square(means @ plane).sum()
    for _ in range(50):
        other = np.linalg.qr(rng.normal(size=(9, 2)))[0]
        assert np.square(means @ other).sum() <= captured


def test_the_leading_plane_does_not_flip():
    means = np.random.default_rng(1).normal(size=(4, 6))
    np.testing.assert_allclose(
        projections.leading_plane(means), projections.leading_plane(means[::-1]), atol=1e-12
    )


def test_tsne_keeps_classes_together_and_repeats_itself():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    z = np.eye(3)[labels] + 0.05 * rng.normal(size=(60, 3))
    at = projections.tsne(z)
    assert at.shape == (60, 2)
    assert np.abs(at).max() == 1
    np.testing.assert_array_equal(at, projections.tsne(z))
    distances = np.linalg.norm(at[:, None] - at, axis=2) + 9 * np.eye(60)
    np.testing.assert_array_equal(labels[distances.argmin(1)], labels)


@pytest.mark.parametrize(
    "z", [np.ones((10, 3)), np.zeros((10, 3)), np.eye(2)], ids=["equal", "zero", "two"]
)
def test_tsne_of_nothing_to_tell_apart_is_one_point(z):
    np.testing.assert_array_equal(projections.tsne(z), np.zeros((len(z), 2)))


def test_tsne_of_all_but_collapsed_rows_is_finite():
    noise = np.random.default_rng(0).normal(size=(40, 3))
    at = projections.tsne(1 + 1e-5 * noise)
    assert np.isfinite(at).all()
    assert np.ptp(at) > 0


def test_tsne_looks_at_directions_alone():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(30, 4))
    scaled = z * rng.integers(1, 5, size=(30, 1)) * 2.0
    np.testing.assert_allclose(projections.tsne(scaled), projections.tsne(z), atol=1e-6)


def test_pictures_are_unit_vectors_of_the_last_snapshot(picture, tmp_path):
    assert picture.steps == tuple(fake.STEPS)
    np.testing.assert_allclose(np.linalg.norm(picture.embeddings, axis=2), 1, atol=1e-12)
    assert len(picture.labels) == 20 <= MOST_POINTS


def test_the_circle_view_has_samples_on_the_circle_and_means_inside(picture):
    (panel,) = circle.figure((picture,)).panels
    samples, spokes = panel.drawing.data
    np.testing.assert_allclose(np.hypot(samples.x, samples.y), 1, atol=1e-6)
    assert len(spokes.x) == 3 * 5
    assert np.hypot(spokes.x[1::3], spokes.y[1::3]).max() <= 1 + 1e-6


def test_frames_of_the_movie_unpack_to_the_projected_embeddings(picture):
    figure = movie.figure((picture,))
    assert figure.movie_steps == tuple(fake.STEPS)
    packed = figure.panels[0].drawing.data[0].meta["movie"]
    numbers = np.frombuffer(base64.b64decode(packed["points"]), "<i2") / packed["scale"]
    frames = numbers.reshape(len(fake.STEPS), 2, 20)
    plane = projections.leading_plane(
        projections.class_means(picture.embeddings[-1], picture.labels)
    )
    np.testing.assert_allclose(frames[2].T, picture.embeddings[2] @ plane, atol=1e-4)


def test_many_points_and_frames_are_thinned_evenly():
    chosen = projections.thin(500, MOST_POINTS)
    assert len(chosen) == MOST_POINTS
    assert (chosen[0], chosen[-1]) == (0, 499)
    assert set(np.diff(chosen)) <= {1, 2}
