"""The pictures show what they say: planes, circles, t-SNE and the packed frames of the movie."""

import base64

import numpy as np
import pytest

from report import fake
from report.html_check import check_picture
from tricouple_lab.report import embeddings
from tricouple_lab.report.draw_matplotlib import png
from tricouple_lab.report.draw_plotly import drawing
from tricouple_lab.report.read import read_study
from tricouple_lab.report.synthetic import main_groups


@pytest.fixture
def picture(tmp_path):
    folder = fake.write_study(tmp_path, [fake.run("iot", 5)], samples=20)
    study = read_study(folder)
    (found,) = embeddings.read_pictures(study, main_groups(study))
    return found


def test_the_leading_plane_holds_most_of_the_class_means():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(7, 9))
    plane = embeddings.leading_plane(means)
    np.testing.assert_allclose(plane.T @ plane, np.eye(2), atol=1e-12)
    captured = np.square(means @ plane).sum()
    for _ in range(50):
        other = np.linalg.qr(rng.normal(size=(9, 2)))[0]
        assert np.square(means @ other).sum() <= captured


def test_the_leading_plane_does_not_flip():
    means = np.random.default_rng(1).normal(size=(4, 6))
    np.testing.assert_allclose(
        embeddings.leading_plane(means), embeddings.leading_plane(means[::-1]), atol=1e-12
    )


def test_tsne_keeps_classes_together_and_repeats_itself():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    z = np.eye(3)[labels] + 0.05 * rng.normal(size=(60, 3))
    at = embeddings.tsne(z)
    assert at.shape == (60, 2)
    assert np.abs(at).max() == 1
    np.testing.assert_array_equal(at, embeddings.tsne(z))
    distances = np.linalg.norm(at[:, None] - at, axis=2) + 9 * np.eye(60)
    np.testing.assert_array_equal(labels[distances.argmin(1)], labels)


@pytest.mark.parametrize(
    "z", [np.ones((10, 3)), np.zeros((10, 3)), np.eye(2)], ids=["equal", "zero", "two"]
)
def test_tsne_of_nothing_to_tell_apart_is_one_point(z):
    np.testing.assert_array_equal(embeddings.tsne(z), np.zeros((len(z), 2)))


def test_tsne_of_all_but_collapsed_rows_is_finite():
    noise = np.random.default_rng(0).normal(size=(40, 3))
    at = embeddings.tsne(1 + 1e-5 * noise)
    assert np.isfinite(at).all()
    assert np.ptp(at) > 0


def test_tsne_looks_at_directions_alone():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(30, 4))
    scaled = z * rng.integers(1, 5, size=(30, 1)) * 2.0
    np.testing.assert_allclose(embeddings.tsne(scaled), embeddings.tsne(z), atol=1e-6)


def test_pictures_are_unit_vectors_of_the_last_snapshot(picture, tmp_path):
    assert picture.steps == tuple(fake.STEPS)
    np.testing.assert_allclose(np.linalg.norm(picture.embeddings, axis=2), 1, atol=1e-12)
    assert len(picture.labels) == 20 <= embeddings.MOST_POINTS


def test_the_circle_view_has_samples_on_the_circle_and_means_inside(picture):
    (panel,) = embeddings.circle_chart([picture]).panels
    samples, spokes = drawing(panel).data
    np.testing.assert_allclose(np.hypot(samples.x, samples.y), 1, atol=1e-6)
    assert len(spokes.x) == 3 * 5
    assert np.hypot(spokes.x[1::3], spokes.y[1::3]).max() <= 1 + 1e-6


def test_frames_of_the_movie_unpack_to_the_projected_embeddings(picture):
    chart = embeddings.movie_chart([picture])
    assert chart.steps == tuple(fake.STEPS)
    packed = drawing(chart.panels[0]).data[0].meta["movie"]
    numbers = np.frombuffer(base64.b64decode(packed["points"]), "<i2") / packed["scale"]
    frames = numbers.reshape(len(fake.STEPS), 2, 20)
    plane = embeddings.leading_plane(embeddings.class_means(picture.embeddings[-1], picture.labels))
    np.testing.assert_allclose(frames[2].T, picture.embeddings[2] @ plane, atol=1e-4)


def test_many_points_and_frames_are_thinned_evenly():
    chosen = embeddings.thin(500, embeddings.MOST_POINTS)
    assert len(chosen) == embeddings.MOST_POINTS
    assert (chosen[0], chosen[-1]) == (0, 499)
    assert set(np.diff(chosen)) <= {1, 2}


def gallery(n_classes: int, spread: float = 1.0) -> dict:
    """As an evaluation leaves it, with one grey pixel an image."""
    rng = np.random.default_rng(0)
    labels = np.arange(2 * n_classes) % n_classes
    found = {
        "classes": np.array([f"<class> {code}" for code in range(n_classes)]),
        "labels": labels,
        "query_labels": np.array([0, 1]),
        "queries": np.zeros((2, 1, 1, 1), np.uint8),
        "answer_labels": np.array([[0, 1, 0], [0, 0, 0]]),
        "answers": np.zeros((6, 1, 1, 1), np.uint8),
        "scores": np.full((2, 3), 0.5),
    }
    for kind in ("penultimate", "embedding"):
        found[f"confusion_{kind}"] = np.eye(n_classes)
        found[f"features_{kind}"] = 1 + spread * rng.normal(size=(len(labels), 4))
    return found


@pytest.mark.parametrize(("n_classes", "spread"), [(3, 1.0), (120, 0.0)], ids=["few", "collapsed"])
def test_charts_of_an_evaluation_are_pictures_on_white(n_classes, spread):
    charts = embeddings.evaluation_charts(gallery(n_classes, spread))
    assert [len(chart.panels) for chart in charts] == [2, 2]
    assert "100 % are right" in charts[0].panels[0].alt
    for chart in charts:
        check_picture(png(chart, columns=2))


def test_neighbours_are_pictures_whose_right_answers_are_marked():
    html = embeddings.evaluation_neighbours(gallery(3))
    assert html.count("data:image/png") == 2 + 6
    assert html.count('class="right"') == 2
    assert "<class>" not in html
    assert "✓ 0.50 &lt;class&gt; 0" in html
