"""Three modalities: what a triangle plan teaches linear encoders, and what it adds at test time.

shared: each modality is a linear view of one latent vector and has structured noise of its own.
class: the latent vector is one of 64 class means and a small part of its own; right is the class.
ring: each pair of modalities shares a latent vector, and nothing is common to all three.
Flickr8k: an image and two of its captions, frozen features, whitened.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize
from torch.optim.lr_scheduler import LambdaLR

import tricouple as tc
from studies import features
from studies.linear import descend, whitening
from studies.study import Config, Measure, Plan, Runs, Stage

NAMES, EDGES = ("image", "text", "audio"), ((0, 1), (0, 2), (1, 2))
ANCHORS = ((0, 1, 2), (1, 0, 2), (2, 0, 1))
LATENT, WIDTH, CLASSES = 12, 48, 64
WHITE = 128  # directions of the whitened features
Unit = list[Tensor]  # of each modality, (N, d)


class Split(NamedTuple):
    """Triples, and what a right answer has in common with its query."""

    x: list[Tensor]
    labels: Tensor


Splits = dict[str, Split]

# --- data -----------------------------------------------------------------------------------------


def generated(kind: str, seed: int, sizes: Mapping[str, int]) -> Splits:
    """Triples of a random world."""
    world = torch.Generator().manual_seed(1000 + seed)
    mixing = torch.randn(3, 2 * LATENT, WIDTH, generator=world) / LATENT**0.5
    means, found = torch.randn(CLASSES, LATENT, generator=world), {}
    for n_split, (name, n) in enumerate(sizes.items()):
        draw = torch.Generator().manual_seed(7919 * n_split + seed)
        labels = torch.randint(CLASSES, (n,), generator=draw)
        common, *own = torch.randn(4, n, LATENT, generator=draw)
        if kind == "class":
            common = means[labels] + 0.3 * common
        latents = [common] * 3
        if kind == "ring":  # EDGES are also the pairs that the first modality has, the second, …
            pairs = torch.randn(3, n, LATENT // 2, generator=draw)
            latents = [torch.cat([pairs[first], pairs[second]], 1) for first, second in EDGES]
        noise = torch.randn(3, n, WIDTH, generator=draw)
        x = [
            torch.cat([latent, 1.5 * part], 1) @ mix + more
            for latent, part, mix, more in zip(latents, own, mixing, noise, strict=True)
        ]
        found[name] = Split(x, labels if kind == "class" else torch.arange(n))
    return found


def flickr8k(gallery: int) -> tuple[Splits, str]:
    """Images and their first two captions, whitened; their digest."""
    data, digest = features.flickr8k()
    of_images = whitening(data["train"].images, 0.1, WHITE)
    of_texts = whitening(data["train"].texts.flatten(0, 1), 0.1, WHITE)
    found = {}
    for name, (images, texts) in data.items():
        n = len(images) if name == "train" else gallery
        x = [of_images(images[:n]), of_texts(texts[:n, 0]), of_texts(texts[:n, 1])]
        found[name] = Split(x, torch.arange(n))
    return found, digest


# --- losses of unit vectors -----------------------------------------------------------------------


def pairwise(loss: Callable[..., Any]) -> Callable[[Unit, float], Tensor]:
    """The sum of a loss over the three pairs."""

    def total(z: Unit, c: float) -> Tensor:
        both, rows = tc.BothDirections(loss(sharpness=c)), torch.arange(len(z[0]))
        return torch.stack([both(z[x], z[y], rows) for x, y in EDGES]).sum()

    return total


def plan(edges: str) -> Callable[[Unit, float], Tensor]:
    """The library's loss of three modalities."""
    return lambda z, c: tc.MultiModalIOT(c, edges)(dict(zip(NAMES, z, strict=True)))  # type: ignore[arg-type]


def symile(z: Unit, c: float) -> Tensor:
    """Softmax over all N² pairs of the sum of triple products, each modality as the anchor."""
    n, width = z[0].shape
    right, loss = torch.arange(n) * (n + 1), z[0].new_zeros(())
    for x, y, w in ANCHORS:
        pairs = (z[y][:, None] * z[w]).flatten(0, 1)  # (N², d)
        loss = loss + cross_entropy(c * width**0.5 * z[x] @ pairs.T, right)
    return loss / 3


def volumes(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    """Of the parallelepipeds of three unit vectors with these inner products."""
    return (1 + 2 * a * b * t - a**2 - b**2 - t**2).clamp_min(1e-6).sqrt()


def gram(z: Unit, c: float) -> Tensor:
    """Softmax of −c·volume over anchors and over pairs, each modality as the anchor."""
    rows, loss = torch.arange(len(z[0])), z[0].new_zeros(())
    for x, y, w in ANCHORS:
        logits = -c * volumes(z[x] @ z[y].T, z[x] @ z[w].T, (z[y] * z[w]).sum(1))
        loss = loss + (cross_entropy(logits, rows) + cross_entropy(logits.T, rows)) / 2
    return loss


LOSSES: dict[str, Callable[[Unit, float], Tensor]] = {
    "pairwise InfoNCE": pairwise(tc.InfoNCE),
    "pairwise IOT": pairwise(tc.IOT),
    "triangle": plan("triangle"),
    "star": plan("star"),
    "joint InfoNCE": plan("joint"),
    "Symile": symile,
    "GRAM": gram,
}


# --- scores ---------------------------------------------------------------------------------------


def added(z: Unit, x: int, y: int, row: str = "") -> Tensor:
    """Scores of queries (x_i, y_i) and items of the third: added cosines, or the loss's own."""
    third = z[3 - x - y]
    if row == "Symile":
        return (z[x] * z[y]) @ third.T
    if row == "GRAM":
        return -volumes(z[x] @ third.T, z[y] @ third.T, (z[x] * z[y]).sum(1, keepdim=True))
    return (z[x] + z[y]) @ third.T


def log_plan(scores: Tensor) -> Tensor:
    """Log P of the entropic plan of pairs, up to a constant."""
    f, g = tc.ot.sinkhorn(-scores, epsilon=1.0, n_iters=20).potentials
    return scores + f[:, None] + g


def bridge(z: Unit, x: int, y: int, c: float) -> Tensor:
    """c·s_xy + log Σ_k exp(c·s_xk + c·s_ky): the third gallery without potentials."""
    third = z[3 - x - y]
    left, right = c * (z[x] @ third.T - 1), c * (third @ z[y].T - 1)
    return c * z[x] @ z[y].T + (left.exp() @ right.exp()).log()


def right_answers(scores: Tensor, labels: Tensor) -> float:
    """Recall@1 in percent."""
    return 100 * (labels[scores.argmax(1)] == labels).double().mean().item()


def one_to_one(scores: Callable[[int, int], Tensor], labels: Tensor) -> float:
    """The mean over six directions of three matrices of scores."""
    found = [scores(x, y) for x, y in EDGES]
    return sum(right_answers(s, labels) + right_answers(s.T, labels) for s in found) / 6


def two_to_one(scores: Callable[[int, int], Tensor], labels: Tensor) -> float:
    """The mean over three targets."""
    return sum(right_answers(scores(x, y), labels) for x, y in EDGES) / 3


def by_cosine(z: Unit, labels: Tensor, row: str) -> dict[str, float]:
    """Recall without a plan; ``both`` is what c is chosen by."""
    one = one_to_one(lambda x, y: z[x] @ z[y].T, labels)
    two = two_to_one(lambda x, y: added(z, x, y, row), labels)
    return {"1→1": one, "2→1": two, "both": (one + two) / 2}


def scored(z: Unit, labels: Tensor, way: str, c: float) -> float:
    """Recall by a plan of the whole gallery (transductive)."""
    kind, _, mean = way.partition(" ")
    named = dict(zip(NAMES, z, strict=True))
    plan = tc.ot.multimodal_sinkhorn(named, c, n_iters=10) if kind == "triangle" else None

    def scores(x: int, y: int) -> Tensor:
        if kind == "bridge":
            return log_plan(bridge(z, x, y, c))
        if plan is None:
            return log_plan(c * z[x] @ z[y].T if mean == "1→1" else c * added(z, x, y))
        if mean == "1→1":
            return plan.pair_marginal(NAMES[x], NAMES[y])
        return plan.conditional((NAMES[x], NAMES[y]), NAMES[3 - x - y])

    return one_to_one(scores, labels) if mean == "1→1" else two_to_one(scores, labels)


def ten_sweeps(z: Unit, c: float) -> dict[str, float]:
    """Marginal error after ten sweeps, cosine of their gradient with that of the converged plan."""
    rows = {name: part[:64].double() for name, part in zip(NAMES, z, strict=True)}

    def gradient(**how: Any) -> Tensor:
        leaves = {name: part.clone().requires_grad_() for name, part in rows.items()}
        loss = tc.MultiModalIOT(c, **how)(leaves)
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, [*leaves.values()])])

    converged = gradient(n_iters=400, inner=20, tol=1e-4, gradient="envelope")
    error = tc.ot.multimodal_sinkhorn(rows, c, n_iters=10, inner=1).marginal_error
    similar = cosine_similarity(gradient(), converged, dim=0).item()
    return {f"gradient, c = {c}": similar, f"marginal error, c = {c}": error}


# --- runs -----------------------------------------------------------------------------------------


def prepare(runs: Runs, name: str, cell: Any) -> Measure:
    """Train encoders on the triples of a cell, and score those of validation or test."""
    plan, fixed, runs.data = runs.plan, None, "generated"
    if name == "Flickr8k":
        fixed, runs.data = flickr8k(plan["sizes"]["test"])

    def measure(config: Config, part: str) -> dict[str, float]:
        row, c, seed = config["row"], config["c"], config["seed"]
        splits = fixed or generated(name, seed, plan["sizes"])
        heads = train(splits["train"], row, c, seed, plan)
        split = splits["test" if part == "final" else "validation"]
        z = [normalize(x @ head, dim=1) for x, head in zip(split.x, heads, strict=True)]
        ways = {way: config[way] for way in plan["ways"] if way in config}
        found = by_cosine(z, split.labels, row)
        found |= {way: scored(z, split.labels, way, own) for way, own in ways.items()}
        if part == "final" and [name, row] == plan["sweeps"]:
            found |= ten_sweeps(z, 10) | ten_sweeps(z, 30)
        return found

    return measure


def stages(runs: Runs, row: str, cell: Any) -> list[Stage]:
    """The c of a loss, then that of each way of scoring."""
    plan = runs.plan
    first = Stage({"c": plan["grids"].get(row, plan["grids"]["all"])}, "both")
    ways = plan["ways"] if row == plan["scored"] else ()
    return [first, *(Stage({way: plan["constants"]}, way, {"scored": way}) for way in ways)]


def train(split: Split, row: str, c: float, seed: int, used: Plan) -> list[Tensor]:
    """Linear encoders, one per modality, from small random numbers."""
    torch.manual_seed(seed)
    width = used["width"] if split.x[0].shape[1] == WHITE else LATENT
    heads = [nn.Parameter(0.1 * torch.randn(x.shape[1], width)) for x in split.x]

    def loss() -> Tensor:
        rows = torch.randint(len(split.labels), (used["batch"],))
        parts = zip(split.x, heads, strict=True)
        return LOSSES[row]([normalize(x[rows] @ head, dim=1) for x, head in parts], c)

    optimizer = torch.optim.Adam(heads, used["learning_rate"])
    descend(optimizer, used["steps"], loss, LambdaLR(optimizer, lambda step: 1.0))
    return [head.detach() for head in heads]
