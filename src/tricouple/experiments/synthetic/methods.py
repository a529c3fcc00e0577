"""The six methods behind one small interface: a batch in, a loss out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tricouple.experiments.synthetic.config import RunConfig
from tricouple.losses import IOT, InfoNCE, NegMMIOT, PushPull, VICReg
from tricouple.models.encoders import three_layer_mlp
from tricouple.relations import Identities, view_pairs
from tricouple.training.byol import BYOL, momentum_at, predictor_head


class Method(nn.Module):
    """An encoder and how it learns; subclasses give ``loss``."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, a scalar; NaN where the embeddings are no longer finite."""
        raise NotImplementedError

    def after_step(self, step: int, n_steps: int) -> None:
        """What is left to do after the optimiser's step number `step`, from 0."""


class LossOfEmbeddings(Method):
    """A method that is nothing but a loss of embeddings and labels."""

    def __init__(self, encoder: nn.Module, criterion: nn.Module) -> None:
        super().__init__(encoder)
        self.criterion = criterion

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The criterion of the embeddings."""
        embeddings: Tensor = self.encoder(inputs)
        if not bool(torch.isfinite(embeddings).all()):
            return embeddings.new_tensor(torch.nan)
        value: Tensor = self.criterion(embeddings, labels)
        return value


class Bootstrap(Method):
    """BYOL, with two samples of one class as the two views."""

    def __init__(self, encoder: nn.Module, dim: int) -> None:
        super().__init__(encoder)
        self.byol = BYOL(encoder, predictor_head(dim))

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Samples of a class are paired in batch order, as in VICReg."""
        first, second = view_pairs(Identities.within_one_set(labels))
        return self.byol.loss(inputs[first], inputs[second])

    def after_step(self, step: int, n_steps: int) -> None:
        """The target follows, ever more slowly."""
        self.byol.update_target(momentum_at(step, n_steps))


def build_method(config: RunConfig) -> Method:
    """Build encoder and method; the encoder comes first, so it is the same for all methods.

    BYOL and VICReg have the settings of their own papers.

    Example:
        >>> method = build_method(RunConfig(method="vicreg", shaping=None))
        >>> method.loss(torch.randn(8, 100), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).shape
        torch.Size([])
    """
    encoder = three_layer_mlp(config.data_dim, config.hidden, config.dim)
    if config.method == "byol":
        return Bootstrap(encoder, config.dim)
    return LossOfEmbeddings(encoder, build_loss(config))


def build_loss(config: RunConfig) -> nn.Module:
    """The loss module of every method that is one."""
    tau, epsilon, n_iters, psi = (
        config.temperature, config.epsilon, config.n_iters, config.shaping or "linear",
    )  # fmt: skip
    match config.method:
        case "neg_mmiot":
            return NegMMIOT(tau, epsilon, n_iters, shaping=psi)
        case "pushpull":
            return PushPull(tau, epsilon, epsilon, n_iters, shaping=psi)
        case "iot":
            return IOT(epsilon, n_iters)
        case "infonce":
            return InfoNCE(tau)
        case "vicreg":
            return VICReg()
    raise ValueError(f"{config.method} is not a loss of embeddings")
