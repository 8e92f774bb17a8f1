"""A convolution with the ReLU after it, as one call of oneDNN; for a CPU, in float32.

oneDNN rectifies what it has computed before it writes it, which spares reading and writing the
array once more. The backward pass is PyTorch's own: the ReLU's, by the result, and then the
convolution's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class FusedConv(nn.Module):
    """relu(conv(x)); `conv` keeps its arrays."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self.kernels = False
        """Whether it runs as one call."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, filters, out_height, out_width)."""
        if not self.kernels:
            return F.relu(self.conv(x))
        result: Tensor = _ConvRelu.apply(  # type: ignore[no-untyped-call]
            x, self.conv.weight, self.conv.bias, self.conv
        )
        return result


class _ConvRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, conv: nn.Conv2d
    ) -> Tensor:
        how = (conv.padding, conv.stride, conv.dilation, conv.groups)
        y: Tensor = torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *how, "relu", [], "")
        ctx.save_for_backward(x, weight, y)
        ctx.conv = conv
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        conv: nn.Conv2d = ctx.conv
        sizes = None if conv.bias is None else list(conv.bias.shape)
        found: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
            torch.ops.aten.threshold_backward(slope, y, 0), x, weight, sizes,
            conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups,
            [ctx.needs_input_grad[0], True, sizes is not None],
        )  # fmt: skip
        return (*found, None)
