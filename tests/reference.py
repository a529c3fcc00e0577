"""Sets of pairs and triplets by plain loops, and what a loss is compared with.

Dense plans and losses are those of ``tricouple.ot.dense``; the loops check its masks.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tricouple as tc

Triplets = Sequence[tuple[int, int, int]]

# --- relations -----------------------------------------------------------------------------------


def admissible_triplets(ids: Tensor, ref_ids: Tensor | None = None) -> Triplets:
    """The set A of section "Neg-MMIOT-CL": (anchor, positive, negative)."""
    within = ref_ids is None
    anchors = ids.tolist()
    references = anchors if within else ref_ids.tolist()
    sizes = len(anchors), len(references), len(references)
    return [
        (i, j, k)
        for i, j, k in itertools.product(*map(range, sizes))
        if anchors[i] == references[j] and anchors[i] != references[k]
        if j != k and not (within and i in (j, k))
    ]


def pairs_of(ids: Tensor, ref_ids: Tensor | None = None, *, same: bool) -> list[tuple[int, int]]:
    """The positive pairs of IOT-CL (eq. clot_final), i ≠ j within one set, or the appendix's A⁻."""
    anchors = ids.tolist()
    references = anchors if ref_ids is None else ref_ids.tolist()
    return [
        (i, j)
        for i, j in itertools.product(range(len(anchors)), range(len(references)))
        if (anchors[i] == references[j]) is same and not (ref_ids is None and i == j)
    ]


def positive_pairs(labels, ref_labels, triplets) -> list[tuple[int, int]]:
    """The positive pairs of labels, or of listed triplets."""
    if triplets is not None:
        return list(zip(*(index.tolist() for index in triplets[:2]), strict=True))
    return pairs_of(labels, ref_labels, same=True)


def uniform_on(entries: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> Tensor:
    """P̃: uniform on a set of index tuples (duplicates count once), zero elsewhere."""
    target = torch.zeros(shape, dtype=torch.float64)
    for entry in set(entries):
        target[entry] = 1.0
    return target / target.sum()


def class_target(ids: Tensor, ref_ids: Tensor | None = None) -> Tensor:
    """P̃ with class marginals: a class has the same mass on every axis it can be on."""
    triplets = admissible_triplets(ids, ref_ids)
    anchors, references = ids.tolist(), (ids if ref_ids is None else ref_ids).tolist()
    target = torch.zeros(len(anchors), len(references), len(references), dtype=torch.float64)
    positive = {anchors[i] for i, _, _ in triplets}  # classes that can be anchors and positives
    n_positive, n_classes = len(positive), len(set(references))
    for i, j, k in triplets:
        own = len({a for a, _, _ in triplets if anchors[a] == anchors[i]})
        partners = len({p for a, p, _ in triplets if a == i})
        if n_positive == 1:
            share = 1 / (n_classes - 1)
        elif references[k] in positive:  # negative of all other anchor classes
            share = n_positive / (n_positive - 1) / n_classes
        else:  # negative of all of them
            share = 1 / n_classes
        target[i, j, k] = share / (n_positive * own * partners * references.count(references[k]))
    return target


def class_pairs(ids: Tensor, ref_ids: Tensor | None = None) -> Tensor:
    """The positive pairs with class marginals."""
    pairs = pairs_of(ids, ref_ids, same=True)
    anchors, n = ids.tolist(), len(ids if ref_ids is None else ref_ids)
    target = torch.zeros(len(anchors), n, dtype=torch.float64)
    n_classes = len({anchors[i] for i, _ in pairs})
    for i, j in pairs:
        own = len({a for a, _ in pairs if anchors[a] == anchors[i]})
        target[i, j] = 1 / (n_classes * own * len([p for a, p in pairs if a == i]))
    return target


# --- costs, plans, divergences -------------------------------------------------------------------


def cosine(embeddings: Tensor, ref_emb: Tensor | None = None) -> Tensor:
    """s_ij = ⟨z_i, z_j⟩ of the normalised rows."""
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    if ref_emb is None:
        return unit @ unit.T
    return unit @ (ref_emb / ref_emb.norm(dim=1, keepdim=True)).T


def pair_cost(value: Tensor, within: bool) -> Tensor:
    """C_ij of eq. pos_ot: ``value``, and +∞ on the diagonal within one set."""
    if not within:
        return value
    return torch.where(torch.eye(len(value), dtype=torch.bool), math.inf, value)


def triplet_cost(similarity: Tensor, temperature, within: bool, shaping="linear") -> Tensor:
    """C_ijk of eq. c-theta: ψ((s_ij − s_ik)/τ), and +∞ where two of the three are one sample."""
    psi = tc.shaping.SHAPINGS[shaping] if isinstance(shaping, str) else shaping
    itself = torch.eye(similarity.shape[1], dtype=torch.bool)
    meets = itself.expand(len(similarity), -1, -1)
    if within:
        meets = meets | itself[:, :, None] | itself[:, None, :]
    contrast = (similarity[:, :, None] - similarity[:, None, :]) / temperature
    return torch.where(meets, math.inf, psi(contrast))


def uniform_marginals(shape: Sequence[int]) -> list[Tensor]:
    """The same mass for all samples of an axis."""
    return [torch.full((n,), 1.0 / n, dtype=torch.float64) for n in shape]


def own_marginals(plan: Tensor) -> list[Tensor]:
    """Sums over all other axes."""
    axes = range(plan.dim())
    return [plan.sum([other for other in axes if other != axis]) for axis in axes]


def dense_logs(cost: Tensor, epsilon, n_iters: int, imposed=None, *, anti=False) -> Tensor:
    """The logarithm of the dense plan of two or three axes."""
    imposed = uniform_marginals(cost.shape) if imposed is None else imposed
    found = tc.ot.dense.sinkhorn(cost, epsilon, imposed, n_iters, anti=anti)
    signed = torch.where(cost.isfinite(), -cost, math.inf) if anti else cost
    axes = range(cost.dim())
    shaped = [
        potential.reshape([-1 if other == axis else 1 for other in axes])
        for axis, potential in enumerate(found)
    ]
    return (sum(shaped) - signed) / epsilon


def dense_plan(cost: Tensor, epsilon, n_iters: int, imposed=None, *, anti=False) -> Tensor:
    """The dense plan of two or three axes."""
    return dense_logs(cost, epsilon, n_iters, imposed, anti=anti).exp()


def divergence(cost, epsilon, target, marginals="uniform", n_iters=10) -> Tensor:
    """KL(P̃‖P) = Σ P̃ (log P̃ − log P) of a target that was listed; P is not renormalised."""
    imposed = None if marginals == "uniform" else own_marginals(target)
    support, log_plan = target > 0, dense_logs(cost, epsilon, n_iters, imposed)
    return (target[support] * (target[support].log() - log_plan[support])).sum()


def dense_iot(
    embeddings, labels=None, ref_emb=None, ref_labels=None, *, triplets=None, uniformity,
    epsilon=0.1, n_iters=10, marginals="uniform",
) -> Tensor:  # fmt: skip
    """IOT-CL, eq. clot_final; λ·KL(Q‖P) levels the other entries that may have mass; no classes."""
    how = {"epsilon": epsilon, "n_iters": n_iters, "marginals": marginals}
    arguments = embeddings, labels, ref_emb, ref_labels
    loss = tc.ot.dense.iot(*arguments, triplets=triplets, **how)
    cost = pair_cost(1.0 - cosine(embeddings, ref_emb), ref_emb is None)
    target = uniform_on(positive_pairs(labels, ref_labels, triplets), tuple(cost.shape))
    imposed = None if marginals == "uniform" else own_marginals(target)
    logs = dense_logs(cost, epsilon, n_iters, imposed)
    others = logs[(logs > -1e20) & (target == 0)]
    if len(others) == 0:
        return loss
    log_mean = torch.logsumexp(others, 0) - math.log(len(others))
    return loss + uniformity * (log_mean.exp() * (log_mean - others)).sum()


# --- comparison ----------------------------------------------------------------------------------


def marginal_error(plan: Tensor, imposed: Sequence[Tensor]) -> float:
    """The largest L1 distance between an actual and an imposed marginal."""
    pairs = zip(own_marginals(plan), imposed, strict=True)
    return max(float((actual - wanted).abs().sum()) for actual, wanted in pairs)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖, measured in float64."""
    actual, expected = actual.detach().double(), expected.detach().double()
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    return float((actual - expected).norm() / expected.norm())


def assert_same(found: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float) -> None:
    """Tensors are equal one by one."""
    for one, other in zip(found, wanted, strict=True):
        assert relative_error(one, other) <= tolerance


def with_gradients(value: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """A scalar and its gradient to all leaves, flattened into one vector."""
    gradients = torch.autograd.grad(value, leaves)
    return value.detach(), torch.cat([gradient.flatten() for gradient in gradients])


class Watch(TorchDispatchMode):
    """Hands each operation, its arguments and what it returns to ``note``."""

    def __init__(self, note: Callable[[Any, tuple, Any], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        self.note(function, args, found)
        return found


class Largest(Watch):
    """Entries of the largest tensor that is made meanwhile."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.entries = 0

    def _note(self, _function, _args, found) -> None:
        made = [part.numel() for part in tree_leaves(found) if isinstance(part, Tensor)]
        self.entries = max([self.entries, *made])
