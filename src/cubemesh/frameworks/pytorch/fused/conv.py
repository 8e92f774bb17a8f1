"""A convolution for a CPU, in float32, with the ReLU after it where there is one.

Each of its three passes (the result, the gradient of the input, that of the weights) runs by
another algorithm or as PyTorch's own, as it was found to be faster: 3×3 by Winograd's
(`winograd.py`), others as matrix products (`conv_products.py`). A ReLU is computed before the
result is written, which spares reading and writing the array once more: by Winograd's kernels, or
by oneDNN. In the backward pass it is PyTorch's own.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.kernels.cpu import gemm_conv as conv_products
from cubemesh.kernels.cpu import winograd

Pass = Literal["result", "input", "weight"]
"""What is computed: the result, or a gradient."""
PASSES: tuple[Pass, ...] = ("result", "input", "weight")
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of the input, the weights and the bias."""


def other_algorithm(conv: nn.Conv2d) -> ModuleType | None:
    """By which some pass of a layer could be computed: `convolve`, `input_gradient` or
    `weight_gradient` of it."""
    return next((one for one in (winograd, conv_products) if one.takes(conv)), None)


class FusedConv(nn.Module):
    """conv(x), or relu(conv(x)); `conv` keeps its arrays."""

    def __init__(self, conv: nn.Conv2d, *, rectifies: bool) -> None:
        super().__init__()
        self.conv, self.rectifies = conv, rectifies
        self.kernels = False
        """Whether oneDNN rectifies its result, of a layer that `rectifies`."""
        self.other = other_algorithm(conv)
        """Another algorithm than PyTorch's."""
        self.offered: frozenset[str] = self.other.takes(conv) if self.other else frozenset()
        """The passes that it can do."""
        self.by_other: frozenset[Pass] = frozenset()
        """The passes that run by it."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, filters, out_height, out_width)."""
        if not self.kernels and not self.by_other:
            y: Tensor = self.conv(x)
            return F.relu(y) if self.rectifies else y
        result: Tensor = _Convolve.apply(  # type: ignore[no-untyped-call]
            x, self.conv.weight, self.conv.bias, self
        )
        return result

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        passes = ", ".join(name for name in PASSES if name in self.by_other) or "none"
        other = "another algorithm" if self.other is None else self.other.__name__.split(".")[-1]
        return f"rectifies={self.rectifies}, kernels={self.kernels}, by {other}: {passes}"

    def result(self, x: Tensor) -> Tensor:
        """The forward pass alone."""
        conv = self.conv
        how = (conv.padding, conv.stride, conv.dilation, conv.groups)
        if self.other is not None and "result" in self.by_other:
            return self.other.convolve(x, conv, rectifies=self.rectifies)  # type: ignore[no-any-return]
        if self.kernels and self.rectifies:
            fused: Tensor = torch.ops.mkldnn._convolution_pointwise(
                x, conv.weight, conv.bias, *how, "relu", [], ""
            )
            return fused
        y: Tensor = conv._conv_forward(x, conv.weight, conv.bias)
        return y.relu_() if self.rectifies else y

    def gradients(self, slope: Tensor, x: Tensor, wanted: tuple[bool, bool, bool]) -> Gradients:
        """Those that are wanted, from the gradient of what the convolution alone makes."""
        conv = self.conv
        dx, dweight, dbias = None, None, None
        if self.other is not None and "input" in self.by_other and wanted[0]:
            dx = self.other.input_gradient(slope, conv, (x.shape[2], x.shape[3]))
        if self.other is not None and "weight" in self.by_other and (wanted[1] or wanted[2]):
            dweight, dbias = self.other.weight_gradient(x, slope, conv)
        left = (wanted[0] and dx is None, *(w and dweight is None for w in wanted[1:]))
        if any(left):
            sizes = None if conv.bias is None else list(conv.bias.shape)
            own = torch.ops.aten.convolution_backward(
                slope, x, conv.weight, sizes,
                conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups, left,
            )  # fmt: skip
            dx, dweight, dbias = (
                a if b is None else b for a, b in zip(own, (dx, dweight, dbias), strict=True)
            )
        return dx, dweight, dbias if wanted[2] else None


class _Convolve(torch.autograd.Function):
    """The layer, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, op: FusedConv) -> Tensor:
        y = op.result(x)
        ctx.save_for_backward(x, weight, *([y] if op.rectifies else []))
        ctx.op = op
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, _, *rectified = ctx.saved_tensors
        if rectified:
            slope = torch.ops.aten.threshold_backward(slope, rectified[0], 0)
        op: FusedConv = ctx.op
        return (*op.gradients(slope, x, ctx.needs_input_grad[:3]), None)
