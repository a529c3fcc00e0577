"""Which losses are one: with linear ψ the triplet plan is two pairwise plans (mathematics §8)."""

from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from theory import setting
from theory.setting import NOT, Measured, Row, Setting, gradient_of, statement, worst
from tricouple import DBOT, FusedGromov
from tricouple.shaping import linear
from tricouple_lab.report.figures import Series

IDENTITY_SIZES = ((3, 3, 3), (2, 2, 2, 2), (4, 3, 2), (6, 2, 2))
IDENTITY_SHARPNESSES = (2.0, 10.0)
SIZES = (16, 64, 128, 256)
LARGE = 128  # from so many samples on the losses must agree
SHARPNESSES = (3.0, 10.0, 30.0, 100.0)
SWEEPS: dict[str, dict[str, Any]] = {
    "10": {"n_iters": 10, "tol": None},
    "converged": {"n_iters": 3000, "tol": 1e-8, "gradient": "implicit"},
}
DIM = 16
BALANCED = ("two views", "classes of 8")
BATCHES = (*BALANCED, "unbalanced")
AGREE = 0.01  # relative difference of gradients that count as equal
DIFFER = 0.1  # of gradients that count as different
ACCURACY = 1e-5  # of a gradient at a marginal error of 1e-8; smaller differences mean nothing


def divergences(
    similarity: Tensor, epsilon: float, target: Tensor, kind: str
) -> tuple[float, list[float]]:
    """KL(P̃‖P) of triplets in which j = k is allowed, and the three divergences it consists of."""
    different = setting.distinct(len(similarity), 2)  # i ≠ j
    allowed = different[:, :, None] & different[:, None, :]
    cost = setting.triplet_cost(similarity, linear)
    whole = setting.divergence(cost, epsilon, target, kind, allowed)
    pairs = (-similarity, target.sum(2)), (similarity, target.sum(1))
    parts = [setting.divergence(cost, epsilon, own, kind) for cost, own in pairs]
    anchors = setting.marginals(target, kind)[0]
    parts.append(kl_div(anchors.log(), target.sum((1, 2)), reduction="sum"))
    return float(whole), [float(part) for part in parts]


@statement(NOT, "largest error", 1e-10, "error")
def decoupling_identity(_: Setting) -> Measured:
    """Were j = k allowed: KL(P̃‖P) = KL(P̃¹²‖P⁺) + KL(P̃¹³‖P⁻) − KL(p̃¹‖p¹) for ψ affine."""
    generator = torch.Generator().manual_seed(0)
    for sizes in IDENTITY_SIZES:
        labels = setting.class_labels(sizes)
        z = setting.random_unit(len(labels), 4, generator)
        target = setting.triplet_target(labels)
        for sharpness, kind in product(IDENTITY_SHARPNESSES, setting.MARGINALS):
            whole, (pull, push, anchors) = divergences(z @ z.T, 1 / sharpness, target, kind)
            row = {"class sizes": f"{sizes}"[1:-1], "c": sharpness, "marginals": kind}
            row |= {"KL(P̃‖P)": whole, "KL(P̃¹²‖P⁺)": pull, "KL(P̃¹³‖P⁻)": push}
            yield row | {"KL(p̃¹‖p¹)": anchors, "error": abs(whole - pull - push + anchors)}


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


def compare(losses: tuple[Any, Any], *batch: Tensor, **across: Tensor) -> tuple[float, float]:
    """The difference of the gradients of two losses, relative to the first, and their cosine."""
    one, other = (gradient_of(loss, *batch, **across).flatten() for loss in losses)
    return setting.relative_error(other, one), float(torch.cosine_similarity(one, other, dim=0))


def disagreement(rows: list[Row]) -> float:
    """Above 1 where gradients that must agree do not, or come no nearer with N, or others agree."""
    columns = [f"c = {c:g}" for c in SHARPNESSES]
    converged = [row for row in rows if row["sweeps"] == "converged" and row["batch"] in BALANCED]
    linear = [row for row in converged if row["ψ"] == "linear"]
    found = [row[name] / AGREE for row in linear for name in columns if row["N"] >= LARGE]
    found += [DIFFER / row[columns[-1]] for row in converged if row["ψ"] != "linear"]
    for early, late in pairwise(linear):
        if early["batch"] == late["batch"]:
            found += [late[name] / max(early[name], ACCURACY) for name in columns]
    return worst(found)


@statement(NOT,
           "difference of gradients over 1 %, its growth with N, or 10 % over it (log-sigmoid)",
           1.0, disagreement)  # fmt: skip
def decoupling(given: Setting) -> Measured:
    """With ψ affine, balanced classes and ε₊ = ε₋, Neg-MMIOT is PushPull up to j ≠ k.

    Converged and balanced, the gradients of linear ψ must agree from N = 128 on and come nearer
    with N; those of log-sigmoid at the paper's τ = ε = 0.1 must not agree.
    """
    wanted = [("linear", batch, n) for batch in BATCHES for n in SIZES]
    wanted += [("log_sigmoid", batch, LARGE) for batch in BALANCED]
    for (shaping, batch, n), sweeps in product(wanted, SWEEPS):
        z, labels = batch_of(batch, n, given.generator(f"decoupling {batch} {n}"))
        row = {"ψ": shaping.replace("_", "-"), "batch": batch, "N": n, "sweeps": sweeps}
        found = []
        for sharpness in SHARPNESSES:
            root = sharpness**-0.5
            how = {"temperature": root, "epsilon": root, "shaping": shaping, **SWEEPS[sweeps]}
            losses = given.triplets(sharpness, **how), given.pairs(sharpness, **how)
            found.append(compare(losses, z, labels))
        differences, cosines = zip(*found, strict=True)
        row |= {f"c = {c:g}": value for c, value in zip(SHARPNESSES, differences, strict=True)}
        yield row | {"smallest cosine": -worst(-cosine for cosine in cosines)}
        if batch == BALANCED[0] and n == LARGE:
            name = f"{row['ψ']}, {sweeps}" + (" sweeps" if sweeps == "10" else "")
            yield Series(name, SHARPNESSES, differences)


@statement(NOT, "largest relative difference of gradients", None, "relative difference")
def coincidences(given: Setting) -> Measured:
    """Is DBOT at its public bounds InfoNCE, and Fused-Gromov IOT?

    Across two sets, as between images and captions.
    """
    for n, sharpness in product((64, 256), (1.0, *SHARPNESSES)):
        views, _ = batch_of("two views", 2 * n, given.generator(f"coincidences {n}"))
        anchors, references = views.chunk(2)
        ids, scale = torch.arange(n), 1 / sharpness
        across = {"ref_emb": references, "ref_labels": ids}
        sweeps = given.iot(epsilon=scale, n_iters=5), FusedGromov(epsilon=scale)
        softmax = given.info_nce(temperature=scale), DBOT(scale)
        pairs = {"DBOT, InfoNCE": softmax, "Fused-Gromov, IOT (5 sweeps each)": sweeps}
        for name, pair in pairs.items():
            difference, cosine = compare(pair, anchors, ids, **across)
            row = {"losses": name, "N": n, "c": sharpness}
            yield row | {"relative difference": difference, "cosine": cosine}
