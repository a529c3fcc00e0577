"""Studies: plans that are kept, sharpness chosen fairly, verdicts that follow from the runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from scipy import stats
from torch import Tensor

import tricouple as tc
from tricouple_lab.cli import main
from tricouple_lab.data.images.files import DataError
from tricouple_lab.data.texts import load_texts
from tricouple_lab.evaluation.probe import nearest_mean
from tricouple_lab.experiments.runs.record import Store
from tricouple_lab.experiments.studies.command import STUDIES
from tricouple_lab.experiments.studies.findings import paired
from tricouple_lab.experiments.studies.hubs import Hubs
from tricouple_lab.experiments.studies.length import Length
from tricouple_lab.experiments.studies.methods import (
    METHODS,
    RINCE,
    Budget,
    ClassAveraged,
    class_accuracies,
)
from tricouple_lab.experiments.studies.noise import Noise, with_noise
from tricouple_lab.experiments.studies.plan import (
    CHOOSE,
    FINAL,
    Conduct,
    Plan,
    Results,
    Study,
    Trial,
    Verdict,
    describe,
    open_study,
)
from tricouple_lab.experiments.studies.tail import OURS, Tail, long_tail
from tricouple_lab.options import CommandError
from tricouple_lab.provenance import collect_provenance

PLACE = {"data": "mixture"}


class Peak(Study):
    """A study whose runs know the answer: accuracy falls with the distance of log c from a peak."""

    name, title, hours = "peak", "Peak", "none"
    peak = 100.0

    def plan(self, scale: str) -> Plan:
        return Plan(
            hypothesis="there is a peak",
            refuted="there is none",
            conditions=(PLACE,),
            methods=("infonce", "iot"),
            sharpness=(3.0, 10.0),
            chosen_by="height",
            seeds=(0, 1),
        )

    def measure(self, trial: Trial, budget: Budget) -> dict[str, float]:
        if trial.sharpness > 500:
            raise FloatingPointError("diverged")
        gap = torch.tensor(trial.sharpness / self.peak).log().abs()
        return {"height": 1.0 - 0.1 * float(gap)}

    def judge(self, plan: Plan, results: Results) -> Verdict:
        return Verdict("open", [], [])


def conduct(folder: Path, study: Study) -> Conduct:
    plan, origin = study.plan("cpu"), collect_provenance()
    return Conduct(study, plan, open_study(folder, study, plan, "cpu", origin), origin)


def test_sharpness_is_chosen_on_other_seeds_and_a_grid_is_extended_until_its_best_is_inside(
    tmp_path: Path,
) -> None:
    records = list(conduct(tmp_path, Peak()).go(PLACE, "iot"))
    choosing = [r["config"] for r in records if r["part"] == CHOOSE]
    final = [r["config"] for r in records if r["part"] == FINAL]
    assert sorted({c["sharpness"] for c in choosing}) == [3.0, 10.0, 31.6, 99.9, 316.0]
    assert {c["seed"] for c in choosing}.isdisjoint(c["seed"] for c in final)
    assert [(c["sharpness"], c["seed"]) for c in final] == [(99.9, 0), (99.9, 1)]


def test_a_study_goes_on_where_it_was_and_diverged_runs_count_as_nothing(tmp_path: Path) -> None:
    study = Peak()
    study.peak = 400.0
    first = conduct(tmp_path, study).go(PLACE, "iot")
    kept = [next(first)["id"] for _ in range(4)]
    rest = list(conduct(tmp_path, study).go(PLACE, "iot"))
    ids = [*kept, *(record["id"] for record in rest)]
    assert len(set(ids)) == len(ids) == len(Store(tmp_path).records())
    assert [r["status"] for r in rest if r["config"]["sharpness"] > 500] == ["diverged"] * 3
    assert rest[-1]["config"]["sharpness"] == 316.0
    assert list(conduct(tmp_path, study).go(PLACE, "iot")) == []


def test_a_plan_is_not_changed_under_its_results(tmp_path: Path) -> None:
    study = Peak()
    conduct(tmp_path, study)
    changed = replace(study.plan("cpu"), seeds=(5, 6))
    with pytest.raises(CommandError, match=r"seeds \[0, 1\] → \[5, 6\].*a new plan"):
        open_study(tmp_path, study, changed, "cpu", collect_provenance())


def test_every_study_has_a_hypothesis_and_what_would_refute_it_and_ten_seeds_where_it_chooses() -> (
    None
):
    for study in STUDIES.values():
        plan = study.plan("cpu")
        assert plan.hypothesis.endswith(".")
        assert plan.refuted.endswith(".")
        assert set(plan.methods) <= set(METHODS)
        if plan.chosen_by:
            assert len(plan.seeds) == 10
            assert len(plan.choosing_seeds) == 3
            assert not set(plan.seeds) & set(plan.choosing_seeds)
        ids = {Trial(c, m, 1.0, 0, FINAL).id for c in plan.conditions for m in plan.methods}
        assert len(ids) == len(plan.conditions) * len(plan.methods)


@pytest.mark.parametrize("name", list(STUDIES))
def test_a_first_look_at_a_study_takes_seconds_and_ends_with_a_verdict(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["study", name, "--scale", "smoke", "--out", str(tmp_path), "--allow-dirty"]
    assert main(words) == 0
    page = (tmp_path / "verdict.md").read_text()
    plan = STUDIES[name].plan("smoke")
    assert plan.hypothesis in page
    assert plan.refuted in page
    records = Store(tmp_path).records()
    assert {r["config"]["method"] for r in records.values()} == set(plan.methods)
    # The verdict comes from the runs alone: a second look runs nothing and says the same.
    assert main(["study", name, "--verdict", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "verdict.md").read_text() == page
    assert Store(tmp_path).records() == records
    assert "verdict: " in capsys.readouterr().out


def test_bad_words_of_a_study_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "nosie"]) == 2
    assert "no study 'nosie': choose one of three-way" in capsys.readouterr().err
    assert main(["study", "noise", "--verdict", "--out", str(tmp_path)]) == 2
    assert "holds no study that could be judged" in capsys.readouterr().err
    assert main(["study", "--list"]) == 0
    assert "refuted if" in capsys.readouterr().out


def final_runs(
    study: Study, measure: str, value: Callable[[dict[str, float], str, int], float]
) -> list[dict[str, object]]:
    """Final runs with a value for every condition, method and seed of a plan."""
    plan = study.plan("cpu")
    return [
        {
            "part": FINAL,
            "config": {"condition": describe(c), "method": m, "sharpness": 10.0, "seed": seed},
            "metrics": {measure: value(c, m, seed)},
        }
        for c in plan.conditions
        for m in plan.methods
        for seed in plan.seeds
    ]


@pytest.mark.parametrize(("bounded", "word"), [(0.2, "supported"), (0.5, "refuted")])
def test_the_verdict_on_noise_follows_from_the_slopes(bounded: float, word: str) -> None:
    study = Noise()
    slopes = {m: bounded if METHODS[m].bounded else 0.4 for m in study.plan("cpu").methods}
    # Accuracy falls with noise as told, with a little difference of seeds.
    runs = final_runs(
        study,
        "nearest_mean",
        lambda c, m, seed: 0.8 - (slopes[m] - 0.001 * (seed % 3)) * c["noise"],
    )
    verdict = study.judge(study.plan("cpu"), Results(runs))
    assert verdict.word == word
    assert len(verdict.sentences) == 5
    assert study.judge(study.plan("cpu"), Results(runs[:-1])).word == "open"


@pytest.mark.parametrize(("gain", "words"), [(1.0, "open open supported supported"),
                                             (-1.0, "open refuted refuted refuted")])  # fmt: skip
def test_the_verdict_on_the_tail_waits_for_what_could_change_it(gain: float, words: str) -> None:
    study = Tail()
    plan = study.plan("cpu")
    runs = final_runs(
        study, "balanced", lambda _, m, seed: 0.5 + 0.001 * seed * (1 + gain * (m == OURS))
    )
    a_set = len(plan.methods) * len(plan.seeds)
    verdicts = [study.judge(plan, Results(runs[: n * a_set])) for n in (1, 2, 3, 4)]
    assert [verdict.word for verdict in verdicts] == words.split()
    assert "1 of 4 sets are complete" in verdicts[0].sentences[-1]
    assert len(verdicts[-1].sentences) == 4


def test_noise_changes_the_stated_share_within_its_group_and_never_to_the_same_class() -> None:
    labels, groups = torch.arange(20).repeat(10), torch.arange(20) // 5
    noisy = with_noise(labels, groups, 0.4, seed=3)
    changed = noisy != labels
    assert int(changed.sum()) == 80
    assert torch.equal(groups[noisy], groups[labels])
    assert not torch.equal(with_noise(labels, groups, 0.4, seed=4), noisy)
    everywhere = with_noise(labels, groups * 0, 0.4, seed=3)
    assert bool((groups[everywhere] != groups[labels]).any())


def test_a_long_tail_has_the_stated_ratio_and_other_large_classes_for_another_seed() -> None:
    labels = torch.arange(10).repeat(100)
    sizes = [labels[long_tail(labels, 50, seed)].bincount() for seed in (0, 1)]
    assert sizes[0].sort().values.tolist() == sizes[1].sort().values.tolist()
    assert (int(sizes[0].max()), int(sizes[0].min())) == (100, 2)
    assert not torch.equal(*sizes)


def test_paired_differences_are_those_of_the_paired_t_test() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 10, generator=generator, dtype=torch.float64)
    found, known = paired(first.tolist(), second.tolist()), stats.ttest_rel(first, second)
    interval = known.confidence_interval(0.95)
    assert found.p == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 5, generator=generator, dtype=torch.float64), torch.arange(12) % 5


def test_rince_is_its_formula() -> None:
    z, labels = batch()
    s = torch.nn.functional.normalize(z, dim=1)
    e = torch.exp(4.0 * s @ s.T)
    terms = []
    for i in range(12):
        negatives = e[i][labels != labels[i]].sum()
        for p in range(12):
            if p != i and labels[p] == labels[i]:
                every = (0.025 * (e[i, p] + negatives)) ** 0.5
                terms.append((every - e[i, p] ** 0.5) / 0.5)
    expected = torch.stack(terms).mean() * torch.exp(torch.tensor(-0.5 * 4.0))
    torch.testing.assert_close(RINCE(4.0)(z, labels), expected)


def test_class_averaged_infonce_is_its_formula_and_infonce_when_every_class_is_seen_once() -> None:
    z, labels = batch()
    s = torch.nn.functional.normalize(z, dim=1)
    e = torch.exp(4.0 * s @ s.T)
    terms = []
    for i in range(12):
        others = [j for j in range(12) if j != i]
        of = {k: [j for j in others if labels[j] == k] for k in range(5)}
        below = sum(e[i, own].mean() for own in of.values() if own)
        own = of[int(labels[i])]
        terms.append(torch.stack([-(e[i, p] / below).log() for p in own]).mean())
    torch.testing.assert_close(ClassAveraged(4.0)(z, labels), torch.stack(terms).mean())


def test_hubness_counts_who_is_retrieved() -> None:
    items = torch.eye(6)
    one_hub = items[0] + 0.1 * torch.eye(6)
    assert tc.geometry.hubness(items, items, k=1) == tc.geometry.Hubness(0.0, 0.0)
    found = tc.geometry.hubness(one_hub, items, k=1)
    assert found.never == pytest.approx(5 / 6)
    counts = [6, 0, 0, 0, 0, 0]
    assert found.skewness == pytest.approx(float(stats.skew(counts)))
    with pytest.raises(ValueError, match="k is 7, but there are only 6 items"):
        tc.geometry.hubness(items, items, k=7)


def test_nearest_means_and_accuracies_of_classes() -> None:
    z = torch.nn.functional.normalize(torch.tensor([[1.0, 0.1], [1, 0], [0, 1], [0.1, 1]]), dim=1)
    labels = torch.tensor([4, 4, 7, 7])
    predicted = nearest_mean(z, labels, z[[0, 3, 1]])[0]
    assert predicted.tolist() == [4, 7, 4]
    classes, shares = class_accuracies(predicted, torch.tensor([4, 4, 4]))
    assert (classes.tolist(), shares.tolist()) == ([4], [pytest.approx(2 / 3)])


def test_intents_are_read_as_published_and_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"test\.csv are missing: put the published files there"):
        load_texts("banking77", tmp_path)
    with pytest.raises(ValueError, match="data must be 'banking77'"):
        load_texts("intents", tmp_path)
    folder = tmp_path / "intents" / "banking77"
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text('text,category\n"late, again",late\nlost,lost\n')
    (folder / "test.csv").write_text("text,category\nwhere is it,lost\n")
    data = load_texts("banking77", tmp_path)
    assert data.train.texts == ("late, again", "lost")
    assert (data.classes, data.test.labels.tolist()) == (("late", "lost"), [1])
    (folder / "test.csv").write_text("text,category\nwhat,found\n")
    with pytest.raises(DataError, match="without training texts: found"):
        load_texts("banking77", tmp_path)
    clinc = tmp_path / "intents" / "clinc150"
    clinc.mkdir()
    parts = {"train": [["hi", "greet"], ["pay", "bill"]], "test": [["hello", "greet"]]}
    parts["val"] = parts["test"]
    parts["oos_test"] = [["what", "oos"]]
    (clinc / "data_full.json").write_text(json.dumps(parts))
    (clinc / "domains.json").write_text(json.dumps({"talk": ["greet"], "bank": ["bill"]}))
    data = load_texts("clinc150", tmp_path)
    assert (data.classes, data.groups.tolist()) == (("bill", "greet"), [1, 0])
    assert data.out_of_scope == ("what",)
    (clinc / "data_full.json").write_text('{"train": 3}')
    with pytest.raises(DataError, match="does not hold CLINC150 as published"):
        load_texts("clinc150", tmp_path)


ROOT = Path(__file__).parents[2]


def table_of(page: str, head: str) -> list[list[str]]:
    """The cells of a Markdown table that begins like this."""
    table = page.partition(head)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_the_page_on_losses_repeats_what_the_study_of_the_tail_found() -> None:
    verdict = (ROOT / "results/studies/tail/verdict.md").read_text()
    page = (ROOT / "docs/which-loss.md").read_text()
    rows = table_of(page, "| loss | CIFAR-100, 10:1")
    assert {name.partition(" itself")[0] for name, *_ in rows} == {
        METHODS[how].name for how in Tail().plan("cpu").methods
    }
    accuracies = verdict.partition("balanced accuracy:\n")[2].partition("\n\n\n")[0]
    sets = ("cifar100, 10:1", "cifar100, 50:1", "cifar100, 100:1", "clinc150_imbalanced")
    for name, *cells in rows:
        for column, (place, cell) in enumerate(zip(sets, cells, strict=True)):
            if "itself" in name:
                told = next(row for row in accuracies.splitlines() if row.startswith("| InfoNCE |"))
                assert told.split("|")[2 + column].split()[0] == cell
                continue
            own = verdict.partition(f"{place}: balanced accuracy against InfoNCE")[2]
            own = own.partition("\n\n\n")[0]
            assert f"| {name} | {cell.replace('−', '-')} |" in own
    thirds = {
        ("the third with fewest", 2): ("17.85", "10.64"),
        ("the third of the classes with most samples", 2): ("64.59", "65.02"),
        ("the third with fewest", 3): ("92.68", "92.14"),
    }
    for (part, column), numbers in thirds.items():
        own = verdict.partition(f"\n{part}:")[2].partition("\n\n\n")[0].splitlines()
        for name, told in zip(("PushPull, class marginals", "InfoNCE"), numbers, strict=True):
            (row,) = [line for line in own if line.startswith(f"| {name} |")]
            assert row.split("|")[2 + column].split()[0] == told
            assert f"{told} %" in page


def test_the_page_on_losses_repeats_what_the_study_of_noise_found() -> None:
    verdict = (ROOT / "results/studies/noise/verdict.md").read_text()
    page = (ROOT / "docs/which-loss.md").read_text().partition("## Wrong labels")[2]
    rows = table_of(page, "| loss | BANKING77")
    assert {row[0] for row in rows} == {METHODS[how].name for how in Noise().plan("cpu").methods}
    places = ("banking77, symmetric", "cifar100, symmetric", "cifar100, within",
              "clinc150, symmetric", "clinc150, within")  # fmt: skip
    prices = []
    for place, column in zip(places, range(1, 6), strict=True):
        own = verdict.partition(f"\n{place} noise: accuracy:")[2].partition("\n\n\n")[0]
        found = {}
        for row in rows:
            (line,) = [told for told in own.splitlines() if told.startswith(f"| {row[0]} |")]
            clean, noisy = (cell.split()[0] for cell in line.split("|")[2:4])
            found[row[0]] = float(clean)
            assert noisy == row[column]
        prices.append(max(found.values()) - found["RINCE"])
    assert f"a price of {min(prices):.1f} to {max(prices):.1f} points on clean labels" in page


def test_the_page_on_losses_repeats_what_the_study_of_length_found() -> None:
    verdict = (ROOT / "results/studies/length/verdict.md").read_text()
    page = (ROOT / "docs/which-loss.md").read_text().partition("## The length of training")[2]
    rows = table_of(page, "| loss | MNIST, labels")
    plan = Length().plan("cpu")
    assert [name for name, *_ in rows] == [METHODS[how].name for how in plan.methods]
    found: dict[tuple[str, int], float] = {}
    best = []
    for column, condition in enumerate(plan.conditions):
        own = verdict.partition(f"\n{describe(condition)}:")[2].partition("\n\n\n")[0]
        for name, *cells in rows:
            (line,) = [row for row in own.splitlines() if row.startswith(f"| {name} |")]
            *_, c, accuracy, price, _ = (cell.strip() for cell in line.strip("|").split("|"))
            assert cells[column] == f"{accuracy.split()[0]}, c = {c} ({price})"
            found[name, column] = float(accuracy.split()[0])
            best.append(float(c))
    assert sum(3 <= c <= 30 for c in best) == len(best) - 1
    text = " ".join(page.split())
    behind = found["InfoNCE", 3] - found["PushPull", 3]
    assert f"behind on CIFAR-10 even at its best c, by {behind:.1f} points" in text
    level = [found[name, column] for name, *_ in rows for column in (0, 2)]
    assert max(level[::2]) - min(level[::2]) < 0.1
    assert max(level[1::2]) - min(level[1::2]) < 0.4
    assert "for 8 of 12 losses and places; c = 100 costs up to 10.6 points" in verdict
    assert "in 8 of 12 cases, but c = 100 costs up to 10.6 points" in text
    assert "two points in 0 of 8 comparisons" in verdict
    gaps = table_of(verdict, "| where | k-NN, points")
    points = [float(gap.split()[0]) for _, gap, *_ in gaps]
    assert max(points) < 0
    assert f"behind the better of them in all {len(points)} comparisons" in text
    told = sum(float(p) < 0.05 for _, _, p, _ in gaps)
    assert f"by up to {-min(points):.1f} points, and told apart in {told} of them" in text
    assert len(plan.seeds) == 5
    assert "five seeds" in text
    runs = Results([*Store(ROOT / "results/studies/length").records().values()]).final("knn@1000")
    soft = {key[:2]: fmean(own.values()) for key, own in runs.items() if key[2] == 1.0}
    where = [describe(condition) for condition in plan.conditions]
    ahead = [soft[w, "pushpull"] > max(soft[w, "infonce"], soft[w, "iot"]) for w in where]
    assert all(ahead)
    assert "at c = 1 it is ahead of both in all four places" in text


def test_the_page_on_losses_repeats_what_the_study_of_hubs_found() -> None:
    verdict = (ROOT / "results/studies/hubs/verdict.md").read_text()
    page = (ROOT / "docs/which-loss.md").read_text()
    rows = table_of(page, "| loss | recall@1, %")
    assert {row[0] for row in rows} == {METHODS[how].name for how in Hubs().plan("cpu").methods}
    recall, skewness = "recall@1, mean of both directions", "skewness of N₁₀"
    heads = [f"| loss | {recall} |", f"| loss | {skewness}", f"| loss | {recall}, after"]
    tables = [verdict.partition(head)[2].partition("\n\n\n")[0] for head in heads]
    after = verdict.partition(f"| loss | {skewness}")[2].partition(f"| loss | {skewness}")[2]
    tables.append(after.partition("\n\n\n")[0])
    for name, *cells in rows:
        for cell, own in zip(cells, tables, strict=True):
            (row,) = [line for line in own.splitlines() if line.startswith(f"| {name} |")]
            assert row.split("|")[2].split()[0] == cell
    assert "+0.78 [+0.53, +1.03] points of recall@1" in page
    assert "recall@1 +0.78 [+0.53, +1.03] points" in verdict
