"""The paper's theory as checks that run, and that fail when a loss is wrong."""

import itertools
import json
import math
import re
from functools import partial
from pathlib import Path

import pytest
import theory.__main__ as command
import torch
from theory import decoupling, frames, lemmas, quadrature, setting
from theory.setting import Setting
from theory.statements import BY_NAME, verify
from torch.nn.functional import normalize

from tricouple.losses import IOT, InfoNCE, NegMMIOT, PushPull
from tricouple_lab import cli

ROOT = Path(__file__).parents[1]
STORED = ROOT / "results/theory"
PAGES = [ROOT / f"docs/{name}.md" for name in ("theory", "quadrature")]
# The decoupling at full size takes longer: it is in the stored run, and smaller below.
HOLDING = [name for name, one in BY_NAME.items() if one.about["bound"] and name != "decoupling"]


def outcomes_of(*names, **replaced):
    return {one["name"]: one for one in verify(Setting(**replaced), names)}


def rows_of(name):
    return outcomes_of(name)[name]["rows"]


SMALL = {
    frames: {"SIZES": ((3, 2, 2), (10, 9, 4))},
    lemmas: {"SIZES": ((3, 2),), "DRAWS": 4, "SHARPNESSES": (2.0, 100.0),
             "LINEAR_SIZES": ((2, 3), (10, 4)), "SHAPED_SIZES": ((2, 3),),
             "ETF_SIZES": ((3, 2),), "BALANCED": ((2, 2, 2),)},
    decoupling: {"IDENTITY_SIZES": ((4, 3, 2),), "IDENTITY_SHARPNESSES": (2.0,),
                 "SIZES": (16, 64), "LARGE": 64, "SHARPNESSES": (3.0, 100.0)},
}  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """Fewer and smaller problems: those of full size are in the stored run."""
    setting.results.cache_clear()
    for module, values in SMALL.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    yield
    setting.results.cache_clear()


# What holds


@pytest.mark.usefixtures("small")
def test_every_statement_with_a_bound_holds_and_measures_the_same_alone():
    outcomes = outcomes_of(*HOLDING, seed=1)
    verdicts = {name: outcome["verdict"] for name, outcome in outcomes.items()}
    assert verdicts == dict.fromkeys(HOLDING, "holds")
    alone = outcomes_of("symmetrisation", seed=1)["symmetrisation"]
    assert alone == outcomes["symmetrisation"]


# Wrong losses fail


def changed(change):
    """Neg-MMIOT whose value is changed by a function of it, the vectors and the labels."""

    def make(**options):
        criterion = NegMMIOT(**options)
        return lambda z, labels: change(criterion(z, labels), z, labels)

    return make


def nan_at_the_optimum(value, z, labels):
    deviation = (setting.gram(z) - setting.etf_gram(labels)).abs().max()
    return value * math.nan if deviation < 1e-5 else value


NAN_FOR_LARGE_BATCHES = changed(lambda value, z, _: z.sum() * math.nan if len(z) > 30 else value)
NAN_AT_THE_OPTIMUM = changed(nan_at_the_optimum)
STEEPER = changed(lambda value, *_: 1.01 * value - 0.01 * value.detach())  # the right value


def negatives_ignored(temperature, epsilon, shaping="linear", **rest):
    return IOT(epsilon=temperature * epsilon, **rest)


def lopsided(**options):
    return lambda z, labels: PushPull(**options)(z, labels) + 0.01 * normalize(z, dim=1)[0].sum()


def wrong_sharpness(temperature, **rest):
    return NegMMIOT(temperature=1.01 * temperature, **rest)


def info_nce(temperature, epsilon, **rest):
    return InfoNCE(temperature=temperature * epsilon)


def push_pull(epsilon, extra=0.0, **rest):
    criterion = PushPull(epsilon_pos=epsilon, epsilon_neg=epsilon, **rest)
    return lambda z, labels: criterion(z, labels) + extra


ABOUT_THE_VALUE = {"convexity", "symmetrisation", "closed-form", "monotonicity", "etf"}
AT_LARGE = {"homogeneity", "closed-form", "monotonicity", "etf"}


@pytest.mark.parametrize(
    ("losses", "failing"),
    [
        ({"neg_mmiot": changed(lambda value, *_: -value)}, ABOUT_THE_VALUE | {"homogeneity"}),
        ({"neg_mmiot": negatives_ignored}, ABOUT_THE_VALUE),
        ({"neg_mmiot": wrong_sharpness}, ABOUT_THE_VALUE | {"stationarity", "decoupling"}),
        ({"neg_mmiot": STEEPER}, {"stationarity", "envelope"}),
        ({"push_pull": lopsided}, {"stationarity"}),
        ({"neg_mmiot": info_nce}, ABOUT_THE_VALUE | {"stationarity", "decoupling"}),
        ({"neg_mmiot": push_pull}, ABOUT_THE_VALUE | {"stationarity"}),
        ({"neg_mmiot": partial(push_pull, extra=0.01)}, ABOUT_THE_VALUE),
        ({"neg_mmiot": changed(lambda value, *_: value + 1e-3)}, ABOUT_THE_VALUE),
        ({"neg_mmiot": NAN_FOR_LARGE_BATCHES}, AT_LARGE | {"decoupling"}),
        ({"neg_mmiot": NAN_AT_THE_OPTIMUM}, AT_LARGE | {"stationarity"}),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_wrong_loss_fails(losses, failing, monkeypatch):
    monkeypatch.setattr(decoupling, "BATCHES", decoupling.BALANCED)
    outcomes = outcomes_of(*failing, **losses)
    assert {name for name, one in outcomes.items() if one["verdict"] == "fails"} == failing


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_worst_of_numbers_overlooks_none(bad):
    for values in itertools.permutations((-1.0, -2.0, bad)):
        assert setting.worst(values) == math.inf


@pytest.mark.usefixtures("small")
def test_neg_mmiot_with_linear_shaping_is_push_pull_in_balanced_batches():
    outcome = outcomes_of("decoupling")["decoupling"]
    assert outcome["verdict"] == "holds"
    for row in outcome["rows"]:
        if row["ψ"] == "linear" and row["N"] == 64 and row["sweeps"] == "converged":
            assert (row["c = 100"] < 1e-3) is (row["batch"] != "unbalanced")
        if row["ψ"] == "log-sigmoid":
            assert row["c = 100"] > 1
            assert row["smallest cosine"] < 0.5


def test_the_identity_needs_its_last_term_and_the_excluded_triplets():
    labels = setting.class_labels((4, 3, 2))
    z = setting.random_unit(9, 4, torch.Generator().manual_seed(0))
    target = setting.triplet_target(labels)
    whole, parts = decoupling.divergences(z @ z.T, 0.1, target, "uniform")
    assert parts[2] > 0.01
    assert whole == pytest.approx(parts[0] + parts[1] - parts[2], abs=1e-10)
    cost = setting.triplet_cost(z @ z.T, torch.neg)
    assert abs(float(setting.divergence(cost, 0.1, target, "uniform")) - whole) > 1e-4


def test_other_pairs_of_losses_coincide_where_their_settings_say_so():
    for row in rows_of("coincidences"):
        if row["losses"].startswith("DBOT"):
            # No column sum reaches a bound until the loss is sharp.
            assert (row["relative difference"] < 1e-12) is (row["c"] <= 3)
        else:
            assert row["relative difference"] < 0.02


def test_sweeps_that_do_not_converge_are_an_error(monkeypatch):
    monkeypatch.setattr(setting, "SWEEPS", (5, 10))
    cost = torch.randn((5, 5, 5), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(ValueError, match="no convergence in 10 sweeps"):
        setting.log_plan(cost, 1e-3, cost, "uniform")


@pytest.mark.parametrize(("within", "sizes", "size"), [(False, (2, 2, 2), 48), (True, (3, 2), 12)])
def test_averages_by_pattern_are_those_over_a_group(within, sizes, size):
    labels = setting.class_labels(sizes)
    kept = (lambda y: y) if within else (lambda y: y[:, None] == y)
    n = len(labels)
    tensor = torch.randn((n, n, n), generator=torch.Generator().manual_seed(0)).double()
    orders = map(list, itertools.permutations(range(n)))
    group = [order for order in orders if torch.equal(kept(labels[order]), kept(labels))]
    assert len(group) == size
    expected = sum(tensor[order][:, order][:, :, order] for order in group) / len(group)
    distinct = setting.distinct(n, 3)
    found = lemmas.average(tensor, labels, within=within)
    assert torch.allclose(found[distinct], expected[distinct])


@pytest.mark.parametrize("marginals", ["uniform", "target"])
def test_curvature_equals_autograd(marginals):
    target = setting.triplet_target(setting.class_labels((3, 2)))
    allowed = setting.distinct(5, 3)
    cost = torch.randn((5, 5, 5), generator=torch.Generator().manual_seed(3)).double() / 4

    def value(entries):
        changed = cost.masked_scatter(allowed, entries)
        return setting.divergence(changed, 0.5, target, marginals)

    expected = torch.autograd.functional.hessian(value, cost[allowed])
    assert torch.allclose(lemmas.hessian(cost, 0.5, target, marginals), expected, atol=1e-10)


def test_in_too_few_dimensions_the_optimum_is_not_two_distance(monkeypatch):
    monkeypatch.setattr(frames, "LOW_SIZE", (5, 3))
    monkeypatch.setattr(frames, "LOW_DIMS", (3, 4))
    low, enough = rows_of("low-dimension")
    assert low["loss above closed form"] > 1e-3
    assert low["loss below total collapse"] > 0.1
    assert low["spread of β"] > 0.1
    assert enough["spread of β"] < 1e-5


def test_unbalanced_classes_break_both_properties_unless_the_marginals_are_the_target_s(
    monkeypatch,
):
    monkeypatch.setattr(lemmas, "UNBALANCED_SIZES", ((4, 2),))
    uniform, target = rows_of("unbalanced-convexity")
    assert uniform["smallest curvature"] < -0.01
    assert uniform["excess over chord there"] > 1e-3
    assert target["smallest curvature"] > -1e-12
    for row in rows_of("unbalanced-envelope"):
        assert row["library, implicit"] < 1e-10
        assert row["library, unrolled"] < 1e-10
        assert (row["library, envelope"] > 0.05) is (row["marginals"] == "uniform")


def test_too_large_a_step_is_caught(monkeypatch):
    right = quadrature.rule_of
    monkeypatch.setattr(quadrature, "rule_of", lambda m, tol: right(m, 1e3 * tol))
    assert outcomes_of("quadrature-kernel", seed=2)["quadrature-kernel"]["verdict"] == "fails"


# The command and the stored results


def test_command_writes_numbers_tables_and_figures_and_reads_them(tmp_path, capsys):
    words = ["--only", "quadrature-kernel,unbalanced-envelope", "--seed", "3"]
    assert cli.main(["verify", *words, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 statements hold; 1 observations." in shown
    report = json.loads((tmp_path / "theory.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in report["statements"]] == words[1].split(",")
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == command.tables(report)
    assert (tmp_path / "quadrature-error.png").read_bytes()[1:4] == b"PNG"
    assert cli.main(["verify", "--read", str(tmp_path / "theory.json")]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == shown.splitlines()[:4]


def test_the_command_exits_with_1_and_names_what_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "Setting", partial(Setting, neg_mmiot=info_nce))
    assert cli.main(["verify", "--only", "closed-form", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"^closed-form .* fails +Lemma C\.1: At two distances", shown, re.MULTILINE)
    assert "0 of 1 statements" in shown
    content = json.loads((tmp_path / "theory.json").read_text(encoding="utf-8"))
    assert [row["verdict"] for row in content["statements"]] == ["fails"]
    assert command.main(["--read", str(tmp_path / "theory.json")]) == 1


def test_list_names_every_statement_and_its_place_in_the_paper(capsys):
    assert cli.main(["verify", "--list"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == list(BY_NAME)
    for place in ("Lemma 3.1", "Lemma 3.2", "Lemma 3.3", "Theorem 3.4", "Proposition 3.5"):
        assert f"({place})" in shown
    assert cli.main(["verify", "--list", "--only", "quadrature"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--only", "gravity"], "gravity: no such statement"),
        (["--read", "missing.json"], "missing.json: cannot be read (No such file"),
        (["--read", "file.txt"], "file.txt: not the theory.json of a verification"),
        (["--read", "list.json"], "list.json: not the theory.json of a verification"),
    ],
)
def test_user_errors_are_one_line(words, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file.txt").write_text("just text")
    Path("list.json").write_text('{"seed": 0, "statements": [1]}')
    assert cli.main(["verify", *words]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_stored_results_cover_every_statement_none_fails_and_pages_include_them():
    report = json.loads((STORED / "theory.json").read_text(encoding="utf-8"))
    statements = {one["name"]: one for one in report["statements"]}
    assert list(statements) == list(BY_NAME)
    assert all(one["verdict"] != "fails" for one in statements.values())
    for name, one in statements.items():
        assert BY_NAME[name].about.items() <= one.items()
    tables = (STORED / "README.md").read_text(encoding="utf-8")
    assert tables == command.tables(report)
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    pattern = r":start-after: (<!-- [a-z-]+ -->)\n:end-before: (<!-- /[a-z-]+ -->)"
    included = re.findall(pattern, text)
    assert len(included) >= 15
    for start, end in included:
        assert start[5:] == end[6:]
        assert tables.count(start) == tables.count(end) == 1
    for name, *_ in command.FIGURES.values():
        assert f"../results/theory/{name}.png" in text
        assert (STORED / f"{name}.png").read_bytes()[1:4] == b"PNG"
    for ours, kept in zip(
        rows_of("quadrature-kernel"), statements["quadrature-kernel"]["rows"], strict=True
    ):
        assert ours["terms Q"] == kept["terms Q"]
        assert ours["error of K"] == pytest.approx(kept["error of K"], rel=0.01, abs=1e-13)
