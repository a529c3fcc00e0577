"""3×3 convolutions on feature maps of a few pixels, as the matrix products that they are.

A ResNet shrinks a 32×32 image to 2×2 and then to a single pixel, where most of its weights are.
CPU libraries treat these maps like large ones, and the weight gradient alone then takes half of a
training step; as matrix products the whole step of a ResNet-18 takes half the time.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear, unfold

LARGEST = 4  # pixels of a map for which the matrix product is faster


class SmallMapConv2d(nn.Conv2d):
    """A padded 3×3 convolution with the same parameters, values and gradients as ``nn.Conv2d``.

    Example:
        >>> layer = SmallMapConv2d(8, 4, 3, padding=1)
        >>> layer(torch.randn(5, 8, 2, 2)).shape
        torch.Size([5, 4, 2, 2])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Convolve maps, shape (n, c, h, w)."""
        n, _, height, width = input.shape
        if height * width > LARGEST or input.device.type != "cpu":
            return super().forward(input)
        if height == width == 1:
            # Around a single pixel there is only padding: the centre of the kernel is all it sees.
            return linear(input.flatten(1), self.weight[:, :, 1, 1], self.bias)[:, :, None, None]
        down, across = ((size - 1) // self.stride[0] + 1 for size in (height, width))
        patches = unfold(input, 3, padding=1, stride=self.stride[0])  # (n, 9c, down·across)
        rows = linear(patches.mT.flatten(0, 1), self.weight.flatten(1), self.bias)
        # Channels last, as the layers around want them.
        return rows.view(n, down, across, -1).permute(0, 3, 1, 2)


def adapt_to_small_maps(network: nn.Module) -> nn.Module:
    """Replace all padded 3×3 convolutions of a network, in place; parameters and names stay.

    Example:
        >>> network = adapt_to_small_maps(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1)))
        >>> type(network[0]).__name__
        'SmallMapConv2d'
    """
    for parent in list(network.modules()):
        for name, layer in parent.named_children():
            if type(layer) is nn.Conv2d and _eligible(layer):
                setattr(parent, name, _adapted(layer))
    return network


def _eligible(layer: nn.Conv2d) -> bool:
    return (
        layer.kernel_size == (3, 3)
        and layer.padding == (1, 1)
        and layer.dilation == (1, 1)
        and layer.stride[0] == layer.stride[1]
        and layer.groups == 1
        and layer.padding_mode == "zeros"
    )


def _adapted(layer: nn.Conv2d) -> SmallMapConv2d:
    adapted = SmallMapConv2d(
        layer.in_channels,
        layer.out_channels,
        3,
        stride=layer.stride[0],
        padding=1,
        bias=layer.bias is not None,
        device="meta",  # no memory, no random numbers: the parameters are those of the layer
    )
    adapted.weight, adapted.bias = layer.weight, layer.bias
    return adapted.train(layer.training)
