"""With linear ψ the triplet plan is two pairwise plans: which losses are one loss.

Leave out the exclusion j ≠ k. Then the kernel E⁺_ij E⁻_ik makes positive and negative independent
given the anchor, the plan is P_ijk = P⁺_ij P⁻_ik / p¹_i, the target factorises alike, and

    KL(P̃‖P) = KL(P̃¹²‖P⁺) + KL(P̃¹³‖P⁻) − KL(p̃¹‖p¹)

(mathematics §8). The last term is zero for equal class sizes: Neg-MMIOT is then PushPull with
ε₊ = ε₋, up to the exclusion, whose share of all triplets is 1/N.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tricouple import ot
from tricouple.shaping import SHAPINGS, Hinge, Shaping
from tricouple_lab import names
from tricouple_lab.experiments.verify import tensors
from tricouple_lab.experiments.verify.gradients import gradient_of, relative_error
from tricouple_lab.experiments.verify.setting import (
    MARGINALS,
    Criterion,
    Losses,
    Measured,
    Row,
    Setting,
    by_row,
    experiment,
    grouped,
    listed,
    worst,
    worst_of,
)
from tricouple_lab.report.chart import Line

Batch = tuple[Tensor, Tensor]

IDENTITY_SIZES = ((3, 3, 3), (2, 2, 2, 2), (4, 3, 2), (6, 2, 2))
IDENTITY_SHARPNESSES = (2.0, 10.0)

SIZES = (16, 64, 128, 256, 512)
LARGE = 128
"""From so many samples on the losses must agree."""

SHARPNESSES = (3.0, 10.0, 30.0, 100.0)
SWEEPS: dict[str, dict[str, Any]] = {
    "10": {"n_iters": 10},
    "converged": {"n_iters": 3000, "tol": 1e-8, "gradient": "implicit"},
}
DIM = 16

AGREE = 0.01
"""Relative difference of two gradients that count as equal."""

DIFFER = 0.1
"""Relative difference of two gradients that count as different."""

ACCURACY = 1e-5
"""Relative error of a gradient at a marginal error of 1e-8; smaller differences mean nothing."""


@experiment(
    "Error of the decoupling without the exclusion j ≠ k",
    ("row of the table", "error"),
    log="y",
    residual=("error",),
    lines=lambda rows: by_row(rows, "error"),
)
def decoupling_identity(_: Setting) -> Measured:
    """The divergence without the exclusion j ≠ k against the three of pairs, all dense."""
    generator = torch.Generator().manual_seed(0)
    for sizes in IDENTITY_SIZES:
        labels = tensors.class_labels(sizes)
        similarity = (z := tensors.random_unit(len(labels), 4, generator)) @ z.T
        target = tensors.triplet_target(labels)
        for sharpness in IDENTITY_SHARPNESSES:
            for kind in MARGINALS:
                imposed = tensors.imposed_marginals(target, kind)
                whole, parts = divergences(similarity, 1 / sharpness, target, imposed)
                yield {
                    "class sizes": listed(sizes),
                    "c": sharpness,
                    "marginals": kind,
                    "KL(P̃‖P)": whole,
                    "KL(P̃¹²‖P⁺)": parts[0],
                    "KL(P̃¹³‖P⁻)": parts[1],
                    "KL(p̃¹‖p¹)": parts[2],
                    "error": abs(whole - parts[0] - parts[1] + parts[2]),
                }


def divergences(
    similarity: Tensor, epsilon: float, target: Tensor, imposed: list[Tensor]
) -> tuple[float, list[float]]:
    """KL(P̃‖P) of triplets in which j = k is allowed, and the three divergences it consists of."""
    different = tensors.distinct(len(similarity), 2)  # i ≠ j
    allowed = different[:, :, None] & different[:, None, :]
    cost = tensors.triplet_cost(similarity, tensors.SHAPINGS["linear"])
    plan = tensors.solve(cost, epsilon, imposed, allowed)
    first, second, third = imposed
    pull = tensors.divergence(-similarity, epsilon, target.sum(2), [first, second])
    push = tensors.divergence(similarity, epsilon, target.sum(1), [first, third])
    anchors = tensors.kl(target.sum((1, 2)), first.log())
    return float(tensors.kl(target, plan)), [float(pull), float(push), float(anchors)]


def around(labels: Tensor, noise: float, generator: torch.Generator) -> Batch:
    """Samples around one random centre for each label."""
    centres = tensors.random_unit(int(labels.max()) + 1, DIM, generator)[labels]
    drawn = torch.randn(centres.shape, generator=generator, dtype=torch.float64)
    return centres + noise * drawn, labels


def two_views(n: int, generator: torch.Generator) -> Batch:
    """Two noisy copies of N/2 samples."""
    return around(torch.arange(n // 2).repeat(2), 0.25, generator)


def batch_of(kind: str, n: int, generator: torch.Generator) -> Batch:
    """Two views, or samples around the centres of their classes."""
    if kind == "two views":
        return two_views(n, generator)
    sizes = (8,) * (n // 8) if kind == "classes of 8" else (n // 4,) * 2 + (n // 8,) * 4
    return around(tensors.class_labels(sizes), 0.4, generator)


BALANCED = ("two views", "classes of 8")
BATCHES = (*BALANCED, "unbalanced")


def compare(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The difference of two gradients, relative to the first, and their cosine."""
    cosine = (one * other).sum() / (one.norm() * other.norm())
    return relative_error(other, one), float(cosine)


def compared(setting: Setting, shaping: str, batch: str, n: int, sweeps: str) -> Row:
    """A row: the gradients of Neg-MMIOT and PushPull at every sharpness, τ = ε."""
    z, labels = batch_of(batch, n, setting.generator(f"decoupling {batch} {n}"))
    row: Row = {"ψ": names.SHAPINGS[shaping], "batch": batch, "N": n, "sweeps": sweeps}
    cosines = []
    for name, sharpness in zip(columns(), SHARPNESSES, strict=True):
        root = sharpness**-0.5
        options = {"temperature": root, "shaping": shaping, "tol": None, **SWEEPS[sweeps]}
        triplets = setting.losses.triplets(sharpness, epsilon=root, **options)
        pairs = setting.losses.pairs(sharpness, epsilon_pos=root, epsilon_neg=root, **options)
        row[name], cosine = compare(*(gradient_of(loss, z, labels) for loss in (triplets, pairs)))
        cosines.append(cosine)
    return row | {"smallest cosine": -worst(-cosine for cosine in cosines)}


def columns() -> list[str]:
    """The headings of the sharpnesses."""
    return [f"c = {sharpness:g}" for sharpness in SHARPNESSES]


def disagreement(rows: list[Row]) -> float:
    """Above 1 where gradients that must agree do not, or come no nearer with N, or others agree."""
    converged = [row for row in rows if row["sweeps"] == "converged" and row["batch"] in BALANCED]
    linear = [row for row in converged if row["ψ"] == "linear"]
    large = [row for row in linear if int(row["N"]) >= LARGE]
    growth = worst(
        float(late[name]) / max(float(early[name]), ACCURACY)
        for early, late in pairwise(linear)
        if early["batch"] == late["batch"]
        for name in columns()
    )
    other = (float(row[columns()[-1]]) for row in converged if row["ψ"] != "linear")
    different = -worst(-value for value in other)
    return worst((worst_of(large, *columns()) / AGREE, growth, DIFFER / different))


@experiment(
    f"Neg-MMIOT and PushPull: difference of their gradients, two views, N = {LARGE}, τ = ε",
    ("sharpness c", "relative difference"),
    "For linear ψ it is far below one per cent once the sweeps have converged; for log-sigmoid "
    "ψ it is of the size of the gradient.",
    log="xy",
    residual=disagreement,
)
def decoupling(setting: Setting) -> Measured:
    """Relative differences of gradients over N, c, balance and sweeps, for two ψ.

    Converged and balanced, linear ψ must agree from N = 128 on and come nearer with N; log-sigmoid
    at the paper's τ = ε = 0.1 must not agree.
    """
    wanted = [("linear", batch, n) for batch in BATCHES for n in SIZES]
    wanted += [("log_sigmoid", batch, LARGE) for batch in BALANCED]
    for shaping, batch, n in wanted:
        for sweeps in SWEEPS:
            row = compared(setting, shaping, batch, n, sweeps)
            yield row
            if batch == BALANCED[0] and n == LARGE:
                name = f"{row['ψ']}, {sweeps}" + (" sweeps" if sweeps == "10" else "")
                yield Line(name, SHARPNESSES, tuple(float(row[name]) for name in columns()))


PAIRS: dict[str, Callable[[Losses, float], tuple[Criterion, Criterion]]] = {
    "DBOT, InfoNCE": lambda losses, scale: (
        losses.info_nce(temperature=scale),
        losses.dbot(regularisation=scale),
    ),
    "Fused-Gromov, IOT (5 sweeps each)": lambda losses, scale: (
        losses.iot(epsilon=scale, n_iters=5),
        losses.fused_gromov(epsilon=scale),
    ),
}


@experiment(
    "Pairs of losses across two sets: difference of their gradients",
    ("sharpness c", "relative difference"),
    log="xy",
    residual=("relative difference",),
    lines=lambda rows: grouped(rows, "{losses}, N = {N}", "c", "relative difference"),
)
def coincidences(setting: Setting) -> Measured:
    """Two more pairs of losses, across two sets as between images and captions."""
    for n in (64, 256):
        views, _ = two_views(2 * n, setting.generator(f"coincidences {n}"))
        anchors, references = views.chunk(2)
        ids = torch.arange(n)
        across = {"ref_emb": references, "ref_labels": ids}
        for sharpness in (1.0, *SHARPNESSES):
            for name, make in PAIRS.items():
                losses = make(setting.losses, 1 / sharpness)
                gradients = (gradient_of(loss, anchors, ids, **across) for loss in losses)
                difference, cosine = compare(*gradients)
                row: Row = {"losses": name, "N": n, "c": sharpness}
                yield row | {"relative difference": difference, "cosine": cosine}


# --- which ψ does what ----------------------------------------------------------------------------


CLASSES, OF_CLASS = 8, 8
TEMPERATURE, EPSILON = 0.1, 0.3
MARGIN = 0.2
"""Of the hinge, in cosine."""
BINS = 12

TEMPERATURES, EPSILONS = (0.05, 0.1, 0.3, 1.0), (0.05, 0.1, 0.3, 1.0)
N = 64


def shaped(name: str, temperature: float) -> str | Shaping:
    """ψ of a name; the hinge with the margin in cosine."""
    return Hinge(MARGIN / temperature) if name == "hinge" else name


def forces(name: str, similarity: Tensor, identities: Tensor) -> Tensor:
    """∂L/∂s, positive where a pair is pushed apart."""
    s = similarity.clone().requires_grad_()
    if name == "InfoNCE":  # at the same sharpness
        other = tensors.distinct(len(s), 2)
        logits = (s * (1 / (TEMPERATURE * EPSILON))).masked_fill(~other, -torch.inf)
        positive = (identities[:, None] == identities) & other
        loss = -torch.log_softmax(logits, 1)[positive].mean()
    else:
        psi = shaped(name, TEMPERATURE)
        plan = ot.triplet_sinkhorn(s, TEMPERATURE, EPSILON, shaping=psi)  # type: ignore[arg-type]
        function = SHAPINGS[psi] if isinstance(psi, str) else psi
        costs = tensors.triplet_cost(s / TEMPERATURE, function)
        target = tensors.triplet_target(identities)
        masses = zip(tensors.marginals(target), plan.potentials, strict=True)
        potentials = sum((p * u).sum() for p, u in masses)
        loss = ((target * costs).sum() - potentials) / EPSILON  # KL(P̃‖P) but for a constant
    return torch.autograd.grad(loss, s)[0]


@experiment(
    f"Force on negatives, τ = {TEMPERATURE}, ε = {EPSILON}, hinge of {MARGIN} in cosine",
    ("cosine of anchor and negative", "mean force, in units of the mean repulsion"),
    "InfoNCE pushes the nearest negatives and no others; a linear ψ pushes most of them alike and "
    "pulls the far ones; log-sigmoid and hinge push the near ones more and hardly pull.",
    residual=("repulsion on false negatives",),
)
def negatives(setting: Setting) -> Measured:
    """Mean force on negatives by their cosine, and its shares."""
    generator = setting.generator("shaping forces")
    classes = tensors.balanced_labels(CLASSES, OF_CLASS)
    samples, _ = around(classes, 0.15, generator)
    noise = torch.randn(samples.shape, generator=generator, dtype=torch.float64)
    similarity = tensors.gram(torch.cat([samples, samples + 0.08 * noise]))
    identities, classes = torch.arange(len(samples)).repeat(2), classes.repeat(2)
    negative = identities[:, None] != identities
    cosines = similarity[negative]
    false = (classes[:, None] == classes)[negative]
    edges = torch.linspace(float(cosines.min()), float(cosines.max()), BINS + 1)
    hard = cosines >= cosines.quantile(0.9)
    for name in ("InfoNCE", "linear", "log_sigmoid", "hinge"):
        force = forces(name, similarity, identities)[negative]
        push = force.clamp_min(0.0)
        yield {
            "loss": name if name == "InfoNCE" else f"Neg-MMIOT, {name}",
            "repulsion on the hardest tenth": float(push[hard].sum() / push.sum()),
            "repulsion on false negatives": float(push[false].sum() / push.sum()),
            "negatives that are attracted": float((force < -1e-3 * push.mean()).double().mean()),
            "attraction, relative to repulsion": float((push - force).sum() / push.sum()),
        }
        places, means = [], []
        for low, high in pairwise(edges):
            chosen = (cosines >= low) & (cosines <= high)
            if chosen.any():
                places.append(float((low + high) / 2))
                means.append(float(force[chosen].mean() / push.mean()))
        yield Line(name, tuple(places), tuple(means))


@experiment(
    f"Cosine of the gradients of Neg-MMIOT and of two pairwise plans, two views, N = {N}",
    ("ε", "gradient cosine"),
    "Nearly 1 for a linear ψ, and for log-sigmoid at τ = 1; the smaller τ and ε, the smaller it is "
    "for log-sigmoid. For the hinge it stays between 0.48 and 0.76.",
    log="x",
    residual=lambda rows: max(float(row["cosine"]) for row in rows if row["ψ"] != "linear"),
    lines=lambda rows: grouped(rows, "{ψ}, τ = {τ:g}", "ε", "cosine"),
)
def three_way(setting: Setting) -> Measured:
    """Against PushPull with ψ(t) = −t, which a linear Neg-MMIOT is, at the same τ and ε."""
    z, labels = two_views(N, setting.generator("shaping three-way"))
    sweeps = {"n_iters": 10, "tol": None}
    for name in ("linear", "log_sigmoid", "hinge"):
        for temperature in (0.1,) if name == "linear" else TEMPERATURES:
            for epsilon in EPSILONS:
                at = {"temperature": temperature, **sweeps}
                pairs = setting.losses.pairs(1.0, epsilon_pos=epsilon, epsilon_neg=epsilon, **at)
                psi = shaped(name, temperature)
                triplets = setting.losses.triplets(1.0, epsilon=epsilon, shaping=psi, **at)
                gradients = (gradient_of(loss, z, labels) for loss in (triplets, pairs))
                row: Row = {"ψ": name, "τ": temperature, "ε": epsilon}
                yield row | {"cosine": compare(*gradients)[1]}
