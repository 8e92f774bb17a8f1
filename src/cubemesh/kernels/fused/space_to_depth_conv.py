"""Space-to-depth convolution: a strided convolution of few channels as one of stride 1.

The first layer of many networks reads three channels with a stride; matrix units work on multiples
of eight channels, so most of their work is padding. With space to depth each block of
stride × stride pixels becomes one pixel of stride² as many channels, and the same products are a
smaller kernel over denser channels:

    7×7 / 2 over 3 channels, padded by 3      →      4×4 / 1 over 12 channels, and 4 of zeros

Weights keep their shape; they are rearranged in each step, and their gradients by autograd. The
images need no gradient. Only for images that divide into blocks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

CHANNELS = 8
"""Channels are padded with zeros to a multiple of this."""


class SpaceToDepthConv(nn.Module):
    """`conv` over images (batch, channels, height, width), which may be fp32 under an autocast to
    low precision."""

    def __init__(self, conv: nn.Conv2d, size: tuple[int, int]) -> None:
        super().__init__()
        self.conv = conv
        stride, padding = conv.stride[0], int(conv.padding[0])
        self._stride = stride
        self._before = -(-padding // stride)
        """Blocks of padding before the image."""
        self._shift = self._before * stride - padding
        self._kernel = tuple(-(-(self._shift + k) // stride) for k in conv.kernel_size)
        out = [
            (n + 2 * padding - k) // stride + 1 for n, k in zip(size, conv.kernel_size, strict=True)
        ]
        self._blocks = tuple(o + k - 1 for o, k in zip(out, self._kernel, strict=True))
        self._channels = -(-conv.in_channels * stride**2 // CHANNELS) * CHANNELS

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """(batch, channels, height, width) → `conv` of it, with `weight` in place of its own if
        given."""
        weight = self.folded_weight(self.conv.weight if weight is None else weight)
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        return F.conv2d(self.folded(x, dtype), weight, self.conv.bias)

    def without_bias(self, x: Tensor, weight: Tensor) -> Tensor:
        """The same in the type of both, without adding the bias."""
        return F.conv2d(self.folded(x, x.dtype), self.folded_weight(weight), None)

    def folded(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The image by blocks, channels last: (row in block, column in block, channel), zeros."""
        stride, before = self._stride, self._before
        batch, channels, height, width = x.shape
        made = torch.zeros((batch, *self._blocks, self._channels), dtype=dtype, device=x.device)
        rows = min(height // stride, self._blocks[0] - before)
        cols = min(width // stride, self._blocks[1] - before)
        blocks = x[:, :, : rows * stride, : cols * stride].permute(0, 2, 3, 1)
        blocks = blocks.reshape(batch, rows, stride, cols, stride, channels).transpose(2, 3)
        place = made[:, before : before + rows, before : before + cols, : stride**2 * channels]
        place.view(*place.shape[:3], stride, stride, channels).copy_(blocks)
        return made.permute(0, 3, 1, 2)

    def folded_weight(self, weight: Tensor) -> Tensor:
        """(filters, folded channels, kernel height, kernel width) of the folded kernel."""
        stride = self._stride
        filters, channels, height, width = weight.shape
        rows, cols = (k * stride for k in self._kernel)
        shift = self._shift
        weight = F.pad(weight, (shift, cols - width - shift, shift, rows - height - shift))
        blocks = weight.reshape(filters, channels, rows // stride, stride, cols // stride, stride)
        blocks = blocks.permute(0, 3, 5, 1, 2, 4).reshape(filters, -1, *self._kernel)
        spare = self._channels - blocks.shape[1]
        return F.pad(blocks, (0, 0, 0, 0, 0, spare)).contiguous(memory_format=torch.channels_last)


def can_fold(conv: nn.Conv2d, size: tuple[int, int]) -> bool:
    """Whether `conv` over images of `size` can be rearranged and may gain by it: few channels, the
    same stride in both directions, an image that divides into blocks."""
    stride, padding = conv.stride[0], conv.padding[0]
    return (
        conv.stride == (stride, stride)
        and conv.padding == (padding, padding)
        and stride > 1
        and conv.groups == 1
        and conv.dilation == (1, 1)
        and conv.in_channels < CHANNELS
        and conv.in_channels * stride**2 <= 8 * CHANNELS
        and all(n % stride == 0 for n in size)
    )
