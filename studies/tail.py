"""Heads on frozen features of long tails and of wrong labels, beside no training and convex rows.

Accuracy by the nearest class mean, after centring; balanced over classes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.metrics import recall_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot, pad

import tricouple as tc
from studies import features
from studies.features import Labelled
from studies.linear import descend
from studies.study import Config, Measure, Runs, Stage
from tricouple_lab.evaluation.probe import knn_predictions, nearest_mean

Loss = Callable[[Tensor, Tensor], Tensor]


def prepare(runs: Runs, name: str, cell: Config) -> Measure:
    """Cut the data of a cell, mislabel them, and classify."""
    data, runs.data = getattr(features, cell["data"])()
    return partial(measured, data, cell)


def stages(runs: Runs, row: str, cell: Config) -> list[Stage]:
    """Settings by balanced accuracy on a fifth of the cut set."""
    return [Stage(runs.plan["grids"].get(row.split(": ")[0], {}), "balanced")]


def measured(data: Labelled, cell: Config, config: Config, part: str) -> dict[str, float]:
    """Balanced accuracy in percent, also of classes with > 50, 20 to 50, < 20 training samples."""
    seed = config["seed"]
    kept = long_tail(data.y, cell["imbalance"], seed, cell.get("largest"))
    x, test_x, y, test_y = data.x[kept], data.test_x, data.y[kept], data.test_y
    if "wrong" in cell:
        y = mislabelled(x, y, cell["wrong"], cell.get("among"), seed)
    if part == "pilot":
        rest, held = features.held_out(y, 0.2, seed)
        x, test_x, y, test_y = x[rest], x[held], y[rest], y[held]
    own, counts = Labelled(x, test_x, y, test_y), y.bincount(minlength=int(data.y.max()) + 1)
    kind, _, loss = config["row"].partition(": ")
    if kind in LINEAR:
        return balanced(LINEAR[kind](own, config["decay"]), own.test_y, counts)
    a, b = own.x, own.test_x
    if kind != "features, no training":
        a, b = trained(own, counts, kind, loss, config)
    found = balanced(by_means(a, own.y, b), own.test_y, counts)
    if "wrong" in cell:
        voted = knn_predictions(a.numpy(), own.y.numpy(), b.numpy(), 20)
        found["k-NN"] = balanced(voted, own.test_y, counts)["balanced"]
    return found


def mislabelled(x: Tensor, y: Tensor, share: float, among: int | None, seed: int) -> Tensor:
    """Labels of which a share is wrong: any other class, or one of some with the nearest means."""
    generator = torch.Generator().manual_seed(seed)
    centred = x - x.mean(0)
    means = normalize(torch.stack([centred[y == label].mean(0) for label in y.unique()]), dim=1)
    similar = (means @ means.T).fill_diagonal_(-torch.inf)
    others = similar.topk(among or len(means) - 1, dim=1).indices
    other = others[y, torch.randint(others.shape[1], y.shape, generator=generator)]
    return torch.where(torch.rand(y.shape, generator=generator) < share, other, y)


def long_tail(labels: Tensor, ratio: float, seed: int, largest: int | None = None) -> Tensor:
    """Indices of a subset whose class sizes fall exponentially, the largest ``ratio`` the smallest.

    Which classes are large is drawn anew for every seed; every class keeps two samples at least
    and ``largest`` at most.

    Example:
        >>> labels = torch.arange(3).repeat_interleave(16)
        >>> sorted(labels[long_tail(labels, 4, 0)].bincount().tolist())
        [4, 8, 16]
    """
    generator, found = np.random.default_rng(seed + 104_729), labels.numpy()
    classes = np.unique(found)
    places = generator.permutation(len(classes)) / max(1, len(classes) - 1)
    kept = []
    for label, place in zip(classes, places, strict=True):
        own = np.flatnonzero(found == label)
        size = max(2, round(min(len(own), largest or len(own)) * ratio**-place))
        kept.append(generator.permutation(own)[:size])
    return torch.from_numpy(np.sort(np.concatenate(kept)))


def balanced(predicted: np.ndarray, truth: Tensor, counts: Tensor) -> dict[str, float]:
    """Mean accuracy per class; many, medium and few by the number of training samples."""
    classes = truth.unique()
    classes = classes[counts[classes] > 0]
    shares = recall_score(truth, predicted, labels=classes, average=None, zero_division=0)
    size = counts[classes].numpy()
    parts = {
        "balanced": size > 0,
        "many": size > 50,
        "medium": (size >= 20) & (size <= 50),
        "few": size < 20,
    }
    return {name: 100 * float(shares[part].mean()) for name, part in parts.items() if part.any()}


def by_means(x: Tensor, y: Tensor, queries: Tensor) -> np.ndarray:
    """The class whose mean has the largest cosine, after centring by the mean of the classes."""
    centre = torch.stack([x[y == label].mean(0) for label in y.unique()]).mean(0)
    return nearest_mean(*(v.numpy() for v in (x - centre, y, queries - centre)))[0]


# --- closed forms and convex problems -------------------------------------------------------------


def standardised(part: Labelled) -> tuple[Tensor, Tensor]:
    """Training and test samples by mean and standard deviation of the training samples."""
    mean, std = part.x.mean(0), part.x.std(0) + 1e-6
    return (part.x - mean) / std, (part.test_x - mean) / std


def ridge(part: Labelled, decay: float) -> np.ndarray:
    """Least squares on one-hot classes, each class with the same weight."""
    x, test = (pad(v, (0, 1), value=1.0) for v in standardised(part))
    weighted = tc.class_weights(part.y)[part.y] * x.T / len(x)
    gram = weighted @ x + decay * torch.eye(x.shape[1])
    found = test @ torch.linalg.solve(gram, weighted @ one_hot(part.y).float())
    return found.argmax(1).numpy()  # type: ignore[no-any-return]


def logit_adjusted(part: Labelled, decay: float) -> np.ndarray:
    """Softmax regression with logits w·x + log prior (Menon and others 2021), by L-BFGS."""
    (x, test), counts = standardised(part), part.y.bincount()
    layer = nn.Linear(x.shape[1], len(counts))
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    prior = (counts.clamp(min=1) / counts.sum()).log()
    solver = torch.optim.LBFGS(layer.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = cross_entropy(layer(x) + prior, part.y) + decay * layer.weight.square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    return layer(test).detach().argmax(1).numpy()  # type: ignore[no-any-return]


LINEAR = {"ridge": ridge, "logit-adjusted softmax": logit_adjusted}


# --- heads ----------------------------------------------------------------------------------------


def trained(
    part: Labelled, counts: Tensor, kind: str, loss: str, config: Config
) -> tuple[Tensor, Tensor]:
    """Embeddings of training and test samples by a head that is trained."""
    torch.manual_seed(config["seed"])
    x, test, width = part.x, part.test_x, part.x.shape[1]
    layer: nn.Module = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 64))
    identity = kind == "identity head"
    if identity:  # starts as 256 principal directions
        mean = x.mean(0)
        _, _, directions = torch.svd_lowrank(x - mean, q=min(256, *x.shape), niter=4)
        scale = ((x - mean) @ directions).norm(dim=1).mean()
        x, test = ((v - mean) @ directions / scale for v in (x, test))
        layer = nn.Linear(x.shape[1], x.shape[1], bias=False)
        nn.init.zeros_(layer.weight)

    def head(rows: Tensor) -> Tensor:
        return rows + layer(rows) if identity else layer(rows)  # type: ignore[no-any-return]

    known = part.y.unique()
    means = torch.stack([x[part.y == label].mean(0) for label in known])
    objective = objective_of(loss, config["c"], counts) if loss != "BCL" else None

    def of_batch() -> Tensor:
        rows = torch.randint(len(x), (min(256, len(x)),))
        embeddings, labels = head(x[rows]), part.y[rows]
        if objective is None:
            return bcl(embeddings, labels, head(means), known, config["c"])
        return objective(embeddings, labels)

    optimizer = torch.optim.AdamW(layer.parameters(), 1e-3, weight_decay=config["decay"])
    descend(optimizer, config["steps"], of_batch)
    with torch.no_grad():
        return head(x), head(test)


def objective_of(loss: str, c: float, counts: Tensor) -> Loss:
    """A loss of embeddings and labels, such as "IOT, class marginals"."""
    if loss == "RINCE":
        return partial(rince, c=c)
    name, _, how = loss.partition(", ")
    made: Any = {"InfoNCE": tc.InfoNCE, "IOT": tc.IOT, "PushPull": tc.PushPull}[name]
    if how == "weights of the set":
        plain, weights = made(sharpness=c, empty="zero"), 1 / counts.clamp(min=1)
        return lambda z, y: plain(z, y, weights=weights[y])
    found: Loss = made(sharpness=c, empty="zero", marginals="classes" if how else "uniform")
    return found


def rince(z: Tensor, y: Tensor, c: float, q: float = 0.5, weight: float = 0.025) -> Tensor:
    """Robust InfoNCE (Chuang and others 2022), the mean over positive pairs.

    ``−exp(q·c·s⁺)/q + (λ (exp(c·s⁺) + Σ exp(c·s⁻)))^q / q``, over exp(q·c) so that none overflows.
    """
    unit, same = normalize(z, dim=1), y[:, None] == y
    scores = c * (unit @ unit.T - 1)
    others = scores.exp().masked_fill(same, 0).sum(1, keepdim=True)
    robust = ((weight * (scores.exp() + others)) ** q - (q * scores).exp()) / q
    positive = same & ~torch.eye(len(y), dtype=torch.bool)
    return (robust * positive).sum() / positive.sum().clamp(min=1)


def bcl(z: Tensor, y: Tensor, prototypes: Tensor, of: Tensor, c: float) -> Tensor:
    """Balanced contrastive loss (Zhu and others 2022): class complement and class averaging.

    References are the batch and a prototype per class; the denominator of an anchor is a sum over
    classes of means.
    """
    unit = normalize(torch.cat([z, prototypes]), dim=1)
    labels, n = torch.cat([y, of]), len(y)
    scores = c * unit[:n] @ unit.T
    own = torch.eye(n, len(labels), dtype=torch.bool)
    positive = (y[:, None] == labels) & ~own
    size = (labels[:, None] == labels).sum(1)[None] - positive.to(scores)
    every = (scores - size.log()).masked_fill(own, -torch.inf).logsumexp(1)
    return (every - (scores * positive).sum(1) / positive.sum(1)).mean()
