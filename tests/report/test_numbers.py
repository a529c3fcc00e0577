"""Every number of the tables is the mean ± std of the runs, and the best is in bold."""

import math

import numpy as np
import pytest

from report import fake
from report.html_check import parse, rows
from tricouple.report.read import read_study
from tricouple.report.statistics import MeanStd, band, beyond_spread, directions
from tricouple.report.synthetic.claims import check
from tricouple.report.synthetic.groups import group
from tricouple.report.synthetic.headline import headline
from tricouple.report.synthetic.sweeps import read_sweeps
from tricouple.report.tables_before import Column, best_rows, html_table, measured_table
from tricouple.report.words import mean_std, number


def finals(root, n_classes):
    title = f"Final figures at K = {n_classes}, mean ± std over seeds"
    (table,) = [t for t in root.all("table") if t.all("caption")[0].text == title]
    return table


@pytest.mark.parametrize("n_classes", [4, 6])
def test_the_table_of_final_figures_equals_the_runs(page, study_folder, n_classes):
    head, *body = rows(finals(parse(page), n_classes))
    names = ["NC1", "NC2 std", "NC2 deviation", "α", "β", "directions", "k-NN", "effective rank"]
    assert head == ["method", *names, "verdict", "seeds"]
    cells = {row[0]: row[1:] for row in body}
    assert len(cells) == 6 + 2 + 1  # methods, those with the other ψ, the target
    columns = ("nc1", "nc2_std", "nc2_deviation", "alpha", "beta", None, "knn", "effective_rank")
    for method, shaping, shown in (
        ("neg_mmiot", "linear", "Neg-MMIOT"),
        ("pushpull", "log_sigmoid", "PushPull (log-sigmoid ψ)"),
        ("vicreg", None, "VICReg"),
    ):
        runs = [
            run
            for run in read_study(study_folder).part("main")
            if (run.config["method"], run.config["shaping"]) == (method, shaping)
            and run.config["n_classes"] == n_classes
        ]
        assert len(runs) == 2
        for column, text in zip(columns, cells[shown][:-2], strict=True):
            values = [directions(r.spectrum) if column is None else r.final(column) for r in runs]
            expected = MeanStd(float(np.mean(values)), float(np.std(values, ddof=1)), 2)
            assert text == mean_std(expected)
        assert cells[shown][-2:] == ["● rich" if method == "vicreg" else "★ ETF", "2"]
    assert cells["simplex ETF (target)"][4] == number(-1 / (n_classes - 1))


def test_the_best_of_each_column_is_bold(page):
    body = finals(parse(page), 6).all("tr")[1:]
    bold = {
        row.inside[0].text: [bool(cell.all("strong")) for cell in row.inside[1:]] for row in body
    }
    assert bold["Neg-MMIOT"][5] or bold["Neg-MMIOT (log-sigmoid ψ)"][5]  # richest spectrum
    assert not any(bold["IOT"])
    assert not any(bold["simplex ETF (target)"])
    assert not any(marks[7] for marks in bold.values())  # an effective rank has no best
    for column in range(7):
        assert any(marks[column] for marks in bold.values())


def test_equal_values_share_the_bold_and_missing_ones_get_none():
    values = [MeanStd(m, 0.0, 2) for m in (0.5, 0.1, math.nan, 0.1)]
    assert best_rows(Column("error", values, abs)) == [1, 3]
    assert best_rows(Column("rank", values)) == []
    assert best_rows(Column("error", values[2:3], abs)) == []


def test_a_generic_table_escapes_and_stresses():
    column = Column("a < b", [MeanStd(2.0, 0.5, 3), MeanStd(1.0, math.nan, 1)], abs)
    text = html_table(measured_table("c & d", "e", ["<f>", "g"], [column]))
    assert "<caption>c &amp; d</caption>" in text
    assert "a &lt; b" in text
    assert "&lt;f&gt;" in text
    assert "<td>2.00 ± 0.50</td>" in text
    assert "<td><strong>1.00</strong></td>" in text


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (0.012345, 0.00056, "0.0123 ± 0.0006"),
        (-0.11111, 0.00001, "-0.111 ± 0.000"),
        (0.0, 0.0, "0.00 ± 0.00"),
        (123.4, 5.6, "123 ± 6"),
        (2.5e-6, 1e-7, "(2.50 ± 0.10)e-06"),
        (1e-9, 0.2, "0.000 ± 0.200"),
        (3.14159, math.nan, "3.14"),
        (math.nan, math.nan, "–"),
    ],
)
def test_mean_and_std_end_at_the_same_decimal(mean, std, text):
    assert mean_std(MeanStd(mean, std, 2)) == text


def test_a_band_is_mean_and_std_cut_at_the_smallest_seed():
    rows_ = np.array([[1.0, 1.0, np.nan], [3.0, 9.0, 5.0], [2.0, 2.0, np.nan]])
    curve = band(np.array([0.0, 1.0, 2.0]), rows_)
    np.testing.assert_allclose(curve.mean, [2, 4, 5])
    np.testing.assert_allclose(curve.high, [3, 4 + np.std([1, 9, 2], ddof=1), 5])
    np.testing.assert_allclose(curve.low, [1, 1, 5])


def test_difference_within_the_spread_is_none():
    assert beyond_spread(MeanStd(1.0, 0.3, 3), MeanStd(1.5, 0.3, 3)) == 0
    assert beyond_spread(MeanStd(1.0, 0.1, 3), MeanStd(1.5, 0.3, 3)) == -1
    assert beyond_spread(MeanStd(2.0, math.nan, 1), MeanStd(1.5, math.nan, 1)) == 1
    assert beyond_spread(MeanStd(9.0, math.nan, 1), MeanStd(8.999, math.nan, 1)) == 0


def planted(method, nc1, deviation, spectrum, shaping=None):
    """Two seeds that end at these values, ± 1 %."""
    records = []
    for seed, factor in enumerate((0.99, 1.01)):
        record = fake.run(method, 3, seed, shaping)
        record["curves"]["nc1"][-1] = nc1 * factor
        record["curves"]["nc2_deviation"][-1] = deviation * factor
        record["spectrum"] = spectrum
        records.append(record)
    return records


FLAT, STEEP = [1.0, 1.0], [1.0, 0.01]


@pytest.fixture
def planted_groups(tmp_path):
    records = [
        *planted("neg_mmiot", 1.0, 0.01, FLAT, "linear"),
        *planted("pushpull", 4.0, 0.02, FLAT, "linear"),
        *planted("iot", 2.0, 0.3, FLAT),  # tighter than PushPull, as rich as both
        *planted("byol", 5.0, 0.015, STEEP),  # nearer to the ETF than PushPull
    ]
    return group(read_study(fake.write_study(tmp_path, records, snapshots=False)).runs)


def test_claims_are_judged_by_the_runs_alone(planted_groups):
    by_quantity = [
        (f.claim.quantity, f.verdict, f.count, len(f.comparisons)) for f in check(planted_groups)
    ]
    assert by_quantity == [
        ("nc1", "mixed", 1, 2),  # Neg-MMIOT yes, PushPull no
        ("nc2_deviation", "holds", 2, 2),  # both left their start
        ("nc2_deviation", "mixed", 3, 4),  # PushPull not nearer than BYOL; VICReg absent
        ("directions", "holds", 2, 2),
        ("directions", "level", 0, 2),  # IOT is as rich
    ]


def test_the_headline_names_who_is_first_level_and_last(planted_groups):
    verdicts, *text = headline(planted_groups, check(planted_groups), ())
    assert verdicts.endswith("ETF: Neg-MMIOT and PushPull; rich: IOT; collapsed: BYOL (K = 3).")
    assert text[0].startswith(
        "Closest to the simplex ETF (NC2 deviation): Neg-MMIOT at K = 3 (0.0100"
    )
    assert "at the other end IOT (0.300" in text[0]
    assert text[1].startswith("Tightest classes (NC1): Neg-MMIOT at K = 3 (1.00")
    assert "level with PushPull and IOT; at the other end BYOL" in text[2]
    assert text[3].startswith("Of 5 claims of the paper that these runs can test, 2 hold")
    assert "8 of 12 single comparisons" in text[3]
    assert len(text) == 4  # two seeds: no warning of one


def test_the_headline_warns_of_single_seeds(tmp_path):
    records = [fake.run("iot"), fake.run("byol")]
    runs = read_study(fake.write_study(tmp_path, records, snapshots=False)).runs
    assert headline(group(runs), (), ())[-1].startswith("One seed a setting")


def test_the_headline_counts_verdicts_over_the_sweeps(study_folder):
    text = headline((), (), read_sweeps(read_study(study_folder)))
    assert len(text) == 1
    assert "over 2 swept settings" in text[0]
    assert "BYOL: collapsed 6" in text[0]


def test_sweeps_are_sorted_and_grouped_by_line(study_folder):
    epsilon, dim = read_sweeps(read_study(study_folder))
    assert (epsilon.axis, epsilon.values, epsilon.logarithmic) == (
        "epsilon",
        (0.01, 0.1, 1.0),
        True,
    )
    assert (dim.axis, dim.values, dim.logarithmic) == ("dim", (2, 8, 32), False)
    assert [line.method for line in epsilon.lines] == list(fake.SHAPED) + [
        method for method in fake.METHODS if method not in fake.SHAPED
    ]


def test_a_sweep_of_k_is_one_line(tmp_path):
    records = [fake.run("iot", k, part="maps/n_classes") for k in (10, 5)]
    (sweep,) = read_sweeps(read_study(fake.write_study(tmp_path, records, snapshots=False)))
    (line,) = sweep.lines
    assert [point.value for point in line.points] == [5, 10]
    assert line.n_classes is None


def test_a_sweep_of_words_is_in_order_too(tmp_path):
    records = [fake.run("iot", part="maps/schedule", schedule=s) for s in ("cosine", "constant")]
    (sweep,) = read_sweeps(read_study(fake.write_study(tmp_path, records, snapshots=False)))
    assert sweep.values == ("constant", "cosine")
    assert not sweep.logarithmic
