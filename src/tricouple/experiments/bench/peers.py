"""The contenders from elsewhere that run on PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from tricouple.experiments.bench.dense import dense_neg_mmiot
from tricouple.experiments.bench.problem import Batch, Problem

ValueAndGradient = tuple[Tensor, Tensor]


def value_and_gradient(
    loss: Callable[[Tensor], Tensor], batch: Batch
) -> Callable[[], ValueAndGradient]:
    """Return a call that evaluates `loss` and its gradient at the embeddings of the batch."""
    embeddings = batch.embeddings.clone().requires_grad_()

    def step() -> ValueAndGradient:
        value = loss(embeddings)
        (gradient,) = torch.autograd.grad(value, embeddings)
        return value.detach(), gradient

    return step


def prepare_dense(batch: Batch, problem: Problem) -> Callable[[], ValueAndGradient]:
    """The published N³ algorithm."""
    return value_and_gradient(
        lambda x: dense_neg_mmiot(
            x, batch.labels, problem.temperature, problem.epsilon, problem.n_iters
        ),
        batch,
    )


def supervised_info_nce(embeddings: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Plain InfoNCE with class labels: mean log-probability of the positives of each anchor."""
    unit = normalize(embeddings, dim=1)
    itself = torch.eye(len(labels), dtype=torch.bool)
    logits = (unit @ unit.T / temperature).masked_fill(itself, -torch.inf)
    positives = (labels[:, None] == labels[None, :]) & ~itself
    log_probabilities = log_softmax(logits, dim=1).masked_fill(~positives, 0.0)
    counts = positives.sum(1)
    anchors = counts > 0
    return -(log_probabilities.sum(1)[anchors] / counts[anchors]).mean()


def prepare_info_nce(batch: Batch, problem: Problem) -> Callable[[], ValueAndGradient]:
    """A plain PyTorch InfoNCE, as one would write it in a training script."""
    return value_and_gradient(
        lambda x: supervised_info_nce(x, batch.labels, problem.temperature), batch
    )


def prepare_sup_con(batch: Batch, problem: Problem) -> Callable[[], ValueAndGradient]:
    """``SupConLoss`` of pytorch-metric-learning."""
    from pytorch_metric_learning.losses import SupConLoss

    criterion = SupConLoss(temperature=problem.temperature)
    return value_and_gradient(lambda x: criterion(x, batch.labels), batch)


def prepare_pot(batch: Batch, problem: Problem, method: str) -> Callable[[], Tensor]:
    """POT's Sinkhorn on torch tensors, with all sweeps run: its tolerance is set to zero."""
    import ot

    cost = pair_cost(batch)
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


def pair_cost(batch: Batch) -> Tensor:
    """Return 1 − s with an infinite diagonal, the cost of the pairwise plans."""
    return (1.0 - batch.similarities()).fill_diagonal_(torch.inf)
