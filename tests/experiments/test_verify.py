"""The paper's theory as checks that run, and that fail when a loss is wrong."""

import dataclasses
import itertools
import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from tricouple import geometry
from tricouple.losses import IOT, InfoNCE, NegMMIOT, PushPull
from tricouple_lab import cli
from tricouple_lab.experiments.verify import command, decoupling, frames, lemmas, tensors
from tricouple_lab.experiments.verify.frames import descend_from_random
from tricouple_lab.experiments.verify.setting import Losses, Outcome, Report, Setting, chart, worst
from tricouple_lab.experiments.verify.statements import BY_ID, STATEMENTS, select, verify
from tricouple_lab.report.chart import Line
from tricouple_lab.report.page import page

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results/theory/theory.json"
PAGES = ("theory", "quadrature", "shaping")
DOCS = [(ROOT / f"docs/{name}.md").read_text("utf-8") for name in PAGES]
# The decoupling at full size takes longer: it is in the stored run, and smaller below.
HOLDING = [one.id for one in STATEMENTS if one.tolerance is not None and one.id != "decoupling"]
FACTS = {"cores": 2, "cpu": "a processor", "date": "2024-01-02", "versions": {"torch": "2"}}


def outcomes_of(*names: str, seed: int = 0, **losses) -> dict[str, Outcome]:
    return {outcome.id: outcome for outcome in verify(Losses(**losses), seed=seed, only=names)}


# --- what holds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_every_statement_that_the_paper_proves_holds(seed):
    outcomes = outcomes_of(*HOLDING, seed=seed)
    assert {name: outcome.verdict for name, outcome in outcomes.items()} == dict.fromkeys(
        HOLDING, "holds"
    )


@pytest.mark.parametrize(("n_classes", "per_class", "dim"), [(10, 10, 16), (4, 5, 3), (5, 2, 20)])
def test_free_vectors_end_at_the_simplex_etf_and_its_loss(n_classes, per_class, dim):
    labels = tensors.balanced_labels(n_classes, per_class)
    criterion = NegMMIOT(temperature=1.0, epsilon=0.5)
    (end,) = descend_from_random(criterion, labels, dim, torch.Generator().manual_seed(0))
    optimum = geometry.etf_loss(n_classes, per_class, temperature=1.0, epsilon=0.5)
    assert end.distances.alpha == pytest.approx(1.0, abs=1e-3)
    assert end.distances.beta == pytest.approx(-1 / (n_classes - 1), abs=1e-3)
    assert end.loss == pytest.approx(optimum, abs=1e-4)
    assert end.collapse.nc2_deviation < 1e-3
    assert end.lowest >= optimum - 1e-12
    assert end.losses[0] > optimum + 0.1


def test_the_list_covers_the_theory():
    assert len(STATEMENTS) >= 8
    references = " ".join(statement.reference for statement in STATEMENTS)
    for name in ("Lemma 3.1", "Lemma 3.2", "Lemma 3.3", "Theorem 3.4", "Proposition 3.5"):
        assert name in references


def test_a_statement_measures_the_same_alone_and_in_company():
    together = outcomes_of("envelope", "symmetrisation")
    assert outcomes_of("symmetrisation")["symmetrisation"] == together["symmetrisation"]


def test_one_word_names_all_statements_about_the_quadrature():
    names = [f"quadrature-{part}" for part in ("kernel", "poisson", "cost", "loss")]
    assert [statement.id for statement in select(["quadrature"])] == names


# --- wrong losses are found out ------------------------------------------------------------------


class FlippedSign(NegMMIOT):
    def compute(self, batch):
        return -super().compute(batch)


class LopsidedPushPull(PushPull):
    def compute(self, batch):
        return super().compute(batch) + 0.01 * normalize(batch.anchors, dim=1)[0].sum()


class GradientWithoutPlan(NegMMIOT):
    """Right value; the gradient forgets that the plan moves with the vectors."""

    def compute(self, batch):
        target = batch.relation.triplets()
        margin = batch.inner(target.contrast) / (self.temperature * self.epsilon)
        return super().compute(batch).detach() - (margin - margin.detach())


def changed(change):
    """Neg-MMIOT whose value is changed by a function of it, the vectors and the labels."""

    def make(**options):
        criterion = NegMMIOT(**options)
        return lambda z, labels: change(criterion(z, labels), z, labels)

    return make


def nan_at_the_optimum(value, z, labels):
    deviation = (tensors.gram(z) - tensors.etf_gram(labels)).abs().max()
    return value * math.nan if deviation < 1e-5 else value


NAN_FOR_LARGE_BATCHES = changed(lambda value, z, _: z.sum() * math.nan if len(z) > 30 else value)
NAN_AT_THE_OPTIMUM = changed(nan_at_the_optimum)


def negatives_ignored(temperature, epsilon, shaping="linear", **rest):
    return IOT(epsilon=temperature * epsilon, **rest)


def wrong_sharpness(temperature, **rest):
    return NegMMIOT(temperature=1.01 * temperature, **rest)


def info_nce(temperature, epsilon, **rest):
    return InfoNCE(temperature=temperature * epsilon)


def push_pull(epsilon, extra=0.0, **rest):
    criterion = PushPull(epsilon_pos=epsilon, epsilon_neg=epsilon, **rest)
    return lambda z, labels: criterion(z, labels) + extra


ABOUT_THE_VALUE = {"convexity", "symmetrisation", "closed-form", "monotonicity", "etf"}
OTHERS = {
    "InfoNCE": info_nce,
    "PushPull": push_pull,
    "PushPull + 0.01": partial(push_pull, extra=0.01),
    "Neg-MMIOT + 0.001": changed(lambda value, *_: value + 1e-3),
}


@pytest.mark.parametrize(
    ("losses", "failing"),
    [
        ({"neg_mmiot": FlippedSign}, ABOUT_THE_VALUE | {"homogeneity"}),
        ({"neg_mmiot": negatives_ignored}, ABOUT_THE_VALUE),
        ({"neg_mmiot": wrong_sharpness}, ABOUT_THE_VALUE | {"stationarity"}),
        ({"push_pull": LopsidedPushPull}, {"stationarity"}),
        *(({"neg_mmiot": other}, ABOUT_THE_VALUE) for other in OTHERS.values()),
        *(({"neg_mmiot": OTHERS[name]}, {"stationarity"}) for name in ("InfoNCE", "PushPull")),
        (
            {"neg_mmiot": NAN_FOR_LARGE_BATCHES},
            {"homogeneity", "closed-form", "monotonicity", "etf"},
        ),
        (
            {"neg_mmiot": NAN_AT_THE_OPTIMUM},
            {"homogeneity", "closed-form", "monotonicity", "etf", "stationarity"},
        ),
    ],
)
def test_a_wrong_loss_fails(losses, failing, monkeypatch):
    monkeypatch.setattr(frames, "SIZES", ((3, 2, 2), (10, 9, 4)))
    monkeypatch.setattr(frames, "STARTS", 1)
    outcomes = outcomes_of(*failing, **losses)
    assert {name for name, outcome in outcomes.items() if outcome.verdict == "fails"} == failing


@pytest.mark.parametrize(
    "loss",
    [NAN_FOR_LARGE_BATCHES, NAN_AT_THE_OPTIMUM, *OTHERS.values()],
    ids=["NaN for N > 30", "NaN at the optimum", *OTHERS],
)
def test_the_command_exits_with_1_and_names_what_fails(loss, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "verify", partial(verify, Losses(neg_mmiot=loss)))
    words = ["verify", "--only", "closed-form", "--out", str(tmp_path)]
    assert cli.main(words) == 1
    shown = capsys.readouterr().out
    assert "0 of 1 statements" in shown
    assert "fails: at a two-distance configuration" in shown
    content = json.loads((tmp_path / "theory.json").read_text(encoding="utf-8"))
    assert [row["verdict"] for row in content["statements"]] == ["fails"]


def test_a_residual_that_is_not_a_number_fails():
    outcome = outcomes_of("symmetrisation")["symmetrisation"]
    assert dataclasses.replace(outcome, residual=math.nan).verdict == "fails"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_worst_of_numbers_overlooks_none(bad, place):
    values = [-1.0, -2.0]
    values.insert(place, bad)
    assert worst(values) == math.inf


# --- the decoupling ------------------------------------------------------------------------------


@pytest.fixture
def small_decoupling(monkeypatch):
    monkeypatch.setattr(decoupling, "SIZES", (16, 128))
    monkeypatch.setattr(decoupling, "SHARPNESSES", (3.0, 100.0))


@pytest.mark.usefixtures("small_decoupling")
def test_neg_mmiot_with_linear_shaping_is_push_pull_in_balanced_batches():
    finding = decoupling.decoupling(Setting())
    assert finding.residual <= 1
    for row in finding.rows:
        if row["ψ"] == "linear" and row["N"] == 128 and row["sweeps"] == "converged":
            assert (row["c = 100"] < 1e-3) is (row["batch"] != "unbalanced")
        if row["ψ"] == "log-sigmoid":
            assert row["c = 100"] > 1
            assert row["smallest cosine"] < 0.5


@pytest.mark.usefixtures("small_decoupling")
@pytest.mark.parametrize("loss", [info_nce, wrong_sharpness, NAN_FOR_LARGE_BATCHES])
def test_other_losses_are_not_push_pull(loss):
    assert decoupling.decoupling(Setting(0, Losses(neg_mmiot=loss))).residual > 1


def test_the_identity_needs_its_last_term_and_the_excluded_triplets():
    rows = decoupling.decoupling_identity(Setting()).rows
    assert max(row["KL(p̃¹‖p¹)"] for row in rows) > 0.01
    labels = tensors.class_labels((4, 3, 2))
    z = tensors.random_unit(9, 4, torch.Generator().manual_seed(0))
    target = tensors.triplet_target(labels)
    cost = tensors.triplet_cost(z @ z.T, tensors.SHAPINGS["linear"])
    imposed = tensors.imposed_marginals(cost)
    whole, parts = decoupling.divergences(z @ z.T, 0.1, target, imposed)
    assert whole == pytest.approx(parts[0] + parts[1] - parts[2], abs=1e-10)
    assert abs(float(tensors.divergence(cost, 0.1, target)) - whole) > 1e-4


def test_other_pairs_of_losses_coincide_where_their_settings_say_so():
    for row in decoupling.coincidences(Setting()).rows:
        if str(row["losses"]).startswith("DBOT"):
            # No column sum reaches a bound until the loss is sharp.
            assert (row["relative difference"] < 1e-12) is (row["c"] <= 3)
        else:
            assert row["relative difference"] < 0.02


# --- the tools of the experiments ----------------------------------------------------------------


def test_sweeps_that_do_not_converge_are_an_error():
    cost = torch.randn((5, 5, 5), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(ValueError, match="no convergence in"):
        tensors.solve(cost, 1e-3, tensors.imposed_marginals(cost))


@pytest.mark.parametrize(
    ("average", "sizes", "kept", "n_permutations"),
    [
        (tensors.average_over_symmetries, (2, 2, 2), lambda y: y[:, None] == y, 6 * 2**3),
        (tensors.average_within_classes, (3, 2), lambda y: y, 6 * 2),
    ],
)
def test_averages_by_pattern_are_those_over_a_group(average, sizes, kept, n_permutations):
    labels = tensors.class_labels(sizes)
    n = len(labels)
    tensor = torch.randn((n, n, n), generator=torch.Generator().manual_seed(0)).double()
    orders = map(list, itertools.permutations(range(n)))
    group = [order for order in orders if torch.equal(kept(labels[order]), kept(labels))]
    assert len(group) == n_permutations
    expected = sum(tensor[order][:, order][:, :, order] for order in group) / len(group)
    distinct = tensors.distinct(n, 3)
    assert torch.allclose(average(tensor, labels)[distinct], expected[distinct])


@pytest.mark.parametrize("marginals", ["uniform", "target"])
def test_curvature_equals_autograd(marginals):
    labels = tensors.class_labels((3, 2))
    target = tensors.triplet_target(labels)
    imposed = tensors.imposed_marginals(target, marginals)
    allowed = tensors.distinct(5, 3)
    cost = torch.randn((5, 5, 5), generator=torch.Generator().manual_seed(3)).double()

    def value(entries):
        return tensors.divergence(cost.masked_scatter(allowed, entries), 0.5, target, imposed)

    expected = torch.autograd.functional.hessian(value, cost[allowed])
    actual = tensors.hessian(cost, 0.5, target, imposed)
    assert torch.allclose(actual, expected, atol=1e-10)


def test_impossible_gram_matrices_are_refused():
    labels = tensors.balanced_labels(3, 2)
    with pytest.raises(ValueError, match="gram must be positive semi-definite"):
        tensors.vectors(tensors.two_distance_gram(labels, 1.0, -0.9))


# --- observations, at a small size ---------------------------------------------------------------


def test_in_too_few_dimensions_the_optimum_is_not_two_distance(monkeypatch):
    monkeypatch.setattr(frames, "LOW_CLASSES", 5)
    monkeypatch.setattr(frames, "LOW_DIMS", (3, 4))
    low, enough = frames.low_dimension(Setting()).rows
    assert low["loss above closed form"] > 1e-3
    assert low["loss below total collapse"] > 0.1
    assert low["spread of β"] > 0.1
    assert enough["spread of β"] < 1e-5


def test_every_loss_reaches_the_etf_with_balanced_classes(monkeypatch):
    monkeypatch.setattr(frames, "STARTS", 1)
    rows = frames.baselines(Setting()).rows
    assert [row["loss"] for row in rows] == ["Neg-MMIOT", "PushPull", "IOT", "InfoNCE"]
    assert all(row["Gram deviation"] < 1e-5 for row in rows)


def test_unbalanced_classes_break_convexity_unless_the_marginals_are_the_target_s(monkeypatch):
    monkeypatch.setattr(lemmas, "UNBALANCED_SIZES", ((4, 2),))
    uniform, target = lemmas.unbalanced_convexity(Setting()).rows
    assert uniform["smallest curvature"] < -0.01
    assert uniform["excess over chord there"] > 1e-3
    assert target["smallest curvature"] > -1e-12


def test_unbalanced_classes_break_the_envelope_unless_the_marginals_are_the_target_s():
    for row in outcomes_of("unbalanced-envelope")["unbalanced-envelope"].rows:
        assert row["library, implicit"] < 1e-10
        assert row["library, unrolled"] < 1e-10
        assert (row["library, envelope"] > 0.05) is (row["marginals"] == "uniform")


# --- the record ----------------------------------------------------------------------------------


def small_report(**changes) -> Report:
    lines = Line("s", (1.0, 2.0), (0.0, 1e-3)), Line("p", (1.5,), (0.1,), points=True)
    figure = chart("A < B", ("x", "y"), lines, "Two points.", log="y")
    rows = ({"K": 3, "gap": 0.123456},)
    outcome = Outcome(
        id="etf", words="words", reference="Theorem", kind="proved by the paper",
        residual_is="gap", residual=0.5, tolerance=1.0, rows=rows, figure=figure,
    )  # fmt: skip
    return Report(7, (dataclasses.replace(outcome, **changes),), FACTS)


@pytest.mark.parametrize("residual", [0.5, math.inf])
def test_report_survives_json(residual):
    report = small_report(residual=residual)
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seed": 0, "statements": [1]}'])
def test_other_json_is_refused(text):
    with pytest.raises(ValueError, match="not the JSON of a verification"):
        Report.from_json(text)


def test_page_shows_every_statement_in_words_and_numbers():
    text = page([command.article(small_report())])
    assert "A &lt; B" in text
    assert 'aria-label="Two points."' in text
    assert "0.123" in text
    assert "Content-Security-Policy" in text


def test_tables_go_into_the_blocks_of_a_page():
    before = "x\n<!-- verify:etf -->\nold\n<!-- /verify -->\ny\n"
    after = command.fill(before, small_report())
    assert after == (
        "x\n<!-- verify:etf -->\n| K | gap |\n| --: | --: |\n| 3 | 0.123 |\n<!-- /verify -->\ny\n"
    )
    assert command.fill(after, small_report()) == after


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no block", "it has no block"),
        ("<!-- verify:gravity -->\n<!-- /verify -->", "does not have the statement 'gravity'"),
    ],
)
def test_pages_without_a_fitting_block_are_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        command.fill(text, small_report())


# --- the whole command ---------------------------------------------------------------------------


def test_command_prints_verdicts_and_writes_numbers_table_and_figures(tmp_path, capsys):
    out = tmp_path / "new"
    words = ["verify", "--only", "envelope,symmetrisation", "--seed", "3", "--out", str(out)]
    threads = torch.get_num_threads()
    assert cli.main(words) == 0
    assert torch.get_num_threads() == threads
    assert "2 of 2 statements" in capsys.readouterr().out
    report = Report.from_json((out / "theory.json").read_text(encoding="utf-8"))
    assert report.seed == 3
    assert [outcome.id for outcome in report.outcomes] == ["symmetrisation", "envelope"]
    assert {"date", "command", "commit", "cpu", "versions"} <= set(report.provenance)
    assert (out / "README.md").read_text(encoding="utf-8") == command.readme(report)
    assert (out / "index.html").read_text(encoding="utf-8") == page([command.article(report)])


def test_earlier_run_is_read_and_put_into_a_page(tmp_path, capsys):
    (tmp_path / "theory.json").write_text(small_report().to_json(), encoding="utf-8")
    docs = tmp_path / "theory.md"
    docs.write_text("<!-- verify:conditions -->\n<!-- /verify -->", encoding="utf-8")
    words = ["verify", "--read", str(tmp_path / "theory.json"), "--docs", str(docs)]
    assert cli.main(words) == 0
    assert "Seed 7, float64, 2 cores" in docs.read_text(encoding="utf-8")
    assert "etf" in capsys.readouterr().out


def test_list_names_every_statement(capsys):
    assert cli.main(["verify", "--list"]) == 0
    shown = capsys.readouterr().out
    for name in BY_ID:
        assert name[:12] in shown


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--only", "gravity"], "no statement is called gravity: choose from convexity"),
        (["--read", "missing.json"], "cannot read missing.json: No such file"),
        (["--read", "file.txt"], "cannot read file.txt: not the JSON of a verification"),
        (["--out", "file.txt"], "cannot write file.txt"),
        (["--read", "theory.json", "--docs", "file.txt"], "cannot write into file.txt: it has no"),
    ],
)
def test_user_errors_are_one_line(words, complaint, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    Path("file.txt").write_text("just text")
    Path("theory.json").write_text(small_report().to_json(), encoding="utf-8")
    assert complaint in refused("verify", *words)


# --- the stored results --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored() -> Report:
    return Report.from_json(STORED.read_text(encoding="utf-8"))


def test_stored_results_cover_every_statement_and_none_fails(stored):
    assert [outcome.id for outcome in stored.outcomes] == list(BY_ID)
    assert not stored.failed
    for outcome in stored.outcomes:
        statement = BY_ID[outcome.id]
        for name in ("words", "reference", "kind", "residual_is", "tolerance"):
            assert getattr(outcome, name) == getattr(statement, name)


def test_stored_table_and_documentation_show_the_stored_numbers(stored):
    readme = STORED.with_name("README.md").read_text(encoding="utf-8")
    assert readme == command.readme(stored)
    for docs in DOCS:
        assert docs == command.fill(docs, stored)


def test_documentation_shows_the_charts_that_are_drawn(stored, tmp_path):
    drawn = [path.name for path in command.draw(stored, tmp_path)]
    assert drawn == list(command.PICTURES.values())
    for name in drawn:
        assert any(f"assets/{name}" in text for text in DOCS)
        assert (ROOT / "docs/assets" / name).read_bytes()[1:4] == b"PNG"
        assert (tmp_path / name).read_bytes()[1:4] == b"PNG"
