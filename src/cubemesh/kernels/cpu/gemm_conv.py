"""Convolutions as matrix products, on a CPU.

In channels-last an image is a matrix as it lies, (batch · height · width) × channels, and a
convolution of 1×1 multiplies it by the weights; so are both gradients products. Of a stride the
matrix is of the pixels that are looked at, copied together. Of larger kernels the gradient of the
weights is such a product for each of their taps, of the image moved. MKL's products are faster than
oneDNN's convolution for some of the shapes, above all for gradients of weights.
"""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

FEW_INPUTS = 128
"""Channels, up to which the gradient of weights for more filters is found turned round, which is
faster by a half, and turned again, which costs little where it is small."""


FEWEST_INPUTS = 16
"""Channels, from which on a product is worth its call."""


def takes(conv: nn.Conv2d) -> frozenset[str]:
    """The passes of a layer that it can do."""
    plain = (
        conv.groups == 1
        and conv.dilation == (1, 1)
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and conv.in_channels >= FEWEST_INPUTS
    )
    if not plain:
        return frozenset()
    alone = conv.kernel_size == (1, 1) and conv.padding == (0, 0)
    return frozenset({"result", "input", "weight"} if alone else {"weight"})


def convolve(x: Tensor, conv: nn.Conv2d, *, rectifies: bool = False) -> Tensor:
    """(batch, channels, height, width) → (batch, filters, out_height, out_width), rectified at
    will."""
    seen = _seen(x, conv)
    rows, weight = _rows(seen), _matrix(conv.weight)
    y = rows @ weight.T if conv.bias is None else torch.addmm(conv.bias, rows, weight.T)
    return _image(y.relu_() if rectifies else y, seen)


def input_gradient(slope: Tensor, conv: nn.Conv2d, size: tuple[int, int]) -> Tensor:
    """The gradient of an input of `size`, (batch, channels, height, width), from the result's."""
    dx = _image(_rows(slope) @ _matrix(conv.weight), slope)
    if conv.stride == (1, 1):
        return dx
    shape = (len(slope), conv.in_channels, *size)
    whole = torch.empty(shape, memory_format=torch.channels_last).zero_()
    _seen(whole, conv).copy_(dx)
    return whole


def weight_gradient(x: Tensor, slope: Tensor, conv: nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    """The gradients of the weights, which lie as the weights do, and of the bias."""
    assert not isinstance(conv.padding, str)
    slopes, dweight = _rows(slope), torch.empty_like(conv.weight)
    if any(conv.padding):
        down, across = conv.padding
        x = F.pad(x, (across, across, down, down))
    turned = conv.in_channels <= FEW_INPUTS and conv.in_channels < conv.out_channels
    for i, j in product(*map(range, conv.kernel_size)):
        moved = _seen(x[:, :, i:, j:], conv)[:, :, : slope.shape[2], : slope.shape[3]]
        if turned:
            dweight[:, :, i, j] = (_rows(moved).T @ slopes).T
        else:
            torch.mm(slopes.T, _rows(moved), out=dweight[:, :, i, j])
    return dweight, None if conv.bias is None else slopes.sum(0)


def _seen(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """The pixels that a stride leaves."""
    down, across = conv.stride
    return x[:, :, ::down, ::across]


def _rows(image: Tensor) -> Tensor:
    """(batch, channels, height, width) → (batch · height · width, channels), where it lies if it
    lies so."""
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])


def _image(rows: Tensor, like: Tensor) -> Tensor:
    """The same back, of the size of an image."""
    batch, _, height, width = like.shape
    return rows.view(batch, height, width, -1).permute(0, 3, 1, 2)


def _matrix(weight: Tensor) -> Tensor:
    """Weights as (filters, channels)."""
    return weight.view(weight.shape[:2])
