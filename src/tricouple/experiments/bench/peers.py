"""The contenders from elsewhere that run on PyTorch, and the published algorithm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from tricouple.experiments.bench.problem import Batch, Criterion, Problem


def dense_neg_mmiot(problem: Problem) -> Criterion:
    """Neg-MMIOT as published: the N×N×N kernel in memory, autograd through every sweep."""

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        n = len(labels)
        unit = normalize(embeddings, dim=1)
        similarity = unit @ unit.T / problem.temperature
        cost = similarity[:, None, :] - similarity[:, :, None]  # (i, j, k)

        same = labels[:, None] == labels[None, :]
        other = ~torch.eye(n, dtype=torch.bool)
        distinct = other[:, :, None] & other[:, None, :] & other[None, :, :]
        admissible = distinct & same[:, :, None] & ~same[:, None, :]

        log_kernel = (-cost / problem.epsilon).masked_fill(~distinct, -torch.inf)
        log_mass = -torch.log(torch.tensor(float(n)))
        f, g, h = (log_kernel.new_zeros(n) for _ in range(3))
        for _ in range(problem.n_iters):
            f = log_mass - torch.logsumexp(log_kernel + g[:, None] + h, dim=(1, 2))
            g = log_mass - torch.logsumexp(log_kernel + f[:, None, None] + h, dim=(0, 2))
            h = log_mass - torch.logsumexp(log_kernel + f[:, None, None] + g[:, None], dim=(0, 1))
        log_plan = log_kernel + f[:, None, None] + g[:, None] + h
        # P̃ is uniform on the admissible triplets: KL = −log|A| − mean over A of log P.
        chosen = log_plan[admissible]
        return -torch.log(torch.tensor(float(len(chosen)))) - chosen.mean()

    return loss


def info_nce(problem: Problem) -> Criterion:
    """InfoNCE with class labels, as one would write it in a training script."""

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        unit = normalize(embeddings, dim=1)
        itself = torch.eye(len(labels), dtype=torch.bool)
        logits = (unit @ unit.T / problem.temperature).masked_fill(itself, -torch.inf)
        positives = (labels[:, None] == labels[None, :]) & ~itself
        log_probabilities = log_softmax(logits, dim=1).masked_fill(~positives, 0.0)
        counts = positives.sum(1)
        anchors = counts > 0
        return -(log_probabilities.sum(1)[anchors] / counts[anchors]).mean()

    return loss


def sup_con(problem: Problem) -> Criterion:
    """``SupConLoss`` of pytorch-metric-learning."""
    from pytorch_metric_learning.losses import SupConLoss

    criterion: Criterion = SupConLoss(temperature=problem.temperature)
    return criterion


def prepare_pot(batch: Batch, problem: Problem, method: str) -> Callable[[], Tensor]:
    """POT's Sinkhorn on torch tensors, with all sweeps run: its tolerance is set to zero."""
    import ot

    cost = batch.pair_cost()
    uniform = torch.full((len(cost),), 1.0 / len(cost))

    def step() -> Tensor:
        plan: Tensor = ot.sinkhorn(
            uniform,
            uniform,
            cost,
            problem.epsilon,
            method=method,
            numItermax=problem.n_iters,
            stopThr=0.0,
            warn=False,
        )
        return plan

    return step
