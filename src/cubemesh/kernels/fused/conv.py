"""Fused convolution and ReLU on a CPU, in fp32, each pass by its fastest algorithm.

The result, the input gradient and the weight gradient each run by an alternative algorithm or by
PyTorch, as measured: 3×3 by Winograd (`cpu/winograd.py`), others as matrix products
(`cpu/gemm_conv.py`). The ReLU is applied before the result is written, by Winograd's kernels or by
oneDNN, which saves reading and writing the array once more; its backward pass is PyTorch's own.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.kernels.cpu import gemm_conv, winograd

Pass = Literal["result", "input", "weight"]
"""The result, or a gradient."""
PASSES: tuple[Pass, ...] = ("result", "input", "weight")
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of the input, the weights and the bias."""


def alternative_algorithm(conv: nn.Conv2d) -> ModuleType | None:
    """The module that supports some pass of a layer, with `convolve`, `input_gradient` and
    `weight_gradient`; None without one."""
    return next((one for one in (winograd, gemm_conv) if one.supports(conv)), None)


class FusedConv(nn.Module):
    """conv(x), or relu(conv(x)); `conv` owns the parameters."""

    def __init__(self, conv: nn.Conv2d, *, relu: bool) -> None:
        super().__init__()
        self.conv, self.relu = conv, relu
        self.kernels = False
        """Whether oneDNN applies the ReLU."""
        self.algorithm = alternative_algorithm(conv)
        """Alternative to PyTorch's."""
        own = self.algorithm
        self.supported_passes: frozenset[str] = own.supports(conv) if own else frozenset()
        """The passes that it supports."""
        self.alternative_passes: frozenset[Pass] = frozenset()
        """The passes that run by it."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, filters, out_height, out_width)."""
        if not self.kernels and not self.alternative_passes:
            y: Tensor = self.conv(x)
            return F.relu(y) if self.relu else y
        result: Tensor = _Convolve.apply(  # type: ignore[no-untyped-call]
            x, self.conv.weight, self.conv.bias, self
        )
        return result

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        passes = ", ".join(name for name in PASSES if name in self.alternative_passes) or "none"
        other = "alternative" if self.algorithm is None else self.algorithm.__name__.split(".")[-1]
        return f"relu={self.relu}, kernels={self.kernels}, alternative passes ({other}): {passes}"

    def result(self, x: Tensor) -> Tensor:
        """The forward pass."""
        conv = self.conv
        how = (conv.padding, conv.stride, conv.dilation, conv.groups)
        if self.algorithm is not None and "result" in self.alternative_passes:
            return self.algorithm.convolve(x, conv, relu=self.relu)  # type: ignore[no-any-return]
        if self.kernels and self.relu:
            fused: Tensor = torch.ops.mkldnn._convolution_pointwise(
                x, conv.weight, conv.bias, *how, "relu", [], ""
            )
            return fused
        y: Tensor = conv._conv_forward(x, conv.weight, conv.bias)
        return y.relu_() if self.relu else y

    def gradients(
        self, grad_output: Tensor, x: Tensor, wanted: tuple[bool, bool, bool]
    ) -> Gradients:
        """The wanted gradients, from the gradient of the convolution's result before the ReLU."""
        conv = self.conv
        dx, dweight, dbias = None, None, None
        if self.algorithm is not None and "input" in self.alternative_passes and wanted[0]:
            dx = self.algorithm.input_gradient(grad_output, conv, (x.shape[2], x.shape[3]))
        if (
            self.algorithm is not None
            and "weight" in self.alternative_passes
            and (wanted[1] or wanted[2])
        ):
            dweight, dbias = self.algorithm.weight_gradient(x, grad_output, conv)
        left = (wanted[0] and dx is None, *(w and dweight is None for w in wanted[1:]))
        if any(left):
            sizes = None if conv.bias is None else list(conv.bias.shape)
            own = torch.ops.aten.convolution_backward(
                grad_output, x, conv.weight, sizes,
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
        ctx.save_for_backward(x, weight, *([y] if op.relu else []))
        ctx.op = op
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, _, *relu_result = ctx.saved_tensors
        if relu_result:
            grad_output = torch.ops.aten.threshold_backward(grad_output, relu_result[0], 0)
        op: FusedConv = ctx.op
        return (*op.gradients(grad_output, x, ctx.needs_input_grad[:3]), None)
