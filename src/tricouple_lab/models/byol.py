"""BYOL: an online network predicts what its own moving average says of another view."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn


class BYOL(nn.Module):
    """Bootstrap your own latent (Grill et al., NeurIPS 2020), as the objective of a task.

    It has a predictor, ``hidden`` wide, and a target network, which starts as a copy of the
    encoder, receives no gradient and follows the encoder after each step with a momentum that
    rises to 1 along half a cosine. ``attach`` builds both.
    """

    def __init__(self, momentum: float = 0.996, hidden: int = 4096) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must be between 0 and 1, got {momentum}")
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {hidden}")
        self.momentum, self.hidden = momentum, hidden
        self.target: nn.Module | None = None
        self.predictor: nn.Module | None = None
        self._online: list[nn.Module] = []  # in a list: its parameters belong to the encoder

    def attach(self, encoder: nn.Module, dimension: int) -> BYOL:
        """Copy the encoder, whose embeddings have this dimension, and build the predictor."""
        self._online = [encoder]
        self.target = copy.deepcopy(encoder).requires_grad_(False)
        self.predictor = nn.Sequential(
            nn.Linear(dimension, self.hidden),
            nn.BatchNorm1d(self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, dimension),
        )
        return self

    def forward(self, encoder: nn.Module, view0: Tensor, view1: Tensor) -> Tensor:
        """Return the negative cosine of prediction and target, between −1 and 1.

        Row i of both views belongs to the same instance or class.
        """
        assert self.target is not None
        assert self.predictor is not None
        if len(view0) < 2:  # batch normalisation needs two samples: a loss of 0, with a gradient
            return 0 * sum(parameter.sum() for parameter in encoder.parameters())  # type: ignore[return-value]
        with torch.no_grad():
            targets = self.target(view1), self.target(view0)
        predictions = (self.predictor(encoder(view)) for view in (view0, view1))
        there, back = map(negative_cosine, predictions, targets)
        return (there + back) / 2

    @torch.no_grad()
    def after_step(self, number: int, total: int) -> None:
        """``target ← m · target + (1 − m) · encoder``, with the momentum m of step ``number``.

        The first step of the optimiser has number 1. The target keeps its own statistics of batch
        normalisation.
        """
        assert self.target is not None
        momentum, online = momentum_at(number - 1, total, self.momentum), self._online[0]
        for target, own in zip(self.target.parameters(), online.parameters(), strict=True):
            target.lerp_(own, 1 - momentum)


def negative_cosine(predictions: Tensor, targets: Tensor) -> Tensor:
    """``−mean cos(prediction, target)`` of rows (n, d), in float32 at least."""
    dtype = torch.promote_types(predictions.dtype, torch.float32)
    with torch.autocast(predictions.device.type, enabled=False):
        both = predictions.to(dtype), targets.detach().to(dtype)
        return -nn.functional.cosine_similarity(*both, dim=1).mean()


def momentum_at(step: int, n_steps: int, start: float = 0.996) -> float:
    """The schedule of the BYOL paper: from ``start`` to 1 along half a cosine."""
    return 1 - (1 - start) * (math.cos(math.pi * step / n_steps) + 1) / 2


def class_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return indices of the two samples of each pair: samples of a class, in batch order.

    Example:
        >>> class_pairs(torch.tensor([7, 3, 7, 7, 3]))
        (tensor([1, 0]), tensor([4, 2]))
    """
    _, classes = labels.unique(return_inverse=True)
    earlier = (classes[:, None] == classes).tril(-1).sum(1)  # of the same class, shape (n,)
    pair, order = (earlier // 2 * len(classes) + classes).sort(stable=True)
    met = pair[1:] == pair[:-1]
    return order[:-1][met], order[1:][met]
