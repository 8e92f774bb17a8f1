"""Convolution as matrix products (GEMM) on a CPU.

In channels-last an image is a matrix in place, (batch · height · width) × channels; a 1×1
convolution multiplies it by the weights, and both gradients are products too. With a stride the
matrix is a copy of the pixels read. For larger kernels the weight gradient is one product per tap,
of the shifted image. MKL's products are faster than oneDNN's convolution for some shapes, above all
for weight gradients.
"""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

FEW_INPUTS = 128
"""Up to so many channels the weight gradient for more filters is computed transposed, which is 1.5
times as fast, and transposed back, which costs little where it is small."""

FEWEST_INPUTS = 16
"""Channels from which a product is worth its call."""


def supports(conv: nn.Conv2d) -> frozenset[str]:
    """The supported passes of a layer."""
    plain = (
        conv.groups == 1
        and conv.dilation == (1, 1)
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and conv.in_channels >= FEWEST_INPUTS
    )
    if not plain:
        return frozenset()
    pointwise = conv.kernel_size == (1, 1) and conv.padding == (0, 0)
    return frozenset({"result", "input", "weight"} if pointwise else {"weight"})


def convolve(x: Tensor, conv: nn.Conv2d, *, relu: bool = False) -> Tensor:
    """(batch, channels, height, width) → (batch, filters, out_height, out_width), with an
    optional ReLU."""
    strided = _strided(x, conv)
    rows, weight = _rows(strided), _matrix(conv.weight)
    y = rows @ weight.T if conv.bias is None else torch.addmm(conv.bias, rows, weight.T)
    return _image(y.relu_() if relu else y, strided)


def input_gradient(grad_output: Tensor, conv: nn.Conv2d, size: tuple[int, int]) -> Tensor:
    """The gradient of an input of `size`, (batch, channels, height, width), from the result's."""
    dx = _image(_rows(grad_output) @ _matrix(conv.weight), grad_output)
    if conv.stride == (1, 1):
        return dx
    shape = (len(grad_output), conv.in_channels, *size)
    dx_strided = torch.empty(shape, memory_format=torch.channels_last).zero_()
    _strided(dx_strided, conv).copy_(dx)
    return dx_strided


def weight_gradient(
    x: Tensor, grad_output: Tensor, conv: nn.Conv2d
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the weights, in their layout, and of the bias."""
    assert not isinstance(conv.padding, str)
    grad_outputs, dweight = _rows(grad_output), torch.empty_like(conv.weight)
    if any(conv.padding):
        down, across = conv.padding
        x = F.pad(x, (across, across, down, down))
    transposed = conv.in_channels <= FEW_INPUTS and conv.in_channels < conv.out_channels
    for i, j in product(*map(range, conv.kernel_size)):
        shifted = _strided(x[:, :, i:, j:], conv)[
            :, :, : grad_output.shape[2], : grad_output.shape[3]
        ]
        if transposed:
            dweight[:, :, i, j] = (_rows(shifted).T @ grad_outputs).T
        else:
            torch.mm(grad_outputs.T, _rows(shifted), out=dweight[:, :, i, j])
    return dweight, None if conv.bias is None else grad_outputs.sum(0)


def _strided(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """The pixels that a stride reads."""
    down, across = conv.stride
    return x[:, :, ::down, ::across]


def _rows(image: Tensor) -> Tensor:
    """(batch, channels, height, width) → (batch · height · width, channels), in place if
    channels-last."""
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])


def _image(rows: Tensor, like: Tensor) -> Tensor:
    """The inverse, in the size of an image."""
    batch, _, height, width = like.shape
    return rows.view(batch, height, width, -1).permute(0, 3, 1, 2)


def _matrix(weight: Tensor) -> Tensor:
    """Weights as (filters, channels)."""
    return weight.view(weight.shape[:2])
