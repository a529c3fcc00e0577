"""Every number of the tables is the mean ± std of the runs, and the best is in bold."""

import math

import numpy as np
import pytest
import scipy.stats

from report import fake
from report.html_check import parse, rows, table_of
from tricouple_lab.report.groups import Curve
from tricouple_lab.report.numbers import (
    MeanStd,
    best,
    beyond_spread,
    directions,
    holm,
    mean_std,
    number,
    welch,
)
from tricouple_lab.report.read import read_study
from tricouple_lab.report.sweeps import read_sweeps
from tricouple_lab.report.synthetic import check_claims, headline, main_groups
from tricouple_lab.report.tables import Column, best_rows


def finals(root, n_classes):
    return table_of(
        root, f"Final figures at K = {n_classes} after 200 steps, mean ± std over seeds"
    )


@pytest.mark.parametrize("n_classes", [4, 6])
def test_the_table_of_final_figures_equals_the_runs(page, study_folder, n_classes):
    head, *body = rows(finals(parse(page), n_classes))
    names = ["NC1", "NC2 std", "NC2 deviation", "α", "β", "directions", "k-NN", "effective rank"]
    assert head == ["method", "c", *names, "verdict", "seeds"]
    assert {row[1] for row in body[:-1]} == {"2", "–"}
    cells = {row[0]: row[2:] for row in body}
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
        row.inside[0].text: [bool(cell.all("strong")) for cell in row.inside[2:]] for row in body
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
    assert best_rows(Column("error", values[:1], abs)) == []  # one alone is no best


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
    curve = Curve.over([{0: 1.0, 1: 1.0, 2: math.nan}, {0: 3.0, 1: 9.0, 2: 5.0}, {0: 2.0, 1: 2.0}])
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
    return main_groups(read_study(fake.write_study(tmp_path, records, snapshots=False)))


def test_claims_are_judged_by_the_runs_alone(planted_groups):
    by_quantity = [
        (f.claim.quantity, f.verdict, f.count, len(f.comparisons))
        for f in check_claims(planted_groups)
    ]
    assert by_quantity == [
        ("nc1", "mixed", 1, 2),  # Neg-MMIOT yes, PushPull no
        ("nc2_deviation", "holds", 2, 2),  # both left their start
        ("nc2_deviation", "mixed", 3, 4),  # PushPull not nearer than BYOL; VICReg absent
        ("directions", "holds", 2, 2),
        ("directions", "level", 0, 2),  # IOT is as rich
    ]


def test_the_headline_names_who_is_best_level_and_last_and_the_test_used(planted_groups):
    verdicts, *text = headline(planted_groups, check_claims(planted_groups), ())
    assert verdicts.endswith("ETF: PushPull and Neg-MMIOT; rich: IOT; collapsed: BYOL (K = 3).")
    assert text[0].startswith(
        "Closest to the simplex ETF (NC2 deviation). K = 3: best Neg-MMIOT (0.0100 ± 0.0001); last "
        "IOT (0.300 ± 0.004). Told from the best by Welch's t-test at 5 %, Holm-corrected over 3 "
    )
    assert text[1].startswith("Tightest classes (NC1). K = 3: best Neg-MMIOT (1.00")
    assert "level with PushPull and Neg-MMIOT; last BYOL" in text[2]
    assert text[3].startswith("“Level”: the means differ by no more than both standard deviations")
    assert text[4].startswith("Of 5 claims of the paper that these runs can test, 2 hold")
    assert "8 of 12 single comparisons" in text[4]
    assert len(text) == 5  # two seeds: no warning of one


def test_the_headline_warns_of_single_seeds_and_tests_none(tmp_path):
    records = [fake.run("iot"), fake.run("byol")]
    study = read_study(fake.write_study(tmp_path, records, snapshots=False))
    text = headline(main_groups(study), (), ())
    assert text[-1].startswith("One seed a setting")
    assert "Welch" not in " ".join(text)


def test_welch_and_holm_are_the_textbooks():
    samples = np.array([80.1, 83.2, 78.9]), np.array([83.0, 84.1, 82.0])
    expected = scipy.stats.ttest_ind(*samples, equal_var=False).pvalue
    assert welch(*map(MeanStd.of, samples)) == pytest.approx(expected)
    assert welch(MeanStd(1.0, 0.0, 3), MeanStd(2.0, 0.0, 3)) == 0
    assert welch(MeanStd(1.0), MeanStd(2.0)) == 1
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    (text,) = best("Recall", {"": {"a": MeanStd(1.0, 0.3, 3), "b": MeanStd(1.2, 0.3, 3)}}, mean_std)
    assert text.startswith("Recall. best b (1.20 ± 0.30), level with a. Told")
    assert text.endswith("over 1 comparisons: none.")


def test_a_method_at_two_sharpnesses_is_two_rows_and_two_lines(tmp_path):
    records = [
        fake.run("infonce", seed=seed, temperature=tau, sharpness=1 / tau)
        for seed in (0, 1)
        for tau in (1.0, 0.5)
    ]
    groups = main_groups(read_study(fake.write_study(tmp_path, records, snapshots=False)))
    assert [(g.name, g.c, len(g.runs)) for g in groups] == [
        ("InfoNCE, c = 1", "1", 2),
        ("InfoNCE, c = 2", "2", 2),
    ]
    looks = [g.style for g in groups]
    assert looks[0].hue == looks[1].hue
    assert looks[0].symbol != looks[1].symbol
    assert looks[0].dash != looks[1].dash


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
    names = ["InfoNCE", "IOT", "PushPull", "Neg-MMIOT", "VICReg", "BYOL"]  # as in the paper
    assert [epsilon.name(line) for line in epsilon.lines] == names


def test_a_sweep_of_k_is_one_line_and_one_of_words_is_in_order_too(tmp_path):
    records = [fake.run("iot", k, part="maps/n_classes") for k in (10, 5)]
    records += [fake.run("iot", part="maps/schedule", schedule=s) for s in ("cosine", "constant")]
    classes, words = read_sweeps(read_study(fake.write_study(tmp_path, records, snapshots=False)))
    (line,) = classes.lines
    assert list(line) == [5, 10]
    assert classes.name(line) == "IOT"
    assert words.values == ("constant", "cosine")
    assert not words.logarithmic
