"""Image-text retrieval on frozen features: closed form, linear heads from it, query-time scores.

Regularised CCA is a row and the start of the heads. Each row is scored four ways:
    plain     s_ij, the cosine similarity
    Sinkhorn  s_ij + f_i + g_j, potentials of the plan of the whole test set (transductive)
    bank      s_ij + g_j, g from the plan of training queries × gallery; queries come one by one
    NNN       s_ij − w · the mean of the k largest similarities of j with training queries
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import tricouple as tc
from studies import features
from studies.features import Split
from studies.linear import cca, cosine, descend, recall, whitening
from studies.study import Config, Measure, Runs, Stage, choose

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


def prepare(runs: Runs, name: str, cell: Any) -> Measure:
    """Choose the settings of CCA, from which heads start."""
    plan = runs.plan
    data, runs.data = features.PAIRS["generated" if plan.get("generated") else "flickr8k"]()
    coordinates = lru_cache(1)(partial(canonical, data))

    @lru_cache(1)  # several constants score the same heads
    def embedded(**config: Any) -> tuple[Splits, dict[str, float]]:
        own = config if config["row"] == "CCA" else best
        splits, weight = coordinates(**{key: own[key] for key in plan["cca"]})
        if config["row"] == "CCA":
            return embed(splits, torch.diag(weight), torch.diag(weight)), {}
        left, right, c = train(splits["train"], weight, config, plan["steps"])
        return embed(splits, left, right), {"sharpness": c}

    def measure(config: Config, part: str) -> dict[str, float]:
        constants = {way: config[way] for way in WAYS if way in config}
        kept = {key: v for key, v in config.items() if key not in (*WAYS, "scored")}
        splits, last = embedded(**kept)
        found = measured(splits, "test" if part == "final" else "validation", constants)
        if "scored" in config:
            return {"recall@1": found[f"{config['scored']} recall@1"]}
        return found | last

    best = choose(runs, {"cell": name, "row": "CCA"}, Stage(plan["cca"], "recall@1"), measure)
    return measure


def stages(runs: Runs, row: str, cell: Any) -> list[Stage]:
    """Settings of CCA, or c and learning rate of a loss; then the constant of each score."""
    plan, fixed = runs.plan, row.removesuffix(LEARNABLE)  # a learnable c starts at the chosen one
    values = plan["grids"].get(fixed, plan["grids"]["all"])
    grid = plan["cca"] if row == "CCA" else dict(zip(("c", "learning_rate"), values, strict=True))
    ways = plan["constants"].items()
    first = Stage(grid, "recall@1", {"row": fixed})
    return [first, *(Stage({way: every}, "recall@1", {"scored": way}) for way, every in ways)]


# --- heads ----------------------------------------------------------------------------------------


def canonical(
    data: Splits, ridge_image: float, ridge_text: float, rank: int, power: float
) -> tuple[Splits, Tensor]:
    """Canonical coordinates of whitened features, and the weight ρ^power of each."""
    of_images = whitening(data["train"].images, ridge_image)
    of_texts = whitening(data["train"].texts.flatten(0, 1), ridge_text)
    white = features.mapped(data, of_images, of_texts)
    cross = white["train"].images.T @ white["train"].texts.mean(1)
    left, right = cca(cross, rank, 0)
    weight = cca(cross, rank, power)[1].norm(dim=0)
    return features.mapped(white, lambda x: x @ left, lambda y: y @ right), weight


def embed(splits: Splits, left: Tensor, right: Tensor) -> Splits:
    """Unit vectors."""
    unit = partial(normalize, dim=-1)
    return features.mapped(splits, lambda x: unit(x @ left), lambda y: unit(y @ right))


def train(data: Split, weight: Tensor, config: Config, steps: int) -> tuple[Tensor, Tensor, float]:
    """Linear heads (k, k) from CCA, or from random numbers; 256 pairs a step; the last c."""
    torch.manual_seed(config["seed"])
    row, k = config["row"], len(weight)
    starts = [torch.randn(k, k) / k**0.5 if RANDOM in row else torch.diag(weight) for _ in range(2)]
    heads = [nn.Parameter(start) for start in starts]
    criterion = LOSSES[row.removesuffix(LEARNABLE).removesuffix(RANDOM)](sharpness=config["c"])
    objective = tc.BothDirections(criterion, learn=row.endswith(LEARNABLE))
    groups: Any = [{"params": heads}, {"params": [*objective.parameters()], "lr": 1e-2}]

    def loss() -> Tensor:
        rows = torch.randperm(len(data.images))[:256]
        caption = torch.randint(data.texts.shape[1], (len(rows),))
        texts = data.texts[rows, caption] @ heads[1]
        return objective(data.images[rows] @ heads[0], texts, rows)

    descend(torch.optim.Adam(groups, config["learning_rate"]), steps, loss)
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


def measured(splits: Splits, name: str, constants: Config) -> dict[str, float]:
    """Recall on validation or test data by cosine, and scored each way."""
    split, bank = splits[name], splits["train"]
    found = recall(*scores(split, bank))
    for way, constant in constants.items():
        own = recall(*scores(split, bank, way, constant))
        found |= {f"{way} {key}": value for key, value in own.items()}
    return found
