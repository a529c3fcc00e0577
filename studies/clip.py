"""Image-text retrieval on frozen features: closed form, linear heads from it, query-time scores.

Regularised CCA is a row and the start of the heads. Each row is scored four ways:
    plain     s_ij, the cosine similarity
    Sinkhorn  s_ij + f_i + g_j, potentials of the plan of the whole test set (transductive)
    bank      s_ij + g_j, g from the plan of training queries × gallery; queries come one by one
    NNN       s_ij − w · the mean of the k largest similarities of j with training queries
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import tricouple as tc
from studies import features
from studies.features import Split
from studies.linear import cca, cosine, descend, recall, whitening
from studies.study import Measure, Plan, Runs, Stage, choose, run_rows

Splits = dict[str, Split]
WAYS = ("Sinkhorn", "bank", "NNN")
LEARNABLE, RANDOM = ", learnable c", ", random start"  # endings of rows
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
    data, runs.data = features.PAIRS["generated" if plan.get("generated") else "flickr8k"]()
    whitened = lru_cache(1)(partial(whiten, data))

    @lru_cache(1)
    def canonical(*ridges: float, rank: int, power: float) -> tuple[Splits, Tensor]:
        return in_cca(whitened(*ridges), rank, power)

    def prepare(name: str, cell: Any) -> Measure:
        @lru_cache(1)  # several constants score the same heads
        def embedded(items: tuple[tuple[str, Any], ...]) -> tuple[Splits, dict[str, float]]:
            config = dict(items)
            own = config if config["row"] == "CCA" else best
            ridges = own["ridge_image"], own["ridge_text"]
            splits, weight = canonical(*ridges, rank=own["rank"], power=own["power"])
            if config["row"] == "CCA":
                return embed(splits, torch.diag(weight), torch.diag(weight)), {}
            left, right, c = train(splits["train"], weight, config, plan["steps"])
            return embed(splits, left, right), {"sharpness": c}

        def measure(config: Mapping[str, Any], part: str) -> dict[str, float]:
            constants = {way: config[way] for way in WAYS if way in config}
            kept = ((key, v) for key, v in config.items() if key not in (*WAYS, "scored"))
            splits, last = embedded(tuple(kept))
            if part == "final":
                return {**measured(splits, "test", constants), **last}
            found = measured(splits, "validation", constants)
            way = f"{config['scored']} " if "scored" in config else ""
            return {"recall@1": found[f"{way}recall@1"]}

        row = {"cell": name, "row": "CCA"}
        grid = Stage(plan["cca"], "recall@1")
        best = choose(runs, row, grid, measure, plan["pilot_seeds"][:1])
        return measure

    def stages(row: str, cell: Any) -> list[Stage]:
        values = plan["grids"].get(loss_of(row), plan["grids"]["all"])
        grid = dict(zip(("c", "learning_rate"), values, strict=True))
        fixed = {"row": row.removesuffix(LEARNABLE)}  # a learnable c starts at the chosen one
        first = Stage(plan["cca"] if row == "CCA" else grid, "recall@1", fixed)
        ways = plan["constants"].items()
        return [first, *(Stage({way: all_}, "recall@1", {"scored": way}) for way, all_ in ways)]

    run_rows(plan, runs, prepare, stages, seedless="CCA")


def loss_of(row: str) -> str:
    """The loss of a row."""
    return row.removesuffix(LEARNABLE).removesuffix(RANDOM)


# --- heads ----------------------------------------------------------------------------------------


def whiten(data: Splits, ridge_image: float, ridge_text: float) -> Splits:
    """Features in whitened coordinates."""
    wx = whitening(data["train"].images, ridge_image)
    wy = whitening(data["train"].texts.flatten(0, 1), ridge_text)
    return features.mapped(data, wx, wy)


def in_cca(splits: Splits, rank: int, power: float) -> tuple[Splits, Tensor]:
    """Canonical coordinates, and the weight ρ^power of each."""
    cross = splits["train"].images.T @ splits["train"].texts.mean(1)
    left, right = cca(cross, rank, 0)
    weight = cca(cross, rank, power)[1].norm(dim=0)
    return features.mapped(splits, lambda x: x @ left, lambda y: y @ right), weight


def embed(splits: Splits, left: Tensor, right: Tensor) -> Splits:
    """Unit vectors."""
    unit = partial(normalize, dim=-1)
    return features.mapped(splits, lambda x: unit(x @ left), lambda y: unit(y @ right))


def train(
    data: Split, weight: Tensor, config: Mapping[str, Any], steps: int
) -> tuple[Tensor, Tensor, float]:
    """Linear heads (k, k) from CCA, or from random numbers; 256 pairs a step; the last c."""
    torch.manual_seed(config["seed"])
    row, k = config["row"], len(weight)
    random = row.removesuffix(LEARNABLE).endswith(RANDOM)
    starts = [torch.randn(k, k) / k**0.5 if random else torch.diag(weight) for _ in range(2)]
    heads = [nn.Parameter(start) for start in starts]
    criterion = LOSSES[loss_of(row)](sharpness=config["c"])
    objective = tc.BothDirections(criterion, learn=row.endswith(LEARNABLE))
    groups: list[dict[str, Any]] = [
        {"params": heads},
        {"params": [*objective.parameters()], "lr": 1e-2},
    ]

    def loss() -> Tensor:
        rows = torch.randperm(len(data.images))[:256]
        caption = torch.randint(data.texts.shape[1], (len(rows),))
        texts = data.texts[rows, caption] @ heads[1]
        found: Tensor = objective(data.images[rows] @ heads[0], texts, rows)
        return found

    descend(groups, steps, config["learning_rate"], loss)
    c: Any = objective.sharpness
    return heads[0].detach(), heads[1].detach(), float(c)


# --- scores at query time -------------------------------------------------------------------------


def scores(
    test: Split, bank: Split, way: str = "plain", constant: float = 0
) -> tuple[Tensor, Tensor]:
    """Scores (N, N·K) of image → text and of text → image, of which NNN's constant is k + w."""
    texts = test.texts.flatten(0, 1)
    s = cosine(test.images, texts)
    if way == "plain":
        return s, s
    if way == "Sinkhorn":
        f, g = tc.ot.sinkhorn(-s, epsilon=1 / constant, n_iters=20).potentials
        return s + g, s + f[:, None]
    queries = cosine(bank.images, texts), cosine(bank.texts[:, 0], test.images)  # × gallery
    if way == "bank":
        g, f = (tc.ot.sinkhorn(-part, 1 / constant, n_iters=10).potentials[1] for part in queries)
    else:
        k, weight = min(int(constant), len(bank.images)), constant % 1
        g, f = (-weight * part.topk(k, dim=0).values.mean(0) for part in queries)
    return s + g, s + f[:, None]


def measured(splits: Splits, name: str, constants: Mapping[str, float]) -> dict[str, float]:
    """Recall on validation or test data by cosine, and scored each way."""
    split, bank = splits[name], splits["train"]
    found = recall(*scores(split, bank))
    for way, constant in constants.items():
        own = recall(*scores(split, bank, way, constant))
        found |= {f"{way} {key}": value for key, value in own.items()}
    return found
