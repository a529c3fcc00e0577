"""Shuffled bags: which posterior of the pairing helps when pairs are known up to a permutation?

Images and captions come in bags of B. Inside a bag the pairing is one to one, but unknown. A few
pairs are known. The procedure starts from CCA on the known pairs and alternates two closed forms:
    q     ←  posterior of the pairing, from the cosine similarities s_ij inside each bag
    maps  ←  CCA of the cross-covariance  Σ_known x yᵀ + Σ_bags Σ_ij q_ij x_i y_jᵀ

Trained heads are linear and start at CCA on the known pairs. A step takes whole bags and some known
pairs; the target of a bag is q of the present heads, without a gradient. MIL-NCE (Miech and others
2020), −log of the share of exp(c s_ij) on the texts of the bag, has the gradient of InfoNCE on the
row softmax, and is trained so.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

import tricouple as tc
from studies import features
from studies.linear import cca, cosine, descend, recall, whitening
from studies.study import Config, Measure, Plan, Runs, Stage, choose

UNTRAINED, CHOSEN_BY = "known pairs only", "validation recall@1"
Maps = tuple[Tensor, Tensor]


class Pairs(NamedTuple):
    """Whitened training pairs, and what scores maps."""

    x: Tensor  # (N, D) images
    y: Tensor  # (N, E) their captions, or the names of their classes
    classes: Tensor | None  # int64 (N,): the classes, if captions are names of classes
    score: Callable[[Maps, str], float]  # recall@1 on "validation" or "test" data, in percent


class Bags(NamedTuple):
    """Which training pairs are known, and which are in bags."""

    known: Tensor  # (K,) rows of the training pairs
    images: Tensor  # (G, B) rows
    texts: Tensor  # (G, B) the same rows in an unknown order; the image of an orphan is in no bag

    def true(self) -> Tensor:
        """Which pairs belong together, bool (G, B, B)."""
        return self.images[:, :, None] == self.texts[:, None, :]


def prepare(runs: Runs, name: str, cell: Config) -> Measure:
    """Fit maps to the bags of a cell, in closed form or by training, and measure them."""
    pairs, settings = load(runs, cell.get("data") or runs.plan["use"])
    return partial(measured, runs.plan, cell, pairs, settings)


def stages(runs: Runs, row: str, cell: Config) -> list[Stage]:
    """c, and the learning rate of trained heads, by validation recall@1."""
    plan, closed = runs.plan, "rounds" in runs.plan
    if row == UNTRAINED or (closed and row in ("Hungarian", "true pairs")):
        return [Stage({})]
    c = {"c": cell.get("sharpness", plan["sharpness"])}
    return [Stage(c if closed else {**c, "learning_rate": plan["learning_rates"]}, CHOSEN_BY)]


@lru_cache(1)
def load(runs: Runs, name: str) -> tuple[Pairs, dict[str, Any]]:
    """Whitened features and the settings of CCA; no pairing is used for the whitening.

    Where the plan has several settings, those with the highest validation recall@1 of the dual
    softmax, in the first cell of the data, are taken for all rows and cells.
    """
    plan = runs.plan
    if name == "cifar100":
        data, runs.data = features.cifar100()
        whitened = partial(of_classes, data, features.class_names(data.names))
    else:
        splits, runs.data = features.PAIRS[name]()
        whitened = partial(of_captions, splits)
    place, cell = next(one for one in plan["cells"].items() if one[1].get("data", name) == name)

    def measure(config: Config, part: str) -> dict[str, float]:
        return measured(plan, cell, whitened(config), config, config, part)

    base = {"cell": place, "row": "dual softmax", "c": 7.5}
    best = choose(runs, base, Stage(plan["data"][name], CHOSEN_BY), measure)
    return whitened(best), best


def of_captions(splits: Mapping[str, features.Split], settings: Config) -> Pairs:
    """Images and their first captions; validation and test have all captions."""
    wx = whitening(splits["train"].images, settings["ridge_image"], settings["keep"])
    wy = whitening(splits["train"].texts[:, 0], settings["ridge_text"])
    white = features.mapped(splits, wx, wy)

    def score(maps: Maps, name: str) -> float:
        images, texts = white[name]
        s = cosine(images @ maps[0], texts.flatten(0, 1) @ maps[1])
        return recall(s, s)["recall@1"]

    return Pairs(white["train"].images, white["train"].texts[:, 0], None, score)


def of_classes(data: features.Labelled, names: Tensor, settings: Config) -> Pairs:
    """Images whose captions are the names of their classes; a fifth validates.

    recall@1 is the accuracy of the nearest name.
    """
    rest, held = features.held_out(data.y, 0.2, 0)
    wx = whitening(data.x[rest], settings["ridge_image"], settings["keep"])
    text = whitening(names, settings["ridge_text"])(names)
    queries = {
        "validation": (wx(data.x[held]), data.y[held]),
        "test": (wx(data.test_x), data.test_y),
    }

    def score(maps: Maps, name: str) -> float:
        x, y = queries[name]
        nearest = cosine(x @ maps[0], text @ maps[1]).argmax(1)
        return 100 * (nearest == y).double().mean().item()

    return Pairs(wx(data.x[rest]), text[data.y[rest]], data.y[rest], score)


def measured(
    plan: Plan, cell: Config, pairs: Pairs, settings: Config, config: Config, part: str
) -> dict[str, float]:
    """Pairs recovered, and recall on validation or test data, in percent."""
    bags = draw_bags(pairs, cell, config["seed"])
    if "rounds" in plan:
        maps = alternate(pairs, bags, config, settings, plan["rounds"])
    else:
        maps = train(pairs, bags, config, settings, plan)
    s, name = similarities(pairs, bags, maps), "test" if part == "final" else "validation"
    own = posterior(config["row"], s, config.get("c", 1.0), bags.true())
    return {
        "pairs": recovered(own, bags.true()),
        "pairs, matching": recovered(matching(s), bags.true()),
        f"{name} recall@1": pairs.score(maps, name),
    }


def draw_bags(pairs: Pairs, cell: Config, seed: int) -> Bags:
    """Cut the training pairs into known pairs and bags; a share of the captions become orphans.

    With classes, a bag has images of different classes: its size divides their number.
    """
    generator = torch.Generator().manual_seed(seed)
    n, known, size, orphans = len(pairs.x), cell["known"], cell["bag"], cell["orphans"]
    order = torch.randperm(n, generator=generator)
    if pairs.classes is not None:  # rounds of one image of each class, in random order
        labels = pairs.classes[order]
        order = order[labels.argsort(stable=True)].view(int(labels.max()) + 1, -1)
        shuffled = torch.rand(order.T.shape, generator=generator).argsort(dim=1)
        order = order.T.gather(1, shuffled).flatten()
    n_bags = int((n - known) / (size * (1 + orphans)))
    rows, spare = order[known:].split([n_bags * size, n - known - n_bags * size])
    images = rows.view(n_bags, size)
    places = torch.rand(images.shape, generator=generator).argsort(dim=1)
    texts = images.gather(1, places).flatten()
    n_orphans = round(orphans * len(texts))
    texts[torch.randperm(len(texts), generator=generator)[:n_orphans]] = spare[:n_orphans]
    return Bags(order[:known], images, texts.view(n_bags, size))


def similarities(pairs: Pairs, bags: Bags, maps: Maps) -> Tensor:
    """Cosines (G, B, B) of the images and texts of each bag."""
    return cosine(pairs.x[bags.images] @ maps[0], pairs.y[bags.texts] @ maps[1])


def start(pairs: Pairs, bags: Bags, settings: Config) -> tuple[Tensor, Maps]:
    """The cross-covariance of the known pairs, and its CCA."""
    known = pairs.x[bags.known].T @ pairs.y[bags.known]
    return known, cca(known, settings["rank"], settings["power"])


def alternate(pairs: Pairs, bags: Bags, config: Config, settings: Config, rounds: int) -> Maps:
    """The maps after some rounds of posterior and CCA."""
    known, maps = start(pairs, bags, settings)
    row, c = config["row"], config.get("c", 1.0)
    x, y = pairs.x[bags.images.flatten()], pairs.y[bags.texts]
    for _ in range(0 if row == UNTRAINED else rounds):
        q = posterior(row, similarities(pairs, bags, maps), c, bags.true())
        cross = known + x.T @ (q @ y).flatten(0, 1)
        maps = cca(cross, settings["rank"], settings["power"])
    return maps


def posterior(name: str, s: Tensor, c: float, true: Tensor) -> Tensor:
    """Q (G, B, B) ≥ 0 from similarities (G, B, B), rows = images; "true pairs" alone reads true."""
    rows, columns = (c * s).softmax(dim=2), (c * s).softmax(dim=1)
    if name in ("row softmax", "MIL-NCE", UNTRAINED, "known pairs, trained"):
        return rows
    if name == "dual softmax":
        return normalize(rows * columns, p=1, dim=2)
    if name == "plan":
        return plan_of(s, c)
    if name.startswith("partial plan, "):  # and the share of orphans
        return plan_of(s, c, float(name.removeprefix("partial plan, ")))
    if name == "Hungarian":
        return matching(s)
    if name == "true pairs":
        return true.float()
    raise ValueError(f"no such posterior: {name}")


def plan_of(s: Tensor, c: float, orphans: float = 0.0) -> Tensor:
    """Plans (G, B, B) of bags with unit masses, 30 sweeps.

    With orphans a dummy row and a dummy column take mass orphans · B each. Their common corner is
    forbidden, so the similarity of the dummies, a constant, cancels.
    """
    size = s.shape[1]
    masses = torch.ones(s.shape[:2])
    if orphans:
        s, masses = pad(s, (0, 1, 0, 1)), pad(masses, (0, 1), value=orphans * size)
        s[:, -1, -1] = -torch.inf
    shares = masses / masses.sum(1, keepdim=True)
    found = tc.ot.sinkhorn(-s, 1 / c, row_marginal=shares, column_marginal=shares, n_iters=30)
    return (1 + orphans) * size * found.dense()[:, :size, :size]


def matching(s: Tensor) -> Tensor:
    """The best one-to-one assignment of each bag (Hungarian method), as 0/1 matrices (G, B, B)."""
    q = torch.zeros_like(s)
    for plan, similarities in zip(q, s, strict=True):
        plan[linear_sum_assignment(similarities.numpy(), maximize=True)] = 1
    return q


def recovered(q: Tensor, true: Tensor) -> float:
    """The share of the true pairs (i, j) with j = argmax of row i of q, in percent."""
    hits = true.gather(2, q.argmax(2, keepdim=True)).sum().item()
    return 100 * hits / true.sum().item()


# --- trained heads --------------------------------------------------------------------------------


def train(pairs: Pairs, bags: Bags, config: Config, settings: Config, plan: Plan) -> Maps:
    """Heads after the plan's steps of some images in bags and 64 known pairs."""
    maps, row = start(pairs, bags, settings)[1], config["row"]
    if row == UNTRAINED:
        return maps
    c, size = config["c"], bags.images.shape[1]
    generator = torch.Generator().manual_seed(config["seed"])
    heads, criterion = [nn.Parameter(part) for part in maps], tc.InfoNCE(sharpness=c)
    n_bags = 0 if row == "known pairs, trained" else max(1, plan["bag_samples"] // size)

    def loss() -> Tensor:
        chosen = torch.randperm(len(bags.images), generator=generator)[:n_bags]
        some = bags.known[torch.randperm(len(bags.known), generator=generator)[:64]]
        x = pairs.x[torch.cat([bags.images[chosen].flatten(), some])] @ heads[0]
        y = pairs.y[torch.cat([bags.texts[chosen].flatten(), some])] @ heads[1]
        there, back = targets(row, x.detach(), y.detach(), bags.true()[chosen], c)
        to_texts: Tensor = criterion(x, ref_emb=y, pairs=there)
        return (to_texts + criterion(y, ref_emb=x, pairs=back)) / 2

    descend(torch.optim.Adam(heads, config["learning_rate"]), plan["steps"], loss)
    return heads[0].detach(), heads[1].detach()


def targets(row: str, x: Tensor, y: Tensor, true: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """Weights (N, N) of image → text and text → image: bags first, then known pairs."""
    n_bags, size, _ = true.shape
    inside, n = n_bags * size, len(x)
    there, back = torch.eye(n), torch.eye(n)
    if not inside:
        return there, back
    if row == "plan":
        of_bag = torch.arange(n_bags).repeat_interleave(size)
        there[:inside, :inside] = tc.match_bags(x[:inside], y[:inside], of_bag, sharpness=c)
        return there, there.T
    s = cosine(x[:inside].view(n_bags, size, -1), y[:inside].view(n_bags, size, -1))
    there[:inside, :inside] = torch.block_diag(*posterior(row, s, c, true))
    back[:inside, :inside] = torch.block_diag(*posterior(row, s.mT, c, true.mT))
    return there, back
