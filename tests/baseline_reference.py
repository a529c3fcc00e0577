"""The baselines as one would explain them: plain loops over samples, float64, autograd.

Every function takes what `conftest.Batch.dense` gives; options are named as in the library.
"""

import torch
from torch import Tensor

from reference import cosine, positive_pairs


def itself(i, ref_emb, own) -> set[int]:
    """The reference that an anchor is, if it is one."""
    if ref_emb is None:
        return {i}
    return set() if own is None else {int(own[i])} - {-1}


def rows_of(labels, ref_emb, ref_labels, triplets, n, own=None):
    """For each anchor: all other references, its positives, its negatives."""
    m = n if ref_emb is None else len(ref_emb)
    if triplets is not None:
        triplets = list(zip(*(index.tolist() for index in triplets), strict=True))
    for i in range(n):
        others = set(range(m)) - itself(i, ref_emb, own)
        if triplets is None:
            references = labels if ref_labels is None else ref_labels
            positives = {j for j in others if references[j] == labels[i]}
            negatives = others - positives
        else:
            positives = {j for a, j, _ in triplets if a == i}
            negatives = {k for a, _, k in triplets if a == i}
        yield i, sorted(others), sorted(positives), sorted(negatives)


def loop_inva_spread(
    embeddings, labels=None, ref_emb=None, ref_labels=None, *, triplets=None, own=None,
    temperature=0.1, variant="formula",
) -> Tensor:  # fmt: skip
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    second = unit if ref_emb is None else ref_emb / ref_emb.norm(dim=1, keepdim=True)
    e = (unit @ (second.detach() if variant == "published" else second).T / temperature).exp()
    terms = []
    rows = rows_of(labels, ref_emb, ref_labels, triplets, len(e), own)
    for i, others, positives, negatives in rows:
        if positives:
            p = e[i] / e[i, others].sum()
            terms.append(-p[positives].log().mean() - (1 - p[negatives]).log().sum())
    return torch.stack(terms).mean()


def loop_siglip(
    embeddings, labels=None, ref_emb=None, ref_labels=None, *, triplets=None, own=None,
    temperature=0.1, bias=-10.0, pairs=None, weights=None,
) -> Tensor:  # fmt: skip
    logits = cosine(embeddings, ref_emb) / temperature + bias
    if pairs is None:
        pairs = torch.full_like(logits, -1)  # neither
        for i, _, near, far in rows_of(labels, ref_emb, ref_labels, triplets, len(logits), own):
            pairs[i, far], pairs[i, near] = 0, 1
    terms = torch.where(pairs == 0, -torch.log(1 - torch.sigmoid(logits)), 0.0)
    terms = torch.where(pairs > 0, -pairs * torch.log(torch.sigmoid(logits)), terms).sum(1)
    weights = torch.ones_like(terms) if weights is None else weights
    return (weights * terms).sum() / weights.sum()


def plan_loss(plan: Tensor, pairs: list[tuple[int, int]], variant: str) -> Tensor:
    """−mean log P, or the cross-entropy with the plan as logits."""
    terms = []
    for i, j in sorted(set(pairs)):
        terms.append(-(plan[i, j].log() if variant == "formula" else plan[i].log_softmax(0)[j]))
    return torch.stack(terms).mean()


def loop_dbot(
    embeddings, labels=None, ref_emb=None, ref_labels=None, *, triplets=None, own=None,
    regularisation=0.1, n_iters=5, lower=0.5, upper=4.5, variant="formula",
) -> Tensor:  # fmt: skip
    plan = (-(1 - cosine(embeddings, ref_emb)) / regularisation).exp()
    n, m = plan.shape
    met = [(i, j) for i in range(n) for j in itself(i, ref_emb, own)]
    allowed = torch.ones_like(plan)
    for i, j in met:
        allowed[i, j] = 0.0
    plan = plan * allowed
    for _ in range(n_iters):
        plan = plan / plan.sum(1, keepdim=True)
        plan = plan * (lower * n / m / plan.sum(0)).clamp(min=1.0)
        plan = plan * (upper * n / m / plan.sum(0)).clamp(max=1.0)
    pairs = set(positive_pairs(labels, ref_labels, triplets)) - set(met)
    return plan_loss(plan, sorted(pairs), variant)


def loop_fused_gromov(
    embeddings, labels=None, ref_emb=None, ref_labels=None, *, triplets=None,
    epsilon=0.1, alpha=1e-4, n_outer=5, n_iters=5, variant="formula",
) -> Tensor:  # fmt: skip
    cost = 1 - cosine(embeddings, ref_emb)
    plan = (-cost / epsilon).softmax(1)
    n, m = cost.shape
    for _ in range(n_outer):
        cost = cost - alpha * cosine(embeddings) @ plan @ cosine(ref_emb)
        plan = (-cost / epsilon).exp() if variant == "formula" else (-(1 - cost)).exp()
        for _ in range(n_iters):
            plan = plan / plan.sum(1, keepdim=True)
            plan = plan / plan.sum(0, keepdim=True) * n / m
    return plan_loss(plan, positive_pairs(labels, ref_labels, triplets), variant)


def loop_vicreg(
    embeddings, labels=None, ref_emb=None, ref_labels=None, *, triplets=None,
    invariance=25.0, variance=25.0, covariance=1.0, eps=1e-4,
) -> Tensor:  # fmt: skip
    assert triplets is None
    first, second = [], []
    for name in labels.unique().tolist():
        if ref_emb is None:
            group = list(embeddings[labels == name])
            pairs = zip(group[0::2], group[1::2], strict=False)
        else:
            pairs = zip(embeddings[labels == name], ref_emb[ref_labels == name], strict=False)
        for one, other in pairs:
            first.append(one)
            second.append(other)
    n, d = len(first), len(first[0])
    loss = (
        invariance * sum(((a - b) ** 2).sum() for a, b in zip(first, second, strict=True)) / n / d
    )
    for view in (torch.stack(first), torch.stack(second)):
        moved = view - view.mean(0)
        for k in range(d):
            spread = ((moved[:, k] ** 2).sum() / (n - 1) + eps) ** 0.5
            loss = loss + variance / 2 * torch.relu(1 - spread) / d
            for other in set(range(d)) - {k}:
                shared = (moved[:, k] * moved[:, other]).sum() / (n - 1)
                loss = loss + covariance * shared**2 / d
    return loss
