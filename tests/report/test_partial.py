"""Half a study gives half a page, and the page says which half."""

import numpy as np
import pytest

from report import fake
from report.html_check import names, page_of, parse, section, table_of


def page_with(folder, records, **options):
    return page_of(fake.write_study(folder, records, **options))


def missing(root):
    return [item.text for item in section(root, "missing").all("li")]


def diverged(method, **options):
    record = fake.run(method, **options)
    record["status"], record["verdict"] = "diverged", "diverged"
    for name in set(record["curves"]) - {"step"}:
        record["curves"][name][2:] = [None] * (len(fake.STEPS) - 2)
    record["spectrum"] = [None] * len(record["spectrum"])
    return record


def cut_short(method, **options):
    record = fake.run(method, **options)
    record["status"], record["verdict"] = "partial", None
    record["curves"] = {name: values[:3] for name, values in record["curves"].items()}
    return record


def test_a_whole_study_misses_nothing(page):
    root = parse(page)
    assert "missing" not in names(root)
    assert not root.all("p", "warning")[1:]  # the one without JavaScript


def test_no_run_at_all(tmp_path):
    root = page_with(tmp_path, [], snapshots=False)
    assert set(names(root)) == {"missing", "provenance"}
    assert missing(root) == ["No run has been recorded yet."]
    assert "nothing can be said yet" in root.text
    assert not root.all("script")


def test_no_snapshots_and_no_maps(tmp_path):
    root = page_with(tmp_path, [fake.run("iot"), fake.run("byol")], snapshots=False)
    assert not set(names(root)) & {"tsne", "circle", "movie", "maps"}
    assert missing(root) == [
        "There are no snapshots: no pictures of the embeddings.",
        "No setting was swept: no maps.",
    ]
    assert "The study is not complete" not in root.text  # its numbers are


def test_maps_alone(tmp_path):
    records = [fake.run("iot", part="maps/dim", dim=dim) for dim in (2, 4)]
    root = page_with(tmp_path, records)
    assert set(names(root)) == {"maps", "missing", "provenance"}
    assert "There is no run of the main part: no curves, spectra or tables." in missing(root)


def test_an_unfinished_run_is_drawn_but_gives_no_result(tmp_path):
    root = page_with(tmp_path, [cut_short("iot"), cut_short("byol")], snapshots=False)
    assert "curves" in set(names(root))
    assert "finals" not in set(names(root))
    assert "2 of 2 runs did not finish" in " ".join(missing(root))
    assert "nothing can be said yet" in root.text


def test_finished_seeds_are_not_averaged_with_unfinished_ones(tmp_path):
    done, cut = fake.run("iot", seed=0), cut_short("iot", seed=1)
    root = page_with(tmp_path, [done, cut, fake.run("byol")], snapshots=False)
    label = root.all("div", "plot")[0].attributes["aria-label"]
    assert f"IOT, K = 10: {done['curves']['nc1'][-1]:.1f};" in label
    (row,) = [row.text for row in root.all("tr") if "(1 partial)" in row.text]
    assert row.startswith("IOT")


def test_diverged_runs_are_counted_and_leave_no_number(tmp_path):
    records = [diverged("iot", seed=0), diverged("iot", seed=1), fake.run("byol")]
    root = page_with(tmp_path, records, snapshots=False)
    assert "2 of 3 runs diverged" in " ".join(missing(root))
    assert "The study is not complete: 2 of 3 runs diverged" in root.text
    (row,) = [r for r in table_of(root, "Final fig").all("tr") if r.text.startswith("IOT")]
    assert [cell.text for cell in row.all("td")] == [
        "2", *["–"] * 8, "✕ diverged", "0 (2 diverged)"
    ]  # fmt: skip
    assert "nan" not in root.text.lower()


def test_holes_of_the_grid_are_named(tmp_path):
    records = [fake.run("iot", k, seed) for k in (4, 6) for seed in (0, 1)]
    records += [fake.run("byol", 4, 0)]
    found = missing(page_with(tmp_path, records, snapshots=False))
    assert "BYOL, K = 6: no run." in found
    assert "BYOL, K = 4: seed 1 is missing." in found
    assert not any(text.startswith("IOT") for text in found)


def test_runs_still_to_come_are_counted(tmp_path):
    root = page_with(tmp_path, [fake.run("iot")], snapshots=False, planned=30)
    assert "The study is not complete: 1 of 30 planned runs have been recorded." in root.text


def test_runs_that_differ_in_more_than_the_seed_are_not_averaged(tmp_path):
    records = [fake.run("iot", seed=0, kappa=1.0), fake.run("iot", seed=1, kappa=9.0)]
    text = page_with(tmp_path, records, snapshots=False).text
    assert "IOT, noise κ = 1" in text
    assert "IOT, noise κ = 9" in text


@pytest.mark.parametrize(
    "embeddings",
    [
        pytest.param(np.full((3, 30, 8), np.nan), id="not finite"),
        pytest.param(np.ones((3, 30, 8)), id="one point"),
        pytest.param(np.zeros((3, 30, 8)), id="zero"),
        pytest.param(np.linspace(1, 2, 720).reshape(3, 30, 8)[:, :, :1], id="one dimension"),
        pytest.param(np.random.default_rng(0).normal(size=(1, 30, 8)), id="one step"),
    ],
)
def test_odd_embeddings_do_not_spoil_the_page(tmp_path, embeddings):
    record = fake.run("iot", 5)
    folder = fake.write_study(tmp_path, [record, fake.run("byol", 5)])
    np.savez(
        folder / "snapshots" / f"{record['id']}.npz",
        steps=np.arange(len(embeddings)),
        embeddings=embeddings.astype(np.float16),
        labels=np.arange(30) % 5,
    )
    root = page_of(folder)
    titles = [panel.all("h4")[0].text for panel in root.all("div", "panel")]
    finite = np.isfinite(embeddings).all()
    moving = finite and len(embeddings) > 1
    assert titles.count("IOT") == 2 * finite + moving  # t-SNE, circle; movie
    assert titles.count("BYOL") == 3
