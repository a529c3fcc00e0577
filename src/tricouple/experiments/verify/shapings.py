"""Which ψ does what: forces on negatives, and how far a plan is from two pairwise ones.

Gradients with respect to the similarities of one batch, two views of samples of a few classes, for
which other samples of an anchor's class are false negatives.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from tricouple import ot
from tricouple.experiments.verify import tensors
from tricouple.experiments.verify.decoupling import compare, two_views
from tricouple.experiments.verify.gradients import gradient_of
from tricouple.experiments.verify.results import Row, grouped
from tricouple.experiments.verify.setting import Measured, Setting, experiment
from tricouple.report.chart import Line
from tricouple.shaping import Hinge, Shaping, resolve

CLASSES, OF_CLASS, DIM = 8, 8, 16
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
    positive = (identities[:, None] == identities) & tensors.distinct(len(s), 2)
    negative = identities[:, None] != identities
    c = 1 / (TEMPERATURE * EPSILON)
    if name == "InfoNCE":  # at the same sharpness
        logits = (c * s).masked_fill(torch.eye(len(s), dtype=torch.bool), -torch.inf)
        loss = -torch.log_softmax(logits, 1)[positive].mean()
    else:
        psi = shaped(name, TEMPERATURE)
        plan = ot.triplet_sinkhorn(s, TEMPERATURE, EPSILON, shaping=psi)
        costs = resolve(psi)((s[:, :, None] - s[:, None, :]) / TEMPERATURE)
        target = (positive[:, :, None] & negative[:, None, :]).double()
        target /= target.sum()
        masses = target.sum((1, 2)), target.sum((0, 2)), target.sum((0, 1))
        potentials = sum((p * u).sum() for p, u in zip(masses, plan.potentials, strict=True))
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
    classes = torch.arange(CLASSES).repeat_interleave(OF_CLASS)
    centres = tensors.random_unit(CLASSES, DIM, generator)[classes]
    noise = torch.randn(2, *centres.shape, generator=generator, dtype=torch.float64)
    samples = centres + 0.15 * noise[0]
    views = torch.cat([samples, samples + 0.08 * noise[1]])
    unit = torch.nn.functional.normalize(views, dim=1)
    identities, classes = torch.arange(len(samples)).repeat(2), classes.repeat(2)
    negative = identities[:, None] != identities
    similarity = unit @ unit.T
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
