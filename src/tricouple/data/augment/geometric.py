"""Crops, rotations and blurs of a batch; every image has parameters of its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad


def resized_crop(images: Tensor, boxes: Tensor, size: int, mirrored: Tensor) -> Tensor:
    """Cut a box out of each image and resize it to a square: bilinear, antialiased.

    Bilinear interpolation is linear along each axis, so that two batched matrix products do it,
    mirroring included.

    Args:
        images: Floating point, shape (n, c, h, w).
        boxes: Top, left, height and width, shape (n, 4).
        size: Side of the results.
        mirrored: Which results to flip left to right, bool of shape (n,).

    Returns:
        Shape (n, c, size, size).
    """
    n, c, h, w = images.shape
    top, left, height, width = boxes.to(images.dtype).unbind(1)
    rows = _interpolation(top, height, h, size)  # (n, size, h)
    columns = _interpolation(left, width, w, size)  # (n, size, w)
    columns = torch.where(mirrored[:, None, None], columns.flip(1), columns)
    narrow = images.reshape(n, c * h, w) @ columns.mT  # (n, c·h, size)
    stacked = narrow.reshape(n, c, h, size).transpose(1, 2).reshape(n, h, c * size)
    return (rows @ stacked).reshape(n, size, c, size).transpose(1, 2).contiguous()


def _interpolation(start: Tensor, length: Tensor, n_pixels: int, size: int) -> Tensor:
    """Weights of the pixels of an axis in each of ``size`` samples of an interval.

    A triangle around each sample's position, as wide as the distance of samples but at least one
    pixel; pixels outside the interval have no weight.

    Returns:
        Shape (n, size, n_pixels), each row summing to one.
    """
    pixel = torch.arange(n_pixels, device=start.device, dtype=start.dtype)
    sample = torch.arange(size, device=start.device, dtype=start.dtype) + 0.5
    start, length = start[:, None], length[:, None]
    step = length / size
    centres = start + step * sample - 0.5  # (n, size)
    distance = (pixel - centres[..., None]).abs() / step.clamp_min(1.0)[..., None]
    inside = (pixel >= start) & (pixel < start + length)  # (n, n_pixels)
    weights = (1 - distance).clamp_min(0.0) * inside[:, None]
    return weights / weights.sum(2, keepdim=True)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise about the centre: nearest pixel, black where nothing is known.

    Nearest, because that is the default of torchvision's RandomRotation, which the paper names.

    Args:
        images: Floating point, shape (n, c, h, w), square.
        degrees: Shape (n,).
    """
    angles = degrees.to(images.dtype).deg2rad()
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    matrices = torch.stack([cos, -sin, zero, sin, cos, zero], 1).reshape(-1, 2, 3)
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="nearest", align_corners=False)


def blur3(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur with a Gaussian on 3×3 pixels, edges reflected.

    Args:
        images: Floating point, shape (n, c, h, w) with sides of 2 pixels or more.
        sigma: Standard deviation for each image, in pixels, shape (n,).
    """
    side = torch.exp(-0.5 / sigma.to(images.dtype).square())
    side = (side / (1 + 2 * side))[:, None, None, None]  # weight of each neighbour
    centre = 1 - 2 * side
    x = pad(images, (1, 1, 0, 0), mode="reflect")
    x = centre * images + side * (x[..., :-2] + x[..., 2:])
    y = pad(x, (0, 0, 1, 1), mode="reflect")
    return centre * x + side * (y[..., :-2, :] + y[..., 2:, :])
