"""With linear ψ the triplet plan is two pairwise plans: which losses are one loss.

Leave out the exclusion j ≠ k. Then the kernel E⁺_ij E⁻_ik makes positive and negative independent
given the anchor, the plan is P_ijk = P⁺_ij P⁻_ik / p¹_i, the target factorises alike, and

    KL(P̃‖P) = KL(P̃¹²‖P⁺) + KL(P̃¹³‖P⁻) − KL(p̃¹‖p¹)

(mathematics §8). The last term is zero for equal class sizes: Neg-MMIOT is then PushPull with
ε₊ = ε₋, up to the exclusion, whose share of all triplets is 1/N.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from theory import setting
from theory.gradients import gradient_of, relative_error
from theory.setting import Measured, Row, Setting, worst, worst_of
from tricouple import ot
from tricouple.shaping import Hinge, resolve
from tricouple_lab.report.figures import Series

IDENTITY_SIZES = ((3, 3, 3), (2, 2, 2, 2), (4, 3, 2), (6, 2, 2))
IDENTITY_SHARPNESSES = (2.0, 10.0)
SIZES = (16, 64, 128, 256)
LARGE = 128  # from so many samples on the losses must agree
SHARPNESSES = (3.0, 10.0, 30.0, 100.0)
SWEEPS: dict[str, dict[str, Any]] = {
    "10": {"n_iters": 10},
    "converged": {"n_iters": 3000, "tol": 1e-8, "gradient": "implicit"},
}
DIM = 16
AGREE = 0.01  # relative difference of gradients that count as equal
DIFFER = 0.1  # of gradients that count as different
ACCURACY = 1e-5  # of a gradient at a marginal error of 1e-8; smaller differences mean nothing


def decoupling_identity(_: Setting) -> Measured:
    """The divergence without the exclusion j ≠ k against the three of pairs, all dense."""
    generator = torch.Generator().manual_seed(0)
    for sizes in IDENTITY_SIZES:
        labels = setting.class_labels(sizes)
        z = setting.random_unit(len(labels), 4, generator)
        target = setting.triplet_target(labels)
        for sharpness, kind in product(IDENTITY_SHARPNESSES, setting.MARGINALS):
            imposed = setting.imposed_marginals(target, kind)
            whole, (pull, push, anchors) = divergences(z @ z.T, 1 / sharpness, target, imposed)
            row: Row = {"class sizes": f"{sizes}"[1:-1], "c": sharpness, "marginals": kind}
            row |= {"KL(P̃‖P)": whole, "KL(P̃¹²‖P⁺)": pull, "KL(P̃¹³‖P⁻)": push}
            yield row | {"KL(p̃¹‖p¹)": anchors, "error": abs(whole - pull - push + anchors)}


def divergences(
    similarity: Tensor, epsilon: float, target: Tensor, imposed: list[Tensor]
) -> tuple[float, list[float]]:
    """KL(P̃‖P) of triplets in which j = k is allowed, and the three divergences it consists of."""
    different = setting.distinct(len(similarity), 2)  # i ≠ j
    allowed = different[:, :, None] & different[:, None, :]
    cost = setting.triplet_cost(similarity, setting.SHAPINGS["linear"])
    plan = setting.log_plan(cost, epsilon, imposed, allowed)
    first, second, third = imposed
    pull = setting.divergence(-similarity, epsilon, target.sum(2), [first, second])
    push = setting.divergence(similarity, epsilon, target.sum(1), [first, third])
    anchors = setting.kl(target.sum((1, 2)), first.log())
    return float(setting.kl(target, plan)), [float(pull), float(push), float(anchors)]


def around(labels: Tensor, noise: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Samples around one random centre for each label, and the labels."""
    centres = setting.random_unit(int(labels.max()) + 1, DIM, generator)[labels]
    drawn = torch.randn(centres.shape, generator=generator, dtype=torch.float64)
    return centres + noise * drawn, labels


def batch_of(kind: str, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two views of N/2 samples, or samples around the centres of their classes."""
    if kind == "two views":
        return around(torch.arange(n // 2).repeat(2), 0.25, generator)
    sizes = (8,) * (n // 8) if kind == "classes of 8" else (n // 4,) * 2 + (n // 8,) * 4
    return around(setting.class_labels(sizes), 0.4, generator)


BALANCED = ("two views", "classes of 8")
BATCHES = (*BALANCED, "unbalanced")


def compare(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The difference of two gradients, relative to the first, and their cosine."""
    cosine = (one * other).sum() / (one.norm() * other.norm())
    return relative_error(other, one), float(cosine)


def columns() -> list[str]:
    """The headings of the sharpnesses."""
    return [f"c = {sharpness:g}" for sharpness in SHARPNESSES]


def compared(given: Setting, shaping: str, batch: str, n: int, sweeps: str) -> Row:
    """A row: the gradients of Neg-MMIOT and PushPull at every sharpness, τ = ε."""
    z, labels = batch_of(batch, n, given.generator(f"decoupling {batch} {n}"))
    row: Row = {"ψ": shaping.replace("_", "-"), "batch": batch, "N": n, "sweeps": sweeps}
    cosines = []
    for name, sharpness in zip(columns(), SHARPNESSES, strict=True):
        root = sharpness**-0.5
        options = {"temperature": root, "shaping": shaping, "tol": None, **SWEEPS[sweeps]}
        triplets = given.losses.triplets(sharpness, epsilon=root, **options)
        pairs = given.losses.pairs(sharpness, epsilon_pos=root, epsilon_neg=root, **options)
        row[name], cosine = compare(*(gradient_of(loss, z, labels) for loss in (triplets, pairs)))
        cosines.append(cosine)
    return row | {"smallest cosine": -worst(-cosine for cosine in cosines)}


def decoupling(given: Setting) -> Measured:
    """Relative differences of gradients over N, c, balance and sweeps, for two ψ.

    Converged and balanced, linear ψ must agree from N = 128 on and come nearer with N; log-sigmoid
    at the paper's τ = ε = 0.1 must not agree.
    """
    wanted = [("linear", batch, n) for batch in BATCHES for n in SIZES]
    wanted += [("log_sigmoid", batch, LARGE) for batch in BALANCED]
    for (shaping, batch, n), sweeps in product(wanted, SWEEPS):
        row = compared(given, shaping, batch, n, sweeps)
        yield row
        if batch == BALANCED[0] and n == LARGE:
            name = f"{row['ψ']}, {sweeps}" + (" sweeps" if sweeps == "10" else "")
            yield Series(name, SHARPNESSES, [float(row[name]) for name in columns()])


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


def coincidences(given: Setting) -> Measured:
    """Two more pairs of losses, across two sets as between images and captions."""
    losses = given.losses
    for n, sharpness in product((64, 256), (1.0, *SHARPNESSES)):
        views, _ = batch_of("two views", 2 * n, given.generator(f"coincidences {n}"))
        anchors, references = views.chunk(2)
        ids, scale = torch.arange(n), 1 / sharpness
        across = {"ref_emb": references, "ref_labels": ids}
        sweeps = losses.iot(epsilon=scale, n_iters=5), losses.fused_gromov(epsilon=scale)
        for name, pair in {
            "DBOT, InfoNCE": (losses.info_nce(temperature=scale), losses.dbot(scale)),
            "Fused-Gromov, IOT (5 sweeps each)": sweeps,
        }.items():
            found = compare(*(gradient_of(loss, anchors, ids, **across) for loss in pair))
            row: Row = {"losses": name, "N": n, "c": sharpness}
            yield row | {"relative difference": found[0], "cosine": found[1]}


# Which ψ does what

CLASSES, OF_CLASS = 8, 8
TEMPERATURE, EPSILON = 0.1, 0.3
MARGIN = 0.2  # of the hinge, in cosine
BINS = 12
GRID = (0.05, 0.1, 0.3, 1.0)  # of τ and ε
N = 64


def forces(name: str, similarity: Tensor, identities: Tensor) -> Tensor:
    """∂L/∂s, positive where a pair is pushed apart."""
    s = similarity.clone().requires_grad_()
    if name == "InfoNCE":  # at the same sharpness
        other = setting.distinct(len(s), 2)
        logits = (s * (1 / (TEMPERATURE * EPSILON))).masked_fill(~other, -torch.inf)
        positive = (identities[:, None] == identities) & other
        loss = -torch.log_softmax(logits, 1)[positive].mean()
    else:
        psi = Hinge(MARGIN / TEMPERATURE) if name == "hinge" else name
        plan = ot.triplet_sinkhorn(s, TEMPERATURE, EPSILON, shaping=psi)  # type: ignore[arg-type]
        costs = setting.triplet_cost(s / TEMPERATURE, resolve(psi))
        target = setting.triplet_target(identities)
        masses = setting.marginals(target)
        dual = sum((p * u).sum() for p, u in zip(masses, plan.potentials, strict=True))
        loss = ((target * costs).sum() - dual) / EPSILON  # KL(P̃‖P) but for a constant
    return torch.autograd.grad(loss, s)[0]


def negatives(given: Setting) -> Measured:
    """Mean force on negatives by their cosine, and its shares."""
    generator = given.generator("shaping forces")
    classes = setting.class_labels((OF_CLASS,) * CLASSES)
    samples, _ = around(classes, 0.15, generator)
    noise = torch.randn(samples.shape, generator=generator, dtype=torch.float64)
    similarity = setting.gram(torch.cat([samples, samples + 0.08 * noise]))
    identities, classes = torch.arange(len(samples)).repeat(2), classes.repeat(2)
    negative = identities[:, None] != identities
    cosines = similarity[negative]
    false = (classes[:, None] == classes)[negative]
    edges = torch.linspace(float(cosines.min()), float(cosines.max()), BINS + 1)
    hard = cosines >= cosines.quantile(0.9)
    for name in ("InfoNCE", "linear", "log_sigmoid", "hinge"):
        force = forces(name, similarity, identities)[negative]
        push = force.clamp_min(0.0)
        attracted = (force < -1e-3 * push.mean()).double().mean()
        row: Row = {"loss": name if name == "InfoNCE" else f"Neg-MMIOT, {name}"}
        row |= {"repulsion on the hardest tenth": float(push[hard].sum() / push.sum())}
        row |= {"repulsion on false negatives": float(push[false].sum() / push.sum())}
        row |= {"negatives that are attracted": float(attracted)}
        yield row | {"attraction, relative to repulsion": float((push - force).sum() / push.sum())}
        bins = [((low + high) / 2, (cosines >= low) & (cosines <= high))
                for low, high in pairwise(edges)]  # fmt: skip
        means = [(float(x), float(force[own].mean() / push.mean())) for x, own in bins if own.any()]
        yield Series(name, *map(list, zip(*means, strict=True)))


def three_way(given: Setting) -> Measured:
    """Against PushPull with ψ(t) = −t, which a linear Neg-MMIOT is, at the same τ and ε."""
    z, labels = batch_of("two views", N, given.generator("shaping three-way"))
    for name in ("linear", "log_sigmoid", "hinge"):
        for temperature in (0.1,) if name == "linear" else GRID:
            cosines = []
            for epsilon in GRID:
                at: dict[str, Any] = {"temperature": temperature, "n_iters": 10, "tol": None}
                pairs = given.losses.pairs(1.0, epsilon_pos=epsilon, epsilon_neg=epsilon, **at)
                psi = Hinge(MARGIN / temperature) if name == "hinge" else name
                triplets = given.losses.triplets(1.0, epsilon=epsilon, shaping=psi, **at)
                gradients = (gradient_of(loss, z, labels) for loss in (triplets, pairs))
                cosines.append(compare(*gradients)[1])
                yield {"ψ": name, "τ": temperature, "ε": epsilon, "cosine": cosines[-1]}
            yield Series(f"{name}, τ = {temperature:g}", GRID, cosines)
