"""Neg-MMIOT as published: the N×N×N kernel in memory, autograd through every sweep."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize


def dense_neg_mmiot(
    embeddings: Tensor, labels: Tensor, temperature: float, epsilon: float, n_iters: int
) -> Tensor:
    """Return KL(P̃ ‖ P) with the plan P of the cost C_ijk = −(s_ij − s_ik) / τ.

    Args:
        embeddings: (N, d) vectors, normalised here.
        labels: (N,) classes.
        temperature: τ.
        epsilon: ε, the entropic weight.
        n_iters: Sinkhorn sweeps over the three uniform marginals.

    Returns:
        The loss, a scalar.
    """
    n = len(labels)
    unit = normalize(embeddings, dim=1)
    similarity = unit @ unit.T / temperature
    cost = similarity[:, None, :] - similarity[:, :, None]  # (i, j, k)

    same = labels[:, None] == labels[None, :]
    other = ~torch.eye(n, dtype=torch.bool)
    distinct = other[:, :, None] & other[:, None, :] & other[None, :, :]
    admissible = distinct & same[:, :, None] & ~same[:, None, :]

    log_kernel = (-cost / epsilon).masked_fill(~distinct, -torch.inf)
    log_marginal = -torch.log(torch.tensor(float(n)))
    f, g, h = (log_kernel.new_zeros(n) for _ in range(3))
    for _ in range(n_iters):
        f = log_marginal - torch.logsumexp(log_kernel + g[:, None] + h, dim=(1, 2))
        g = log_marginal - torch.logsumexp(log_kernel + f[:, None, None] + h, dim=(0, 2))
        h = log_marginal - torch.logsumexp(log_kernel + f[:, None, None] + g[:, None], dim=(0, 1))
    log_plan = log_kernel + f[:, None, None] + g[:, None] + h
    # P̃ is uniform on the admissible triplets: KL = −log|A| − mean over A of log P.
    chosen = log_plan[admissible]
    return -torch.log(torch.tensor(float(len(chosen)))) - chosen.mean()
