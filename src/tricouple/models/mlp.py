"""A small multilayer perceptron, the encoder of the synthetic study."""

from __future__ import annotations

from torch import nn

from tricouple import checks


def three_layer_mlp(in_dim: int, hidden: int, out_dim: int) -> nn.Sequential:
    """Three linear layers with ReLU in between, (N, in_dim) to (N, out_dim).

    No normalisation layers: an embedding then depends on its own input alone, so what is measured
    on the whole training set is what the losses see in a batch.

    Example:
        >>> encoder = three_layer_mlp(100, hidden=256, out_dim=64)
        >>> encoder(torch.randn(8, 100)).shape
        torch.Size([8, 64])
    """
    checks.count("in_dim", in_dim)
    checks.count("hidden", hidden)
    checks.count("out_dim", out_dim)
    return nn.Sequential(
        nn.Linear(in_dim, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, out_dim),
    )
