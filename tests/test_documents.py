"""Numbers of findings are those of results/: each digit belongs to a sentence computed here."""

import json
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from studies import study, verdict

from tricouple_lab.report.comparison import arrange, scores
from tricouple_lab.report.frame import frame
from tricouple_lab.report.stats import holm, paired

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
LINEAR = ("neg_mmiot", "pushpull")

# Numbers that are names or settings, not measurements.
NAMES = re.compile(
    r"K − 1|CIFAR-10{1,2}|Flickr8k|BANKING77|CLINC150|ResNet-\d+|ViT-B/16|"
    r"K = [\d, ]+( and \d+)?|[cετκα] [=≥≤] [\d.e-]+|"
    r"τ = ε = 0\.1|\d+×\d+(×\d+)?|NC[12]|`[^`]*`|\(\S*\)|learning rate [\de.-]+|[Rr]ecall@1"
)


def section(path: str, heading: str) -> str:
    """The text under a heading, its spaces single, without links and blocks of commands."""
    text = (ROOT / path).read_text()
    start = text.index(f"{heading}\n") + len(heading)
    end = re.search(r"^#+ ", text[start:], re.MULTILINE)
    part = text[start : start + end.start()] if end else text[start:]
    return re.sub(r"\s+", " ", re.sub(r"```.*?```", "", part, flags=re.DOTALL))


def check(path: str, heading: str, claims: Iterable[str]) -> None:
    """Every claim stands there, and no digit that is in none of them."""
    text = left = section(path, heading)
    for claim in sorted(claims, key=len, reverse=True):
        assert claim in text, f"{path} does not have {claim!r}"
        left = left.replace(claim, "□")
    numbers = re.findall(r"[^.;:]{0,40}\d[^.;:]{0,20}", NAMES.sub("", left))
    assert not numbers, f"{path} has numbers that nothing here computes: {numbers}"


@cache
def runs_of(study: str) -> pd.DataFrame:
    return arrange(frame(RESULTS / study))[0]


def final(study: str) -> pd.DataFrame:
    found = runs_of(study)
    return found[found["stage"] == "final"]


def against_best(runs: pd.DataFrame, metric: str) -> tuple[pd.Series, dict[str, float]]:
    """Means in percent, and p of the paired test of every other row against the best, by Holm."""
    table = scores(runs, f"after/{metric}")
    best = table.mean().idxmax()
    others = [row for row in table if row != best]
    p_values = holm([paired(table[row], table[best]).p for row in others])
    return table.mean(), dict(zip(others, p_values, strict=True))


# Text --------------------------------------------------------------------------------------------


def text_claims() -> Iterable[str]:
    last, runs = final("text"), runs_of("text")
    means, p_values = against_best(last, "embedding/ncm")
    before = 100 * last["after/features/ncm"].mean()  # the head starts as the identity
    gains = means - before
    yield f"The head gains {gains.min():.0f} to {gains.max():.0f} points"
    yield f"has {before:.1f} % before"
    yield f"and {means.min():.1f} to {means.max():.1f} % after"
    yield ", ".join(
        f"{row} {means[row]:.1f} %" for row in ("InfoNCE", "IOT", "PushPull", "Neg-MMIOT")
    )
    assert min(p_values.values()) > 0.05
    yield f"smallest p = {min(p_values.values()):.2f}"
    tested = runs[runs["stage"].isin(["final", "equal"])]
    curves = tested.groupby(["loss.name", "loss.sharpness"])["after/embedding/ncm"].mean().unstack()
    for c in (10, 30, 100):
        assert curves.loc[[*LINEAR], c].max() < curves.loc[["infonce", "iot"], c].min()
    yield "At equal c of 10 or more"
    (shots,), (size,), (steps,) = (
        set(last[key]) for key in ("data.shots", "old.validation_size", "steps")
    )
    yield f"{shots:.0f} texts of each of the 77 intents"
    yield f"{steps:.0f} steps, {last['seed'].nunique()} seeds"
    yield f"{size:.0f} validation texts"
    yield "3080 test texts"


# Synthetic ---------------------------------------------------------------------------------------


def synthetic(stage: str, method: str, shaping: str = "linear", **settings: object) -> pd.DataFrame:
    runs = runs_of("synthetic")
    found = runs[(runs["stage"] == stage) & (runs["loss.name"] == method)]
    found = found[found["loss.shaping"].fillna("linear") == shaping]
    for key, value in settings.items():
        found = found[found[key.replace("__", ".")] == value]
    assert len(found)
    return found


def deviation(method: str, n_classes: int, **settings: object) -> float:
    runs = synthetic("final", method, data__n_classes=n_classes, **settings)
    assert len(runs) == 3
    return runs["after/geometry/nc2_deviation"].mean()


def along(axis: str, method: str, shaping: str = "linear", **settings: object) -> dict:
    """NC2 deviation and outcome along an axis of the maps."""
    runs = synthetic(f"maps/{axis}", method, shaping, **settings)
    place = next(key for key in (f"data.{axis}", f"loss.{axis}", f"old.{axis}") if key in runs)
    rows = zip(runs[place], runs["after/geometry/nc2_deviation"], runs["verdict"], strict=True)
    return {value: (found, outcome) for value, found, outcome in rows}


SAME = {"loss__sharpness": 2.0}


def setting_claims() -> Iterable[str]:
    assert set(final("synthetic")["steps"]) == {3000}
    yield "10 iterations, AdamW with learning rate 8e-4, 3000 steps"
    yield "c = 1/(τε) = 2"
    worst = pd.concat([synthetic("final", loss) for loss in LINEAR])["after/geometry/nc2_deviation"]
    assert len(worst) == 18
    assert worst.max() <= 1e-4
    yield "most 1e-4"
    for k in (10, 20, 50):
        values = deviation("iot", k), deviation("infonce", k, **SAME)
        yield f"{values[0]:.1e} and {values[1]:.1e} at K = {k}"
    blunt = [deviation("infonce", k, loss__sharpness=1.0) for k in (20, 50)]
    yield f"ends at {blunt[0]:.1e} and {blunt[1]:.1e}** at K = 20 and 50"
    for method in ("byol", "vicreg"):
        assert "etf" not in set(synthetic("final", method)["verdict"])
    knn = [
        100 * synthetic("final", method, data__n_classes=50, **SAME)["after/embedding/knn"].mean()
        for method in (*LINEAR, "iot", "infonce")
    ]
    byol = 100 * synthetic("final", "byol", data__n_classes=50)["after/embedding/knn"].mean()
    yield f"k-NN accuracy of {byol:.1f} %"
    yield f"{min(knn):.1f} to {max(knn):.1f} %"


def map_claims() -> Iterable[str]:
    sharp = [
        value for axis, method in (("epsilon", "iot"), ("temperature", "infonce"))
        for place, (value, outcome) in along(axis, method).items()
        if place <= 0.1 and outcome == "reduced"
    ]  # fmt: skip
    assert len(sharp) == 5
    yield f"NC2 deviation {min(sharp):.2f} to {max(sharp):.2f}"
    ours = [
        value
        for method, axis in product(LINEAR, ("epsilon", "temperature"))
        for place, (value, _) in along(axis, method).items()
        if place <= 0.1
    ]
    yield f"within {max(ours):.3f} of the ETF"
    lost = [along("imbalance", m)[10.0] for m in (*LINEAR, "iot")]
    assert {outcome for _, outcome in lost} == {"reduced"}
    values = sorted(value for value, _ in lost)
    yield f"directions (NC2 deviation {values[0]:.2f} to {values[-1]:.2f})"
    kept = [along("imbalance", "infonce", loss__sharpness=c)[10.0] for c in (2.0, 1.0)]
    yield f"InfoNCE ({kept[0][0]:.3f} at c = 2, {kept[1][0]:.3f} at c = 1)"
    others = [along("imbalance", method)[10.0] for method in ("byol", "vicreg")]
    assert "reduced" not in {outcome for _, outcome in (*kept, *others)}
    yield "9 dimensions"
    exact = [along("dim", m)[9] for m in (*LINEAR, "iot")]
    exact += [along("dim", "infonce", **SAME)[9]]
    assert {outcome for _, outcome in exact} == {"etf"}
    yield f"all to {max(value for value, _ in exact):.1e}"
    yield f"ends at {along('dim', 'infonce', loss__sharpness=1.0)[9][0]:.1e}"
    for axis in ("n_iters", "kappa"):
        for method in (*LINEAR, "iot"):
            assert {outcome for _, outcome in along(axis, method).values()} == {"etf"}
    reached = {
        (axis, method): [
            f"{value:g}"
            for value, (_, outcome) in sorted(along(axis, method, "log_sigmoid").items())
            if outcome == "etf"
        ]
        for axis in ("epsilon", "temperature")
        for method in LINEAR
    }
    assert reached["epsilon", "neg_mmiot"] == reached["epsilon", "pushpull"]
    for key, sign in (
        (("epsilon", "neg_mmiot"), "ε"),
        (("temperature", "neg_mmiot"), "τ"),
        (("temperature", "pushpull"), "τ"),
    ):
        *first, last = reached[key]
        yield f"at {sign} = {', '.join(first)} and {last}" if first else f"at {sign} = {last}"


@pytest.mark.parametrize(
    ("page", "heading", "claims"),
    [
        ("results", "## Texts", text_claims),
        ("synthetic", "## At the paper's setting", setting_claims),
        ("synthetic", "## Where the methods differ", map_claims),
    ],
)
def test_findings(page, heading, claims):
    check(f"docs/{page}.md", heading, claims())


# Which loss, when; README; the paper --------------------------------------------------------------

CLAIMS = tomllib.loads((ROOT / "docs/claims.toml").read_text())["claim"]
NUMBER = re.compile(r"\d+\.\d+")
COMPARES = re.compile(
    r"\d\.\d|\b(ahead|behind|above|below|best|higher|lower|more|fewer|significant\w*)\b"
)


@cache
def stored(study_name: str) -> tuple[study.Plan, list, pd.DataFrame]:
    lines = study.read_lines(RESULTS / study_name / "runs.jsonl")
    return study.read_plan(study_name), lines, verdict.final_scores(lines)


def value(spec: str) -> str:
    """A number as documents write it.

    ``study | cell | metric | row`` is a mean over seeds, ``… | row a − row b`` a paired difference
    with its 95 % interval; also of two metrics, ``metric a − metric b``, or a row in two cells.
    """
    name, cell, metric, rows = spec.split(" | ")
    scores = stored(name)[2]
    names, cells = rows.split(" − "), cell.split(" − ")
    if len(cells) == 2:
        first, second = (verdict.values_of(scores, one, rows, metric) for one in cells)
        gap = paired(first.to_numpy(), second.to_numpy())
        return f"{gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]".replace("-", "−")
    if len(names) == 1:
        found = verdict.values_of(scores, cell, rows, metric)
        assert len(found), spec
        return f"{found.mean():.2f}"
    metrics = metric.split(" − ") if " − " in metric else [metric] * 2
    gap = verdict.difference(scores, cell, *names, metrics)
    assert gap.n, spec
    return f"{gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]".replace("-", "−")


def rendered(claim: dict) -> str:
    return claim["text"].format(*map(value, claim.get("values", [])))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["text"][:50])
def test_a_claim_stands_in_its_document_with_the_numbers_of_its_runs(claim):
    text = re.sub(r"\s+", " ", (ROOT / claim["file"]).read_text())
    assert rendered(claim) in text
    for name, rule, word in claim.get("verdicts", []):
        plan, lines, _ = stored(name)
        words = {found.name: found.word for found in verdict.judge(plan, lines)}
        assert words[rule] == word


def test_each_sentence_of_which_loss_that_compares_is_a_claim():
    text = re.sub(r"```.*?```", "", (ROOT / "docs/which-loss.md").read_text(), flags=re.DOTALL)
    text = text[text.index("## ") :].replace("version 0.1.0", "")
    tables = [line for line in text.splitlines() if line.startswith("|")]
    prose = re.sub(
        r"\s+", " ", "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    )
    for claim in CLAIMS:
        prose = prose.replace(rendered(claim), "")
    left = [one for one in re.split(r"(?<=[.:]) |## ", prose) if COMPARES.search(one)]
    assert not left, f"no claim in docs/claims.toml: {left}"
    known = "".join(file.read_text() for file in RESULTS.glob("*/verdict.md"))
    known += "".join(map(rendered, CLAIMS)).replace("−", "-")
    strange = set(NUMBER.findall("".join(tables))) - set(NUMBER.findall(known))
    assert not strange, f"numbers that no verdict has: {strange}"


def test_the_numbers_of_the_page_on_the_paper_are_the_papers_or_ours():
    text = (ROOT / "docs/paper.md").read_text()
    sources = [*RESULTS.glob("*/verdict.md"), *(ROOT / "reproduce").glob("paper_*.csv")]
    known = "".join(
        file.read_text() for file in [*sources, ROOT / "docs/assets/synthetic-table.md"]
    )
    exact = {float(number) for number in NUMBER.findall(known)}
    known_numbers = {round(number, digits) for number in exact for digits in (1, 2, 3)} | exact
    sections = {"3.2", "3.1", "3.3", "3.4", "3.5", "4.1"}
    times = {"1.04", "1.9", "0.31", "6.5", "10.6", "0.01", "0.1", "0.5"}  # the paper's, or settings
    for number in set(NUMBER.findall(text)) - sections - times:
        assert float(number) in known_numbers, number


def test_readme_has_the_cost_of_a_training_step():
    rows = json.loads((RESULTS / "bench/step_vision.json").read_text())["measurements"]
    (ratio,) = [row["ratio"] for row in rows if row["contender"] == "NegMMIOT"]
    text = section("README.md", "## What it costs")
    assert f"ResNet-18 on 256 images takes {ratio:.3f} times as long with NegMMIOT" in text
