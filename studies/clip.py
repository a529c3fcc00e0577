"""Image-text retrieval on frozen features: closed form, linear heads from it, query-time scores.

Regularised CCA is a row and the start of the heads. Each row is scored four ways:
    plain     s_ij, the cosine similarity
    Sinkhorn  s_ij + f_i + g_j, potentials of the plan of the whole test set (transductive)
    bank      s_ij + g_j, g from the plan of training queries × gallery; queries come one by one
    NNN       s_ij − w · the mean of the k largest similarities of j with training queries
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import tricouple as tc
from studies import features
from studies.features import Split
from studies.linear import cca, cosine, recall, whitening
from studies.study import Plan, Runs, choose, grid_of

Splits = dict[str, Split]
Scores = tuple[Tensor, Tensor]  # (N, N·K) for image → text, and for text → image


LOSSES: dict[str, Callable[..., Any]] = {
    "InfoNCE": tc.InfoNCE,
    "SigLIP": partial(tc.SigLIP, bias=-5.0, learn_bias=True),
    "IOT": tc.IOT,
    "IOT, uniformity": partial(tc.IOT, uniformity=0.2),
    "PushPull": tc.PushPull,
    "Neg-MMIOT, log-sigmoid": partial(tc.NegMMIOT, epsilon=1.0, shaping="log_sigmoid"),
}


def run(plan: Plan, runs: Runs) -> None:
    """CCA and its settings; c and learning rate of each loss; then fixed and learnable c."""
    made = features.generated_pairs if plan.get("generated") else features.flickr8k
    data, runs.data = made()
    whitened: dict[tuple[float, float], Splits] = {}

    def of_cca(config: Mapping[str, Any]) -> tuple[Splits, Tensor]:
        ridges = config["ridge_image"], config["ridge_text"]
        if ridges not in whitened:
            whitened.clear()
            whitened[ridges] = whiten(data, *ridges)
        return in_cca(whitened[ridges], config["rank"], config["power"])

    def validated(config: Mapping[str, Any]) -> dict[str, float]:
        splits, weight = of_cca(config)
        return plain_recall(embed(splits, torch.diag(weight), torch.diag(weight))["validation"])

    cell = {"cell": plan["cells"][0]}
    grid = grid_of(plan["cca"])
    once = plan["pilot_seeds"][:1]
    best = choose(runs, {**cell, "row": "CCA"}, grid, validated, "recall@1", once)
    splits, weight = of_cca(best)
    start = torch.diag(weight)
    base = {**cell, "row": "CCA"}
    constants = constants_of(runs, base, lambda: embed(splits, start, start), plan)
    runs("final", {**base, **best, **constants, "seed": None},
         lambda: measured(embed(splits, start, start), constants))  # fmt: skip
    for row, (loss, learn, random) in rows_of(plan).items():

        def heads(config: Mapping[str, Any], seed: int) -> tuple[Splits, float]:
            start = None if random else weight
            left, right, c = train(splits["train"], start, loss, learn, config, seed, plan["steps"])
            return embed(splits, left, right), c

        own = plan["grids"].get(loss, plan["grids"]["all"])
        options = grid_of(dict(zip(("c", "learning_rate"), own, strict=True)))
        chosen = {**cell, "row": row}
        if learn:  # starts where the fixed one ends
            chosen["row"] = row.removesuffix(", learnable c")

        def tried(config: Mapping[str, Any]) -> dict[str, float]:
            return plain_recall(heads(config, config["seed"])[0]["validation"])

        found = choose(runs, chosen, options, tried, "recall@1")
        base = {**cell, "row": row}
        constants = constants_of(runs, base, lambda: heads(found, plan["pilot_seeds"][0])[0], plan)
        for seed in plan["seeds"]:

            def final(seed: int = seed) -> dict[str, float]:
                embedded, c = heads(found, seed)
                return {**measured(embedded, constants), "sharpness": c}

            runs("final", {**base, **found, **constants, "seed": seed}, final)


def rows_of(plan: Plan) -> dict[str, tuple[str, bool, bool]]:
    """Of each trained row: its loss, whether c is learnt, whether it starts at random."""
    found = {}
    for row in plan["rows"]:
        if row != "CCA":
            loss = row.removesuffix(", learnable c").removesuffix(", random start")
            found[row] = loss, row.endswith("learnable c"), row.endswith("random start")
    return found


# --- heads ----------------------------------------------------------------------------------------


def whiten(data: Splits, ridge_image: float, ridge_text: float) -> Splits:
    """Features in whitened coordinates."""
    wx = whitening(data["train"].images, ridge_image)
    wy = whitening(data["train"].texts.flatten(0, 1), ridge_text)
    return {name: Split(wx(split.images), wy(split.texts)) for name, split in data.items()}


def in_cca(splits: Splits, rank: int, power: float) -> tuple[Splits, Tensor]:
    """Canonical coordinates, and the weight ρ^power of each."""
    cross = splits["train"].images.T @ splits["train"].texts.mean(1)
    left, right = cca(cross, rank, 0)
    weight = cca(cross, rank, power)[1].norm(dim=0)
    return {
        name: Split(split.images @ left, split.texts @ right) for name, split in splits.items()
    }, weight


def embed(splits: Splits, left: Tensor, right: Tensor) -> Splits:
    """Unit vectors."""
    return {
        name: Split(normalize(split.images @ left, dim=-1), normalize(split.texts @ right, dim=-1))
        for name, split in splits.items()
    }


def train(
    data: Split,
    weight: Tensor | None,
    loss: str,
    learn: bool,
    config: Mapping[str, Any],
    seed: int,
    steps: int,
) -> tuple[Tensor, Tensor, float]:
    """Linear heads (k, k) from CCA, or from random numbers; 256 pairs a step; the last c."""
    torch.manual_seed(seed)
    k = data.images.shape[1]
    starts = [
        torch.randn(k, k) / k**0.5 if weight is None else torch.diag(weight) for _ in range(2)
    ]
    heads = [nn.Parameter(start) for start in starts]
    objective = tc.BothDirections(LOSSES[loss](sharpness=config["c"]), learn=learn)
    groups: list[dict[str, Any]] = [
        {"params": heads},
        {"params": [*objective.parameters()], "lr": 1e-2},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config["learning_rate"], weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randperm(len(data.images))[:256]
        caption = torch.randint(data.texts.shape[1], (len(rows),))
        optimizer.zero_grad()
        texts = data.texts[rows, caption] @ heads[1]
        objective(data.images[rows] @ heads[0], texts, rows).backward()
        optimizer.step()
        schedule.step()
    c: Any = objective.sharpness
    return heads[0].detach(), heads[1].detach(), float(c)


# --- scores at query time -------------------------------------------------------------------------


def plain(test: Split, bank: Split, constant: None = None) -> Scores:
    """The cosine similarities."""
    s = cosine(test.images, test.texts.flatten(0, 1))
    return s, s


def sinkhorn(test: Split, bank: Split, c: float) -> Scores:
    """With the potentials of the plan of the whole test set."""
    s, _ = plain(test, bank)
    f, g = tc.ot.sinkhorn(-s, epsilon=1 / c, n_iters=20).potentials
    return s + g, s + f[:, None]


def bank_potentials(test: Split, bank: Split, c: float) -> Scores:
    """With the potential of each gallery item in a plan with training queries."""
    s, _ = plain(test, bank)
    texts = cosine(bank.images, test.texts.flatten(0, 1))
    images = cosine(bank.texts[:, 0], test.images)
    g, f = (tc.ot.sinkhorn(-part, 1 / c, n_iters=10).potentials[1] for part in (texts, images))
    return s + g, s + f[:, None]


def nnn(test: Split, bank: Split, constant: float) -> Scores:
    """Minus a share w of the mean of the k largest similarities; the constant is k + w."""
    k, weight = int(constant), constant % 1
    s, _ = plain(test, bank)
    texts = (
        cosine(test.texts.flatten(0, 1), bank.images)
        .topk(min(k, len(bank.images)), dim=1)
        .values.mean(1)
    )
    images = (
        cosine(test.images, bank.texts[:, 0]).topk(min(k, len(bank.images)), dim=1).values.mean(1)
    )
    return s - weight * texts, s - weight * images[:, None]


SCORES = {"Sinkhorn": sinkhorn, "bank": bank_potentials, "NNN": nnn}


def plain_recall(split: Split) -> dict[str, float]:
    """Recall by cosine similarity."""
    return recall(*plain(split, split))


def constants_of(
    runs: Runs, base: Mapping[str, Any], make: Callable[[], Splits], plan: Plan
) -> dict[str, float]:
    """The constant of each way of scoring: highest validation recall@1 at one pilot seed."""
    made: list[Splits] = []
    found: dict[str, float] = {}
    for name in plan["constants"]:

        def measure(config: Mapping[str, Any], name: str = name) -> dict[str, float]:
            made.extend([] if made else [make()])
            scores = SCORES[name](made[0]["validation"], made[0]["train"], config[name])
            return {"recall@1": recall(*scores)["recall@1"]}

        grid = [{name: value} for value in plan["constants"][name]]
        once = plan["pilot_seeds"][:1]
        found |= choose(runs, {**base, "scored": name}, grid, measure, "recall@1", once)
    return found


def measured(splits: Splits, constants: Mapping[str, float]) -> dict[str, float]:
    """Recall on test data, scored each way, and what each way adds to recall@1."""
    found = plain_recall(splits["test"])
    for name, constant in constants.items():
        own = recall(*SCORES[name](splits["test"], splits["train"], constant))
        found |= {f"{name} {key}": value for key, value in own.items()}
        found[f"{name} adds"] = own["recall@1"] - found["recall@1"]
    return found
