"""BYOL: an online network predicts what its own moving average says of another view."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from tricouple import checks


class BYOL(nn.Module):
    """Bootstrap your own latent (Grill et al., NeurIPS 2020): no negatives, and no loss module.

    BYOL is not a loss of embeddings, since it owns a predictor (of projections, shape (N, d)) and a
    second network; hence it lives here. The target starts as a copy of the online network, encoder
    and projector, receives no gradient and follows by ``update_target`` after each optimiser step.
    It shares the mode (train or eval) of this module, and keeps its own batch-norm statistics.

    In the paper's synthetic study the two views are two samples of one class.

    Example:
        >>> method = BYOL(nn.Linear(6, 4), predictor_head(4, hidden=8))
        >>> optimiser = torch.optim.SGD(method.trainable_parameters(), lr=0.1)
        >>> loss = method.loss(torch.randn(8, 6), torch.randn(8, 6))
        >>> loss.backward()
        >>> optimiser.step()
        >>> method.update_target(momentum_at(step=0, n_steps=100))
    """

    def __init__(self, network: nn.Module, predictor: nn.Module) -> None:
        super().__init__()
        self.online = network
        self.predictor = predictor
        self.target = copy.deepcopy(network).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """The online projections, which are what an evaluation looks at."""
        projections: Tensor = self.online(inputs)
        return projections

    def loss(self, view0: Tensor, view1: Tensor) -> Tensor:
        """Negative cosine of prediction and target, mean of both directions; between −1 and 1.

        Row i of both views belongs to instance i.
        """
        if view0.shape[:1] != view1.shape[:1]:
            raise ValueError(
                f"view0 has {len(view0)} samples, view1 {len(view1)}: row i of both must belong "
                "to instance i"
            )
        with torch.no_grad():
            targets = self.target(view1), self.target(view0)
        predictions = (self.predictor(self.online(view)) for view in (view0, view1))
        there, back = map(negative_cosine, predictions, targets)
        return (there + back) / 2

    @torch.no_grad()
    def update_target(self, momentum: float) -> None:
        """``target ← momentum · target + (1 − momentum) · online``, parameter by parameter."""
        checks.non_negative_number("momentum", momentum)
        if momentum > 1:
            raise ValueError(f"momentum must be between 0 and 1, got {momentum}")
        pairs = zip(self.target.parameters(), self.online.parameters(), strict=True)
        for target, online in pairs:
            target.lerp_(online, 1 - momentum)

    def trainable_parameters(self) -> list[nn.Parameter]:
        """What an optimiser should see: the online network and the predictor."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


def negative_cosine(predictions: Tensor, targets: Tensor) -> Tensor:
    """``−mean cos(prediction, target)`` of rows, in float32 at least; targets get no gradient."""
    dtype = torch.promote_types(predictions.dtype, torch.float32)
    with torch.autocast(predictions.device.type, enabled=False):
        cosines = nn.functional.cosine_similarity(
            predictions.to(dtype), targets.detach().to(dtype), dim=1
        )
    return -cosines.mean()


def class_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the two samples of each pair: samples of a class, paired in batch order as VICReg.

    Args:
        labels: Classes, shape (N,). A sample that is left alone in its class has no pair.

    Returns:
        The first and the second sample of each pair, shape (pairs,) each.

    Example:
        >>> class_pairs(torch.tensor([7, 3, 7, 7, 3]))
        (tensor([1, 0]), tensor([4, 2]))
    """
    _, classes = labels.unique(return_inverse=True)
    earlier = (classes[:, None] == classes).tril(-1).sum(1)  # of the same class, shape (N,)
    pair, order = (earlier // 2 * len(classes) + classes).sort(stable=True)
    met = pair[1:] == pair[:-1]
    return order[:-1][met], order[1:][met]


def predictor_head(dim: int, hidden: int = 4096) -> nn.Sequential:
    """The predictor of the BYOL paper: linear, batch norm, ReLU, linear; (N, dim) to (N, dim)."""
    return nn.Sequential(
        nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)
    )


def momentum_at(step: int, n_steps: int, start: float = 0.996) -> float:
    """The BYOL paper's schedule: from ``start`` to 1 along half a cosine."""
    return 1 - (1 - start) * (math.cos(math.pi * step / n_steps) + 1) / 2
