"""Numbers in README and docs are those of results/: a digit changed by hand fails here.

Tables and blocks that a command writes are compared with what it writes; of the findings, which
people write, every digit must belong to a sentence that is computed here from the records.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from scipy import stats

from tricouple_lab.experiments.reproduce.command import ITEMS, tables_page
from tricouple_lab.experiments.runs.record import Store
from tricouple_lab.experiments.studies.command import STUDIES, as_markdown
from tricouple_lab.experiments.studies.plan import Results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"

# Numbers that are names or settings, not measurements.
NAMES = re.compile(
    r"K − 1|CIFAR-10{1,2}|ResNet-\d+|ViT-B/16|K [=≥≤] \d+|[cετακ] [=≥≤] [\d.e-]+|τ = ε = 0\.1|"
    r"\bd = \d+|\d+×\d+(×\d+)?|NC[12]|`[^`]*`|\(\S*\)|learning rate [\de.-]+|[Rr]ecall@1"
)


def section(path: str, heading: str) -> str:
    """The text under a heading, its spaces single, without names, links and blocks of commands."""
    text = (ROOT / path).read_text()
    start = text.index(f"{heading}\n") + len(heading)
    end = re.search(r"^#+ ", text[start:], re.MULTILINE)
    part = text[start : start + end.start()] if end else text[start:]
    part = re.sub(r"<!-- (\w+).*?<!-- /\1 -->", "", part, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"```.*?```", "", part, flags=re.DOTALL))


def check(path: str, heading: str, claims: Iterable[str]) -> None:
    """Every claim stands there, and no digit that is in none of them."""
    text = left = section(path, heading)
    for claim in sorted(claims, key=len, reverse=True):
        assert claim in text, f"{path} does not say {claim!r}"
        left = left.replace(claim, "□")
    left = NAMES.sub("", left)
    numbers = re.findall(r"[^.;:]{0,40}\d[^.;:]{0,20}", left)
    assert not numbers, f"{path} has numbers that nothing here computes: {numbers}"


def records(study: str, name: str = "runs.jsonl") -> list[dict]:
    return [json.loads(line) for line in (RESULTS / study / name).read_text().splitlines()]


def against_best(groups: dict[str, list[float]]) -> dict[str, float]:
    """P of Welch's t-test of every group against the best one, corrected by Holm."""
    best = max(groups, key=lambda name: mean(groups[name]))
    raw = {
        name: stats.ttest_ind(groups[best], values, equal_var=False).pvalue
        for name, values in groups.items()
        if name != best
    }
    corrected, largest = {}, 0.0
    for place, name in enumerate(sorted(raw, key=raw.get)):
        largest = max(largest, min(1.0, raw[name] * (len(raw) - place)))
        corrected[name] = largest
    return corrected


# Images ------------------------------------------------------------------------------------------

BLOCKS = [("mnist", "scl"), ("cifar10", "scl"), ("mnist", "ucl"), ("cifar10", "ucl")]
COLUMNS = list(product(("penultimate", "embedding"), ("linear", "knn")))


def vision_finals(data: str, setting: str, column: tuple[str, str]) -> dict[str, list[float]]:
    groups = defaultdict(list)
    for run in records("vision"):
        config = run["config"]
        if (run["part"], config["data"], config["setting"]) == ("final", data, setting):
            groups[config["loss"]].append(100 * run["metrics"]["/".join(column)])
    assert {len(values) for values in groups.values()} == {3}
    return groups


def vision_grid(data: str, setting: str) -> dict[str, dict[float, float]]:
    """k-NN accuracy by loss and sharpness, on validation images."""
    table = defaultdict(dict)
    for run in records("vision"):
        config = run["config"]
        if (run["part"], config["data"], config["setting"]) == ("sharpness", data, setting):
            table[config["loss"]][config["sharpness"]] = 100 * run["metrics"]["penultimate/knn"]
    return table


def explained(table: dict[str, dict[float, float]], sharpnesses: list[float]) -> tuple[str, str]:
    """Shares of the variance that the sharpness and the loss explain, in per cent."""
    cells = np.array([[row[c] for c in sharpnesses] for row in table.values()])
    centred = cells - cells.mean()
    shares = [(centred.mean(axis) ** 2).mean() / (centred**2).mean() for axis in (0, 1)]
    return f"{100 * shares[0]:.0f}", f"{100 * shares[1]:.0f}"


def listed(numbers: Iterable[str]) -> str:
    *first, last = numbers
    return f"{', '.join(first)} and {last}"


def vision_claims() -> Iterable[str]:
    runs = records("vision")
    steps = sorted({run["curves"]["step"][-1] for run in runs})
    images = {
        run["config"]["train_size"] - (run["config"].get("validation_size") or 0) for run in runs
    }
    assert {run["config"]["epochs"] for run in runs} == {3}
    assert {run["config"]["validation_size"] for run in runs} == {2000}
    yield f"{min(images)} to {max(images)} images"
    yield f"which is {steps[0]} to {steps[-1]} optimiser steps"
    yield "2000 validation images"
    grids = {block: vision_grid(*block) for block in BLOCKS}
    costs = {
        (block, loss): max(row.values()) - row[100.0]
        for block, table in grids.items()
        for loss, row in table.items()
    }
    yield f"it costs {min(costs.values()):.1f} to {max(costs.values()):.1f} points"
    ours = [
        cost for ((_, setting), loss), cost in costs.items()
        if setting == "scl" and loss in ("neg_mmiot", "pushpull")
    ]  # fmt: skip
    assert max(ours) == max(costs.values())
    yield f"({min(ours):.1f} to {max(ours):.1f} points)"
    yield "100 to 400 epochs"  # the paper's, see scale=paper
    short = [explained(grids[block], [3.0, 10.0, 30.0]) for block in BLOCKS]
    whole = [explained(grids[block], [3.0, 10.0, 30.0, 100.0]) for block in BLOCKS]
    yield "Over c = 3, 10, 30 and the five losses"
    yield f"c explains {listed(c for c, _ in short)} %"
    yield f"the loss {listed(loss for _, loss in short)} %"
    yield f"it is {listed(c for c, _ in whole)} % against {listed(loss for _, loss in whole)} %"
    noise = [
        abs(grids[data, "ucl"]["neg_mmiot"][c] - grids[data, "ucl"]["pushpull"][c])
        for data in ("mnist", "cifar10")
        for c in (3.0, 10.0, 30.0)
    ]
    yield f"differ by {min(noise):.1f} to {max(noise):.1f} points of k-NN accuracy"
    yield f"by {mean(noise):.1f} on average"
    labelled = [
        p for data in ("mnist", "cifar10") for column in COLUMNS
        for p in against_best(vision_finals(data, "scl", column)).values()
    ]  # fmt: skip
    yield f"smallest p = {min(labelled):.2f}"
    columns = [
        vision_finals(data, "ucl", column) for data in ("mnist", "cifar10") for column in COLUMNS
    ]
    lowest = [sorted(groups, key=lambda loss: mean(groups[loss]))[:2] for groups in columns]
    assert all(set(pair) == {"pushpull", "neg_mmiot"} for pair in lowest)
    gaps = [max(map(mean, g.values())) - min(map(mean, g.values())) for g in columns]
    yield f"by up to {max(gaps):.0f} points"
    worst = vision_finals("mnist", "ucl", ("embedding", "linear"))
    assert max(map(mean, worst.values())) - mean(worst["pushpull"]) == max(gaps)
    yield (
        f"linear probe: {mean(worst['pushpull']):.1f} and {mean(worst['neg_mmiot']):.1f} % "
        f"against {max(map(mean, worst.values())):.1f} %"
    )
    below = {
        loss: sum(against_best(groups).get(loss, 1.0) < 0.05 for groups in columns)
        for loss in ("pushpull", "neg_mmiot")
    }
    yield f"in {below['pushpull']} columns of 8 (p < 0.05, the same test)"
    yield f"Neg-MMIOT in {below['neg_mmiot']} of 8"
    yield "3e-3 was never better than 1e-3; c = 3"
    yield "differ by up to 6.5 points without labels"


def test_the_learning_rate_and_the_edge_of_the_grid_are_as_the_vision_page_says():
    rates = {}
    for run in records("vision"):
        config = run["config"]
        key = config["data"], config["setting"], config["loss"], config["sharpness"]
        if config["evaluated_on"] == "validation":
            rates.setdefault(key, {})[config["learning_rate"]] = run["metrics"]["penultimate/knn"]
    both = [row for row in rates.values() if len(row) == 2]
    assert len(both) == 20
    assert all(row[1e-3] >= row[3e-3] for row in both)
    edges = {
        data: sum(
            min(row, key=lambda c: -row[c]) == 3.0 for row in vision_grid(data, "scl").values()
        )
        for data in ("mnist", "cifar10")
    }
    assert edges == {"mnist": 3, "cifar10": 5}


def test_the_papers_two_rows_differ_as_the_vision_page_says():
    rows = (ROOT / "src/tricouple_lab/report/assets/paper_vision.csv").read_text().splitlines()
    names = rows[0].split(",")
    table = {
        (row["setting"], row["data"], row["backbone"], row["loss"]): float(row["linear"])
        for row in (dict(zip(names, line.split(","), strict=True)) for line in rows[1:])
    }
    gaps = [
        abs(value - table[*key[:3], "pushpull"])
        for key, value in table.items()
        if key[0] == "ucl" and key[3] == "neg_mmiot"
    ]
    assert round(max(gaps), 1) == 6.5


def test_vision_findings():
    check("docs/vision.md", "## What the study found", vision_claims())


def test_the_measured_run_of_the_vision_page_is_the_stored_one():
    stored = json.loads((RESULTS / "vision/mnist_cpu.json").read_text())
    text = json.dumps(stored)
    found = {name: float(re.search(rf'"{name}": (0\.\d+)', text)[1]) for name in ("linear", "knn")}
    check(
        "docs/vision.md",
        "## Measured",
        [f"linear probe {100 * found['linear']:.1f} %, k-NN {100 * found['knn']:.1f} %"],
    )


# Image and text ----------------------------------------------------------------------------------

FORMULAS = ["infonce", "iot", "iot_uniformity", "dbot", "fused_gromov", "pushpull", "neg_mmiot"]


def clip_finals(metric: str) -> dict[str, list[float]]:
    groups = defaultdict(list)
    for run in records("clip"):
        if run["part"] == "final":
            groups[run["config"]["loss"]].append(100 * run["metrics"][metric])
    assert {len(values) for values in groups.values()} == {3}
    return groups


def clip_grid(metric: str = "in_batch/at1") -> dict[str, dict[float, float]]:
    table = defaultdict(dict)
    for run in records("clip"):
        if run["part"] == "sharpness":
            table[run["config"]["loss"]][run["config"]["sharpness"]] = run["metrics"][metric]
    return table


def spread_of(metrics: Iterable[str]) -> tuple[float, float]:
    means = [mean(clip_finals(metric)[loss]) for metric in metrics for loss in FORMULAS]
    return min(means), max(means)


def clip_claims() -> Iterable[str]:
    runs = records("clip")
    (steps,) = {run["curves"]["step"][-1] for run in runs}
    assert {run["config"]["epochs"] for run in runs} == {5}
    yield f"All {len(runs)} runs, three seeds each, {steps} optimiser steps"
    yield "6000 pictures of 48×48 pixels"
    grid = clip_grid()
    assert grid["dbot"][1.0] == grid["infonce"][1.0]
    apart = max(abs(grid["dbot"][c] - grid["infonce"][c]) for c in (3.0, 10.0))
    yield f"at c = 3 and 10 to {100 * apart:.2f} points"
    yield "at c = 30 and 100 they part"
    assert all(abs(grid["dbot"][c] - grid["infonce"][c]) > 0.01 for c in (30.0, 100.0))
    yield f"({100 * grid['fused_gromov'][10.0]:.2f} and {100 * grid['iot'][10.0]:.2f} % at c = 10)"
    directions = ("image_to_text", "text_to_image")
    low, high = spread_of(f"in_batch/{way}/at1" for way in directions)
    yield "In batches of 64 the right answer comes first in"
    yield f"{low:.1f} to {high:.1f} % of the queries"
    yield "(chance is 1.6 %)"
    low, high = spread_of(f"whole_split/{way}/at1" for way in directions)
    yield f"among 1000 images in {low:.1f} to {high:.1f} % (chance 0.1 %)"
    for way in directions:
        tested = against_best(clip_finals(f"in_batch/{way}/at1"))
        assert len(tested) == 8
        assert all(tested.get(loss, 1.0) > 0.05 for loss in FORMULAS)
    back = clip_finals("in_batch/text_to_image/at1")
    p = against_best(back)["iot_uniformity"]
    best = max(mean(values) for values in back.values())
    yield f"({mean(back['iot_uniformity']):.2f} against {best:.2f} %, p = {p:.3f})"
    yield "ResNet-50, 35 epochs"
    yield "at 14 to 16 % where InfoNCE has 67 %"
    costs = [1 - grid[loss][100.0] / max(grid[loss].values()) for loss in FORMULAS]
    yield f"c = 100 costs {100 * min(costs):.0f} to {100 * max(costs):.0f} % of the recall"
    assert all(max(grid[loss], key=grid[loss].get) in (3.0, 10.0) for loss in FORMULAS)
    yield "the best c of each is 3 or 10"
    gap = clip_grid("modalities/gap")
    yield f"it is {gap['neg_mmiot'][3.0]:.2f} at c = 3 and {gap['neg_mmiot'][10.0]:.2f} at c = 10"
    yield f"with InfoNCE {gap['infonce'][3.0]:.2f} and {gap['infonce'][10.0]:.2f}"
    forth = clip_finals("in_batch/image_to_text/at1")
    yield f"{mean(forth['dbot_published']):.1f} % instead of {mean(forth['dbot']):.1f} %"
    matched = mean(clip_finals("modalities/matched")["fused_gromov_published"]) / 100
    yield f"(mean cosine −{abs(matched):.2f})"
    assert all(value < 1 / 64 for value in grid["fused_gromov_published"].values())
    for data, chance in (("cifar10", 10), ("cifar100", 1)):
        groups = clip_finals(f"zero_shot/{data}/top1")
        shares = sorted({f"{mean(groups[loss]):.0f}" for loss in FORMULAS}, key=int)
        assert len(shares) == 1 or shares[-1] != shares[0]
        words = shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}"
        yield f"at {words} %" + (" for the formulas" if chance == 10 else "")
        yield f"(chance {chance} %)"
    old = defaultdict(list)
    replaced = records("clip", "replaced.jsonl")
    for run in replaced:
        if run["part"] == "final":
            old[run["config"]["loss"]].append(100 * run["metrics"]["in_batch/at1"])
    first, second = (
        f"{min(old[loss]):.1f} to {max(old[loss]):.1f} %" for loss in ("infonce", "neg_mmiot")
    )
    yield f"at learning rate 1e-3 and c = 3 to 100, ran {len(replaced)} trainings"
    yield f"recall@1 of {first} and {second}"
    yield "the paper's 5e-4"


def test_clip_findings():
    check("docs/clip.md", "## What the study found", clip_claims())


# Text --------------------------------------------------------------------------------------------


def text_claims() -> Iterable[str]:
    runs = records("text")
    tested = [run for run in runs if run["config"]["evaluated_on"] == "test"]
    final = [run for run in tested if run["part"] == "final"]

    def ncm(own: list[dict], key: str = "embedding/ncm") -> float:
        return 100 * mean(run["metrics"][key] for run in own)

    def of(loss: str, own: list[dict]) -> list[dict]:
        return [run for run in own if run["config"]["loss"] == loss]

    def over_c(loss: str) -> list[float]:
        return [ncm([r for r in of(loss, tested) if r["config"]["sharpness"] == c]) for c in grid]

    grid, losses = (3, 10, 30, 100), ("infonce", "iot", "pushpull", "neg_mmiot")
    at_own = {loss: ncm(of(loss, final)) for loss in losses}
    before = ncm(final, "penultimate/ncm")
    gains = [at_own[loss] - before for loss in losses]
    assert (round(min(gains)), round(max(gains))) == (3, 4)
    groups = {loss: [run["metrics"]["embedding/ncm"] for run in of(loss, final)] for loss in losses}
    assert min(against_best(groups).values()) > 0.05
    curves = {loss: over_c(loss) for loss in losses}
    ahead = [
        min(curves["infonce"][k], curves["iot"][k])
        > max(curves["pushpull"][k], curves["neg_mmiot"][k])
        for k in range(len(grid))
    ]
    assert ahead == [False, True, True, True]
    metrics, config = final[0]["metrics"], final[0]["config"]
    assert len({run["config"]["seed"] for run in final}) == 3
    yield "behind at every c but 3"
    yield "worth 3 to 4 points"
    yield "from 3 to 100"
    yield f"{config['shots']} texts of each of the {metrics['n_classes']} intents of BANKING77"
    yield f"{final[0]['steps']} steps, 3 seeds"
    yield f"{metrics['n_test']} test texts"
    yield f"{config['validation_size']} validation texts"
    yield f"MiniLM as it is has {before:.1f} %"
    yield f"training {min(at_own.values()):.1f} to {max(at_own.values()):.1f} %"
    yield f"linear probe of MiniLM as it is has {ncm(final, 'penultimate/linear'):.1f} %"
    yield (
        f"InfoNCE has {at_own['infonce']:.1f} %, IOT {at_own['iot']:.1f} %, PushPull "
        f"{at_own['pushpull']:.1f} % and Neg-MMIOT {at_own['neg_mmiot']:.1f} %"
    )
    for loss, words in (("infonce", "InfoNCE has"), ("neg_mmiot", "Neg-MMIOT")):
        yield f"{words} {listed(f'{value:.1f}' for value in curves[loss])} %"


def test_text_findings():
    check("docs/text.md", "## What the study found", text_claims())


# Synthetic ---------------------------------------------------------------------------------------

LINEAR = ["neg_mmiot", "pushpull"]


def synthetic(part: str, method: str, shaping: str | None = None, **settings: object) -> list[dict]:
    """The last records of a part's runs of a method; ψ is linear where there is one."""
    psi = shaping or ("linear" if method in LINEAR else None)
    wanted = {"method": method, "shaping": psi, **settings}
    runs = {run["id"]: run for run in records("synthetic") if run["part"] == part}
    return [run for run in runs.values() if wanted.items() <= run["config"].items()]


def nc2(runs: list[dict]) -> list[float]:
    return [run["curves"]["nc2_deviation"][-1] for run in runs]


def at_k(method: str, n_classes: int, quantity: str = "nc2_deviation", **settings: object) -> float:
    runs = synthetic("main", method, n_classes=n_classes, **settings)
    assert len(runs) == 3
    return mean(run["curves"][quantity][-1] for run in runs)


def along(axis: str, method: str, shaping: str | None = None, **settings: object) -> dict:
    """NC2 deviation and verdict along an axis of the maps."""
    runs = synthetic(f"maps/{axis}", method, shaping, **settings)
    return {run["config"][axis]: (*nc2([run]), run["verdict"]) for run in runs}


def short(value: float) -> str:
    return f"{value:.1e}"


def setting_claims() -> Iterable[str]:
    main = [run for run in records("synthetic") if run["part"] == "main"]
    assert {run["config"]["steps"] for run in main} == {3000}
    yield "10 sweeps, AdamW with learning rate 8e-4, 3000 steps"
    yield "c = 1/(τε) = 2"
    yield "at K = 20 and 50"
    ours = [value for loss in LINEAR for k in (10, 20, 50) for value in nc2(
        synthetic("main", loss, n_classes=k))]  # fmt: skip
    assert len(ours) == 18
    assert max(ours) <= 1e-4
    yield "NC2 deviation at most 1e-4"
    same = {"sharpness": 2.0}
    for k in (10, 20, 50):
        iot, infonce = at_k("iot", k), at_k("infonce", k, **same)
        yield f"{short(iot)} and {short(infonce)} at K = {k}"
        ratios = sorted(value / at_k("neg_mmiot", k) for value in (iot, infonce))
        yield f"{ratios[0]:.0f} to {ratios[1]:.0f} times" if k > 10 else f"{ratios[1]:.0f} times"
    scatter = [at_k(m, 50, "nc1", **s) for m, s in (("iot", {}), ("infonce", same))]
    yield f"NC1 is {scatter[0]:.2f} and {scatter[1]:.2f} at K = 50"
    yield f"against {at_k('neg_mmiot', 50, 'nc1'):.2f}"
    half = [at_k("infonce", k, sharpness=1.0) for k in (20, 50)]
    yield f"{short(half[0])} and {short(half[1])}"
    verdicts = {
        (method, k): {run["verdict"] for run in synthetic("main", method, n_classes=k)}
        for method in ("byol", "vicreg")
        for k in (10, 20, 50)
    }
    assert not any("etf" in found for found in verdicts.values())
    for method in LINEAR:
        values = [
            mean(nc2(synthetic("main", method, "log_sigmoid", n_classes=k))) for k in (20, 50)
        ]
        yield f"{short(values[0])} and {short(values[1])}"
    missed = [run["verdict"] for run in synthetic("main", "pushpull", "log_sigmoid", n_classes=10)]
    assert sorted(missed) == ["etf", "etf", "reduced"]
    yield "at one seed of three at K = 10"
    linear = [at_k(m, 50, "knn", **same) for m in (*LINEAR, "iot", "infonce")]
    yield f"{100 * min(linear):.1f} to {100 * max(linear):.1f} % at K = 50"
    yield f"BYOL has {100 * at_k('byol', 50, 'knn'):.1f} %"


def map_claims() -> Iterable[str]:
    sharp = [
        value for axis, method in (("epsilon", "iot"), ("temperature", "infonce"))
        for place, (value, verdict) in along(axis, method).items() if place <= 0.1
        if verdict == "reduced"
    ]  # fmt: skip
    assert len(sharp) == 5
    yield f"NC2 deviation {min(sharp):.2f} to {max(sharp):.2f}"
    ours = [
        value for method in LINEAR for place, (value, verdict) in along("epsilon", method).items()
        if place <= 0.1 and verdict != "reduced"
    ]  # fmt: skip
    assert len(ours) == 6
    yield f"within {max(ours):.3f} of the ETF"
    blunt = {m: along("epsilon", m)[2.0][1] for m in (*LINEAR, "iot")}
    blunt["infonce"] = along("temperature", "infonce")[2.0][1]
    assert blunt == {"neg_mmiot": "etf", "pushpull": "etf", "iot": "rich", "infonce": "rich"}
    lost = {m: along("imbalance", m)[10.0] for m in (*LINEAR, "iot")}
    assert {verdict for _, verdict in lost.values()} == {"reduced"}
    values = sorted(value for value, _ in lost.values())
    yield f"lose directions (NC2 deviation {values[0]:.2f} to {values[-1]:.2f})"
    kept = [along("imbalance", "infonce", temperature=tau)[10.0] for tau in (0.5, 1.0)]
    assert {verdict for _, verdict in kept} == {"rich"}
    yield f"InfoNCE does not ({kept[0][0]:.3f} at c = 2, {kept[1][0]:.3f} at c = 1)"
    for method in ("byol", "vicreg"):
        assert along("imbalance", method)[10.0][1] != "reduced"
    yield "classes of ten to one"
    exact = {m: along("dim", m)[9] for m in (*LINEAR, "iot")}
    exact |= {f"infonce {tau}": along("dim", "infonce", temperature=tau)[9] for tau in (0.5, 1.0)}
    assert all(exact[m][1] == "etf" for m in (*LINEAR, "iot"))
    largest = max(value for value, _ in exact.values() if value < 0.01)
    assert {name for name, (_, verdict) in exact.items() if verdict != "etf"} == {"infonce 1.0"}
    yield "With exactly K − 1 = 9 dimensions"
    yield f"to {short(largest)}"
    yield f"ends at {short(exact['infonce 1.0'][0])}"
    for method in (*LINEAR, "iot"):
        assert {verdict for _, verdict in along("n_iters", method).values()} == {"etf"}
        assert {verdict for _, verdict in along("kappa", method).values()} == {"etf"}
    for method in LINEAR:
        for axis, sign in (("epsilon", "ε"), ("temperature", "τ")):
            reached = [
                f"{value:g}"
                for value, (_, verdict) in sorted(along(axis, method, "log_sigmoid").items())
                if verdict == "etf"
            ]
            yield f"at {sign} = {listed(reached) if len(reached) > 1 else reached[0]}"
    ends = {m: {e: v for e, (_, v) in along("epsilon", m, "log_sigmoid").items()} for m in LINEAR}
    assert [ends[m][e] for m in LINEAR for e in (1.0, 2.0)] == ["rich", *["reduced"] * 3]
    blunt = {
        m: {e: v for e, (_, v) in along("temperature", m, "log_sigmoid").items()} for m in LINEAR
    }
    assert {blunt["neg_mmiot"][tau] for tau in (0.05, 0.1, 0.2)} == {"rich"}
    assert {blunt["pushpull"][tau] for tau in (0.05, 0.1)} == {"collapsed"}


def test_synthetic_findings():
    check("docs/synthetic.md", "## At the paper's setting", setting_claims())
    check("docs/synthetic.md", "## Where the methods differ", map_claims())


# README ------------------------------------------------------------------------------------------


def test_readme_says_how_long_the_measured_trainings_were():
    steps = [run["curves"]["step"][-1] for study in ("vision", "clip") for run in records(study)]
    check("README.md", "## Train with it", [f"in trainings of {min(steps)} to {max(steps)} steps"])


def test_readme_says_what_a_training_step_costs():
    times = json.loads((RESULTS / "bench/step_vision.json").read_text())["times"]
    (ratio,) = [time["ratio"] for time in times if time["loss"] == "NegMMIOT"]
    text = section("README.md", "## What it costs")
    assert f"ResNet-18 on 256 images takes {ratio:.3f} times as long with NegMMIOT" in text


def test_readme_says_where_the_losses_end_on_the_synthetic_mixture():
    at_ten = {
        (run["config"]["method"], run["config"]["sharpness"]): run["verdict"]
        for run in records("synthetic")
        if run["part"] == "main" and run["config"]["n_classes"] == 10
        if run["config"]["shaping"] != "log_sigmoid"
    }
    reached = {key for key, verdict in at_ten.items() if verdict == "etf"}
    assert reached == {
        ("neg_mmiot", 2.0), ("pushpull", 2.0), ("iot", 2.0), ("infonce", 1.0), ("infonce", 2.0),
    }  # fmt: skip
    check("README.md", "## What it learns", ["3000 steps", "(c = 1)", "(c = 2)", "(NC2 = 0)"])


# Provenance --------------------------------------------------------------------------------------


def test_what_stored_lines_lack_is_counted_as_the_results_page_says():
    text = (RESULTS / "README.md").read_text()
    commits = {
        study: [run["provenance"]["commit"] for run in records(study)]
        for study in ("vision", "clip")
    }
    for study, lines in commits.items():
        dirty = sum(str(commit).endswith("-dirty") for commit in lines)
        assert f"| `{study}/`, {dirty} of {len(lines)} |" in text
    missing = commits["clip"].count(None)
    assert f"| `clip/`, {missing} of {len(commits['clip'])} | no commit at all" in text


def test_synthetic_lines_name_commit_command_machine_load_and_steps():
    for run in records("synthetic"):
        origin = run["provenance"]
        assert not origin["commit"].endswith("-dirty")
        assert {"command", "cpu", "cores", "load", "date", "torch"} <= set(origin)
        assert run["config"]["steps"] == run["curves"]["step"][-1] or run["status"] == "diverged"


def test_the_page_of_the_paper_run_again_is_what_the_command_writes():
    shown = [(item, item.show(RESULTS)) for item in ITEMS.values()]
    page = tables_page(shown)
    assert (RESULTS / "reproduce.md").read_text() == page
    told = (ROOT / "docs/studies.md").read_text().partition("## The paper, run again")[2]
    told = " ".join(told.split())
    ours = {item.name: " ".join(own.verdict) for item, own in shown}
    for name, paper in (("times-scl", "1.52"), ("times-ucl", "1.15")):
        assert f"takes 1.00 times as long as with InfoNCE here and {paper} times" in ours[name]
    assert "takes 1.00 times as long as with InfoNCE" in told
    assert "1.52 and 1.15" in told
    tables = " ".join(own for name, own in ours.items() if re.match("[su]cl-", name))
    orders = [float(found) for found in re.findall(r"of the 5 losses ([+-]\d\.\d\d)", tables)]
    assert f"All {len(orders)} blocks" in told
    mean, above = f"{sum(orders) / len(orders):.2f}".replace("-", "−"), sum(x > 0 for x in orders)
    assert f"by {mean} on average, above 0 in {above} blocks" in told
    assert "IOT 58 MiB, PushPull 100 MiB and Neg-MMIOT 101 MiB" in ours["efficiency"]
    assert "IOT takes 58 MiB, PushPull 100 and Neg-MMIOT 101" in told
    pairs = re.findall(r"(\S+ ± \S+) and (\S+ ± \S+) here, (\S+) and (\S+) in", ours["ablation"])
    assert len(pairs) == 3
    assert all(one == other for one, other, *_ in pairs)
    apart = max(abs(float(one) - float(other)) for *_, one, other in pairs)
    assert f"up to {apart:.0f} points apart" in told
    means = [float(one.split()[0]) for one, *_ in pairs]  # of c = 1000, 10 and 1
    assert means == sorted(means)


@pytest.mark.parametrize("name", sorted(path.name for path in (RESULTS / "studies").iterdir()))
def test_a_study_verdict_is_what_its_runs_say(name):
    study, folder = STUDIES[name], RESULTS / "studies" / name
    runs = list(Store(folder).records().values())
    plan = study.plan(json.loads((folder / "study.json").read_text())["config"]["scale"])
    verdict = study.judge(plan, Results(runs))
    said = (folder / "verdict.md").read_text()
    assert said == as_markdown(study, plan, verdict, runs)
    assert {"Hypothesis", "Refuted if"} <= set(re.findall(r"^([A-Z][a-z ]+):", said, re.MULTILINE))
    page = section("docs/studies.md", "## What they found")
    assert f"`{name}`: {verdict.word}" in page.replace("**", "")
    numbers = re.compile(r"\d[\d.]*\d|\d")
    line = next(each for each in page.split(" - ") if each.startswith(f"**`{name}`"))
    told = set(numbers.findall(NAMES.sub("", line)))
    assert told <= set(numbers.findall(" ".join(verdict.sentences)))
