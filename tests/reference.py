"""The paper's losses as the paper writes them: dense, float64, log-domain, autograd.

Nothing is fast or clever here, so that it can be believed by reading. A loss is `coupling_loss` of
a dense cost and a dense target; options are named as in the library's modules.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Triplets = Sequence[tuple[int, int, int]]
CONVERGED = 300  # sweeps; at soft sharpness every batch of conftest stands still well before


SHAPINGS: dict[str, Callable[[Tensor], Tensor]] = {  # ψ
    "linear": lambda t: -t,
    "log_sigmoid": lambda t: torch.nn.functional.softplus(-t, threshold=1000.0),
}


# --- relations -----------------------------------------------------------------------------------


def admissible_triplets(ids: Tensor, ref_ids: Tensor | None = None) -> Triplets:
    """The set A of section "Neg-MMIOT-CL": (anchor, positive, negative), by plain loops."""
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
        return [listed[:2] for listed in triplets]
    return pairs_of(labels, ref_labels, same=True)


def uniform_on(entries: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> Tensor:
    """P̃: uniform on a set of index tuples (duplicates count once), zero elsewhere."""
    target = torch.zeros(shape, dtype=torch.float64)
    for entry in set(entries):
        target[entry] = 1.0
    return target / target.sum()


def class_target(ids: Tensor, ref_ids: Tensor | None = None) -> Tensor:
    """P̃ with class marginals, by loops: a class has the same mass on every axis it can be on."""
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
    """The positive pairs with class marginals, by loops."""
    pairs = positive_pairs(ids, ref_ids, None)
    anchors, n = ids.tolist(), len(ids if ref_ids is None else ref_ids)
    target = torch.zeros(len(anchors), n, dtype=torch.float64)
    n_classes = len({anchors[i] for i, _ in pairs})
    for i, j in pairs:
        own = len({a for a, _ in pairs if anchors[a] == anchors[i]})
        target[i, j] = 1 / (n_classes * own * len([p for a, p in pairs if a == i]))
    return target


# --- costs ---------------------------------------------------------------------------------------


def cosine(embeddings: Tensor, ref_emb: Tensor | None = None) -> Tensor:
    """s_ij = ⟨z_i, z_j⟩ of the normalised rows."""
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    if ref_emb is None:
        return unit @ unit.T
    return unit @ (ref_emb / ref_emb.norm(dim=1, keepdim=True)).T


def pair_cost(value: Tensor, within: bool) -> Tensor:
    """C_ij of eq. pos_ot: `value`, and +∞ on the diagonal within one set."""
    if not within:
        return value
    return torch.where(torch.eye(len(value), dtype=torch.bool), math.inf, value)


def triplet_cost(similarity: Tensor, temperature, within: bool, shaping="linear") -> Tensor:
    """C_ijk of eq. c-theta: ψ((s_ij − s_ik)/τ), and +∞ where the indices may not meet."""
    n, m = similarity.shape
    psi = SHAPINGS.get(shaping, shaping)
    i = torch.arange(n)[:, None, None]
    j = torch.arange(m)[None, :, None]
    k = torch.arange(m)[None, None, :]
    allowed = (j != k).expand(n, m, m)
    if within:
        allowed = allowed & (i != j) & (i != k)
    contrast = (similarity[:, :, None] - similarity[:, None, :]) / temperature
    return torch.where(allowed, psi(contrast), math.inf)


# --- plans ---------------------------------------------------------------------------------------


def log_sum_exp(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Log Σ exp(x) over `dims`; 0, which nobody reads, where every entry is −∞."""
    peak = x.detach().amax(dims, keepdim=True)
    peak = torch.where(peak.isfinite(), peak, 0.0)
    total = (x - peak).exp().sum(dims)
    return torch.where(total > 0, total, 1.0).log() + peak.reshape(total.shape)


def mm_sinkhorn(
    cost: Tensor, epsilon, marginals: Sequence[Tensor], n_iters: int
) -> tuple[Tensor, list[Tensor]]:
    """MM-Sinkhorn of Algorithm 1 for any number of marginals: log-plan and log-scalings.

    Log-scalings start at 0; a sweep rescales each axis in turn to its marginal; an index of zero
    mass gets the log-scaling −∞.
    """
    axes = range(cost.dim())
    log_kernel = -cost / epsilon
    scalings = [torch.zeros(n, dtype=cost.dtype) for n in cost.shape]

    def along(axis: int) -> Tensor:
        return scalings[axis].reshape([-1 if other == axis else 1 for other in axes])

    for _ in range(n_iters):
        for axis, mass in enumerate(marginals):
            others = tuple(other for other in axes if other != axis)
            total = log_sum_exp(log_kernel + sum(along(other) for other in others), others)
            scalings[axis] = torch.where(mass > 0, mass.log() - total, -math.inf)
    return log_kernel + sum(along(axis) for axis in axes), scalings


def own_marginals(plan: Tensor) -> list[Tensor]:
    axes = range(plan.dim())
    return [plan.sum(tuple(other for other in axes if other != axis)) for axis in axes]


def uniform_marginals(shape: Sequence[int]) -> list[Tensor]:
    return [torch.full((n,), 1.0 / n, dtype=torch.float64) for n in shape]


def dense_triplet_plan(
    similarity, temperature, epsilon, *, n_iters, within=True, marginals=None, shaping="linear"
) -> Tensor:
    """P of eq. neg_mmot_final after `n_iters` sweeps, N×M×M."""
    cost = triplet_cost(similarity, temperature, within, shaping)
    imposed = uniform_marginals(cost.shape) if marginals is None else marginals
    return mm_sinkhorn(cost, epsilon, imposed, n_iters)[0].exp()


def dense_pair_plan(
    cost, epsilon, *, n_iters, row_marginal=None, column_marginal=None, anti=False
) -> Tensor:
    """P₊ of eq. pos_ot, or with `anti` P₋ of eq. neg_ot, after `n_iters` sweeps, N×M."""
    rows, columns = uniform_marginals(cost.shape)
    imposed = [
        rows if row_marginal is None else row_marginal,
        columns if column_marginal is None else column_marginal,
    ]
    signed = torch.where(cost.isfinite(), -cost, math.inf) if anti else cost
    return mm_sinkhorn(signed, epsilon, imposed, n_iters)[0].exp()


def marginal_error(plan: Tensor, imposed: Sequence[Tensor]) -> float:
    """The largest L1 distance between an actual and an imposed marginal."""
    pairs = zip(own_marginals(plan), imposed, strict=True)
    return max(float((actual - wanted).abs().sum()) for actual, wanted in pairs)


# --- losses --------------------------------------------------------------------------------------


def kl_to(target: Tensor, log_plan: Tensor) -> Tensor:
    """KL(P̃‖P) = Σ P̃ (log P̃ − log P) over the support of P̃; P is not renormalised."""
    support = target > 0
    return (target[support] * (target[support].log() - log_plan[support])).sum()


def coupling_loss(cost, epsilon, target, marginals, n_iters, gradient="unrolled") -> Tensor:
    """KL(P̃‖P^C), with the gradient of autograd or with Danskin's, ∂g/∂C = (P̃ − P)/ε."""
    imposed = uniform_marginals(cost.shape) if marginals == "uniform" else own_marginals(target)
    if gradient == "unrolled":
        return kl_to(target, mm_sinkhorn(cost, epsilon, imposed, n_iters)[0])
    assert gradient == "envelope"
    log_plan = mm_sinkhorn(cost.detach(), epsilon, imposed, n_iters)[0]
    allowed = cost.isfinite()
    slope = ((target - log_plan.exp()) / epsilon)[allowed]
    moved = cost[allowed] - cost.detach()[allowed]  # zero, with the gradient of the cost
    return kl_to(target, log_plan) + (slope * moved).sum()


def dense_neg_mmiot(
    embeddings, labels=None, ref_emb=None, ref_labels=None, triplets=None, *,
    temperature=0.1, epsilon=0.1, n_iters=10, shaping="linear", marginals="uniform",
    gradient="unrolled",
) -> Tensor:  # fmt: skip
    """Neg-MMIOT-CL, eq. neg_mmot_final."""
    within = ref_emb is None
    cost = triplet_cost(cosine(embeddings, ref_emb), temperature, within, shaping)
    admissible = admissible_triplets(labels, ref_labels) if triplets is None else triplets
    target = uniform_on(admissible, tuple(cost.shape))
    if marginals == "classes":
        target = class_target(labels, ref_labels)
    return coupling_loss(cost, epsilon, target, marginals, n_iters, gradient)


def dense_push_pull(
    embeddings, labels=None, ref_emb=None, ref_labels=None, triplets=None, *,
    temperature=0.1, epsilon_pos=0.1, epsilon_neg=0.1, n_iters=10, shaping="linear",
    marginals="uniform", gradient="unrolled", negatives="projected",
) -> Tensor:  # fmt: skip
    """Neg-IOT-CL-PushPull, eq. iot_pushpull_final: positive transport, negative anti-transport.

    A⁻ is the projection of A as in Algorithm 1, or all unequal pairs as in the appendix.
    """
    within = ref_emb is None
    contrast = SHAPINGS.get(shaping, shaping)(cosine(embeddings, ref_emb) / temperature)
    shape = tuple(contrast.shape)
    admissible = admissible_triplets(labels, ref_labels) if triplets is None else triplets
    pull = uniform_on([(i, j) for i, j, _ in admissible], shape)  # A⁺
    push = uniform_on([(i, k) for i, _, k in admissible], shape)  # A⁻
    if negatives == "all" and triplets is None:
        push = uniform_on(pairs_of(labels, ref_labels, same=False), shape)
    if marginals == "classes":
        target = class_target(labels, ref_labels)
        pull, push = target.sum(2), target.sum(1)
    rest = (marginals, n_iters, gradient)
    return coupling_loss(pair_cost(contrast, within), epsilon_pos, pull, *rest) + coupling_loss(
        pair_cost(-contrast, within), epsilon_neg, push, *rest
    )


def dense_iot(
    embeddings, labels=None, ref_emb=None, ref_labels=None, triplets=None, *,
    epsilon=0.1, n_iters=10, uniformity=0.0, marginals="uniform", gradient="unrolled",
) -> Tensor:  # fmt: skip
    """IOT-CL, eq. clot_final; λ·KL(Q‖P) levels the other entries that may have mass."""
    within = ref_emb is None
    cost = pair_cost(1.0 - cosine(embeddings, ref_emb), within)
    pairs = (
        pairs_of(labels, ref_labels, same=True) if triplets is None else [t[:2] for t in triplets]
    )
    target = uniform_on(pairs, tuple(cost.shape))
    if marginals == "classes":
        target = class_pairs(labels, ref_labels)
    loss = coupling_loss(cost, epsilon, target, marginals, n_iters, gradient)
    if uniformity == 0:
        return loss
    imposed = uniform_marginals(cost.shape) if marginals == "uniform" else own_marginals(target)
    log_plan = mm_sinkhorn(cost, epsilon, imposed, n_iters)[0]
    others = log_plan[log_plan.isfinite() & (target == 0)]
    if len(others) == 0:
        return loss
    log_mean = log_sum_exp(others, (0,)) - math.log(len(others))
    return loss + uniformity * (log_mean.exp() * (log_mean - others)).sum()


# --- the same for larger batches -----------------------------------------------------------------


def scaled_divergence(score: Tensor, allowed: Tensor, support: Tensor, n_iters: int) -> Tensor:
    """KL(P̃‖P) for the kernel exp(score) and P̃ uniform on `support`, as dense as above.

    Scalings instead of their logarithms and masks instead of loops: float64 holds kernels up to
    sharpness 100, and autograd keeps vectors instead of N³ logarithms for every sweep.
    """
    axes = range(score.dim())
    kernel = torch.where(allowed, score.exp(), 0.0)
    scalings = [torch.ones(n, dtype=score.dtype) for n in score.shape]
    for _ in range(n_iters):
        for axis in axes:
            sums = kernel
            for other in reversed(axes):
                if other != axis:
                    sums = torch.tensordot(sums, scalings[other], dims=([other], [0]))
            scalings[axis] = 1 / (len(sums) * sums)
    target = support.double() / support.sum()
    cost = (target[support] * (target[support].log() - score[support])).sum()
    pairs = zip(own_marginals(target), scalings, strict=True)
    return cost - sum((mass * scaling.log()).sum() for mass, scaling in pairs)


def large_dense(name: str, embeddings, labels, ref_emb=None, ref_labels=None, *, c, n_iters=10):
    """Neg-MMIOT, PushPull or IOT-CL at one sharpness; every sample has positives and negatives."""
    within = ref_emb is None
    similarity = cosine(embeddings, ref_emb)
    n, m = similarity.shape
    pair = ~torch.eye(n, dtype=torch.bool) if within else torch.ones(n, m, dtype=torch.bool)
    same = labels[:, None] == (labels if within else ref_labels)
    positive, negative = same & pair, ~same & pair
    assert positive.any(1).all()
    assert negative.any(1).all()
    if name == "iot":
        return scaled_divergence(c * (similarity - 1), pair, positive, n_iters)
    if name == "push_pull":
        pull = scaled_divergence(c * similarity, pair, positive, n_iters)
        return pull + scaled_divergence(-c * similarity, pair, negative, n_iters)
    triplet = pair[:, :, None] & pair[:, None, :] & ~torch.eye(m, dtype=torch.bool)
    score = c * (similarity[:, :, None] - similarity[:, None, :])
    admissible = positive[:, :, None] & negative[:, None, :]
    return scaled_divergence(score, triplet, admissible, n_iters)


# --- comparison ----------------------------------------------------------------------------------


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖, measured in float64."""
    actual, expected = actual.detach().double(), expected.detach().double()
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    return float((actual - expected).norm() / expected.norm())


def with_gradients(value: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """A scalar and its gradient to all leaves, flattened into one vector."""
    gradients = torch.autograd.grad(value, leaves)
    return value.detach(), torch.cat([gradient.flatten() for gradient in gradients])
