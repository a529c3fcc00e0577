"""Shuffled bags: which posterior of the pairing helps when pairs are known up to a permutation?

Images and captions come in bags of B. Inside a bag the pairing is one to one, but unknown. A few
pairs are known. The procedure starts from CCA on the known pairs and alternates two closed forms:
    q     ←  posterior of the pairing, from the cosine similarities s_ij inside each bag
    maps  ←  CCA of the cross-covariance  Σ_known x yᵀ + Σ_bags Σ_ij q_ij x_i y_jᵀ
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize, pad

from studies import features
from studies.linear import cca, cosine, recall, whitening
from studies.study import Plan, Runs, choose, choose_and_run, grid_of

WITHOUT_C = ("known pairs only", "uniform", "Hungarian", "true pairs")
Maps = tuple[Tensor, Tensor]


class Pairs(NamedTuple):
    """Whitened training pairs, and what scores maps on validation and test data."""

    x: Tensor  # (N, D) images
    y: Tensor  # (N, E) their captions, or the names of their classes
    classes: Tensor | None  # int64 (N,): the classes, if captions are names of classes
    scored: dict[str, features.Split]  # validation, test; of classes: texts are (1, classes, E)
    truth: dict[str, Tensor]  # of classes: int64 (n,)

    def score(self, maps: Maps, name: str) -> dict[str, float]:
        """Recall of captions, or the accuracy of the nearest name of a class, in percent."""
        split = self.scored[name]
        s = cosine(split.images @ maps[0], split.texts.flatten(0, 1) @ maps[1])
        if self.classes is None:
            found = recall(s, s)
            keys = [f"recall@{k}" for k in ((1,) if name == "validation" else (1, 5, 10))]
            return {f"{name} {key}": found[key] for key in keys}
        accuracy = (s.argmax(1) == self.truth[name]).double().mean().item()
        return {f"{name} recall@1": 100 * accuracy}


class Bags(NamedTuple):
    """Which training pairs are known, and which are in bags."""

    known: Tensor  # (K,) rows of the training pairs
    images: Tensor  # (G, B) rows
    texts: Tensor  # (G, B) the same rows in an unknown order; the image of an orphan is in no bag

    def true(self) -> Tensor:
        """Which pairs belong together, bool (G, B, B)."""
        return self.images[:, :, None] == self.texts[:, None, :]


def run(plan: Plan, runs: Runs) -> None:
    """All cells: c of each row by validation recall@1, then the final seeds."""
    name, pairs = "", None
    settings: dict[str, Any] = {}
    for place, cell in plan["cells"].items():
        if cell["data"] != name:
            name = cell["data"]
            pairs, settings = load(name, plan, runs)
        for row in cell["rows"]:
            grid = cell.get("sharpness", plan["sharpness"])
            options = {"c": grid} if row not in WITHOUT_C else {}

            def measure(config: Mapping[str, Any], part: str) -> dict[str, float]:
                assert pairs is not None
                return measured(pairs, settings, plan["rounds"], cell, config, part)

            base = {"cell": place, "row": row}
            choose_and_run(runs, base, options, measure, "validation recall@1")


def load(name: str, plan: Plan, runs: Runs) -> tuple[Pairs, dict[str, Any]]:
    """Whitened features and the settings of CCA; no pairing is used for the whitening.

    Where the plan has several settings, those with the highest validation recall@1 of the dual
    softmax, in the first cell of the data, are taken for all rows and cells.
    """
    if name == "cifar100":
        data, runs.data = features.cifar100()
        names = features.class_names(data.names)
    else:
        made = features.flickr8k if name == "flickr8k" else features.generated_pairs
        splits, runs.data = made()

    def whitened(settings: Mapping[str, Any]) -> Pairs:
        return (
            of_classes(data, names, settings)
            if name == "cifar100"
            else of_captions(splits, settings)
        )

    grid = grid_of(plan["data"][name])
    place, cell = next(
        ((place, cell) for place, cell in plan["cells"].items() if cell.get("data") == name),
        ("", {}),
    )

    def measure(config: dict[str, Any]) -> dict[str, float]:
        return measured(whitened(config), config, plan["rounds"], cell, config, "pilot")

    base = {"cell": place, "row": "dual softmax", "c": 7.5}
    best = choose(runs, base, grid, measure, "validation recall@1")
    return whitened(best), best


def of_captions(splits: Mapping[str, features.Split], settings: Mapping[str, Any]) -> Pairs:
    """Images and their first captions; validation and test have all captions."""
    wx = whitening(splits["train"].images, settings["ridge_image"], settings["keep"])
    wy = whitening(splits["train"].texts[:, 0], settings["ridge_text"])
    white = {
        key: features.Split(wx(split.images), wy(split.texts)) for key, split in splits.items()
    }
    train = white.pop("train")
    return Pairs(train.images, train.texts[:, 0], None, white, {})


def of_classes(data: features.Labelled, names: Tensor, settings: Mapping[str, Any]) -> Pairs:
    """Images whose captions are the names of their classes; a fifth validates."""
    rest, held = features.held_out(data.y, 0.2, 0)
    wx = whitening(data.x[rest], settings["ridge_image"], settings["keep"])
    text = whitening(names, settings["ridge_text"])(names)
    scored = {"validation": wx(data.x[held]), "test": wx(data.test_x)}
    splits = {key: features.Split(x, text[None]) for key, x in scored.items()}
    truth = {"validation": data.y[held], "test": data.test_y}
    return Pairs(wx(data.x[rest]), text[data.y[rest]], data.y[rest], splits, truth)


def measured(
    pairs: Pairs,
    settings: Mapping[str, Any],
    rounds: int,
    cell: Mapping[str, Any],
    config: Mapping[str, Any],
    part: str,
) -> dict[str, float]:
    """Pairs recovered and recall, in percent; of test data in the part "final" alone."""
    row, c = config["row"], config.get("c", 1.0)
    bags = draw_bags(pairs, cell, config["seed"])
    maps, s = alternate(pairs, bags, row, c, settings["rank"], settings["power"], rounds)
    found = {"pairs, matching": recovered(matching(s), bags.true())}
    if row != "known pairs only":
        found["pairs"] = recovered(posterior(row, s, c, bags.true()), bags.true())
    for name in ("validation", "test") if part == "final" else ("validation",):
        found |= pairs.score(maps, name)
    return found


def draw_bags(pairs: Pairs, cell: Mapping[str, Any], seed: int) -> Bags:
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


def alternate(
    pairs: Pairs, bags: Bags, row: str, c: float, rank: int, power: float, rounds: int
) -> tuple[Maps, Tensor]:
    """The maps after some rounds, and the similarities (G, B, B) that they give."""
    known = pairs.x[bags.known].T @ pairs.y[bags.known]
    x, y = pairs.x[bags.images.flatten()], pairs.y[bags.texts.flatten()]
    shape = *bags.images.shape, -1

    def similarities(maps: Maps) -> Tensor:
        return cosine((x @ maps[0]).view(shape), (y @ maps[1]).view(shape))

    maps = cca(known, rank, power)
    for _ in range(0 if row == "known pairs only" else rounds):
        q = posterior(row, similarities(maps), c, bags.true())
        expected = q @ y.view(shape)  # (G, B, E): Σ_j q_ij y_j
        maps = cca(known + x.T @ expected.flatten(0, 1), rank, power)
    return maps, similarities(maps)


def posterior(name: str, s: Tensor, c: float, true: Tensor) -> Tensor:
    """Q (G, B, B) ≥ 0 from similarities (G, B, B), rows = images; "true pairs" alone reads true."""
    rows, columns = (c * s).softmax(dim=2), (c * s).softmax(dim=1)
    if name == "uniform":
        return torch.full_like(s, 1 / s.shape[2])
    if name == "row softmax":
        return rows
    if name == "mean of softmaxes":
        return (rows + columns) / 2
    if name == "dual softmax":
        return normalize(rows * columns, p=1, dim=2)
    if name == "plan":
        return sinkhorn(s, c, torch.ones(s.shape[1]))
    if name.startswith("partial plan, "):  # and the share of orphans
        return partial_plan(s, c, float(name.removeprefix("partial plan, ")))
    if name == "Hungarian":
        return matching(s)
    if name == "true pairs":
        return true.float()
    raise ValueError(f"no such posterior: {name}")


def sinkhorn(s: Tensor, c: float, masses: Tensor, n_iters: int = 30) -> Tensor:
    """The plans exp(c s + f + g) of bags s (G, B, B) whose rows and columns sum to masses (B,).

    For unit masses: the blocks of ``tc.match_bags``, after 30 sweeps.
    """
    kernel, log_masses = c * s, masses.log()
    g = torch.zeros_like(kernel[:, :1, :])
    for _ in range(n_iters):
        f = log_masses[:, None] - torch.logsumexp(kernel + g, dim=2, keepdim=True)
        g = log_masses[None, :] - torch.logsumexp(kernel + f, dim=1, keepdim=True)
    return (kernel + f + g).exp()


def partial_plan(s: Tensor, c: float, orphans: float) -> Tensor:
    """Plans (G, B, B) that leave a share of the rows and columns without a partner.

    A dummy row and a dummy column take mass orphans · B each. Their common corner is forbidden, so
    the similarity of the dummies, a constant, cancels.
    """
    size = s.shape[1]
    padded = pad(s, (0, 1, 0, 1))
    padded[:, -1, -1] = -torch.inf
    masses = torch.tensor([1.0] * size + [orphans * size])
    return sinkhorn(padded, c, masses)[:, :size, :size]


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
