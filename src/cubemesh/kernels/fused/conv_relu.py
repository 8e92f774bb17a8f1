"""Convolution with bias and ReLU on a GPU, and a max pooling after it if there is one.

    operations   convolution ─ bias ─ ReLU ─ pooling, each by PyTorch
    kernels      convolution, then bias and ReLU in one pass (`triton/bias_relu.py`), or bias, ReLU
                 and pooling (`triton/pool.py`): then the convolution's result is not needed again
    cudnn        bias and ReLU by cuDNN, in the convolution

The backward pass of the last two masks the gradient and adds it up for the bias in one pass; behind
a pooling the sums are computed from the smaller array.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.kernels.fused.batch_norm import channels_last
from cubemesh.kernels.fused.pool import MOST_CELLS as NO_ARGMAX
from cubemesh.kernels.fused.pool import FusedMaxPool, image, launch, pooled_size
from cubemesh.kernels.fused.space_to_depth_conv import SpaceToDepthConv

Method = Literal["operations", "kernels", "cudnn"]


class FusedConvRelu(nn.Module):
    """relu(conv(x)), pooled with a `pool`; `conv` owns the parameters."""

    def __init__(self, conv: nn.Conv2d, pool: nn.MaxPool2d | None = None) -> None:
        super().__init__()
        self.conv, self.pool = conv, pool
        self.method: Method = "operations"
        """The fastest, once measured. The other two are for channels-last arrays."""
        self.folded: SpaceToDepthConv | None = None
        """What computes the convolution in its place, if that is faster."""

    @property
    def methods(self) -> tuple[Method, ...]:
        """Those that support the layer."""
        pools = self.pool is None or FusedMaxPool(self.pool).usable
        kernels = self.conv.bias is not None and pools and self.conv.out_channels % 16 == 0
        cudnn = kernels and self.pool is None and not isinstance(self.conv.padding, str)
        found: list[Method] = ["operations"]
        if kernels:
            found.append("kernels")
        if cudnn:
            found.append("cudnn")
        return tuple(found)

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """(batch, channels, height, width) → (batch, filters, out_height, out_width); with `weight`
        in place of its own if given."""
        conv = self.conv
        weight = conv.weight if weight is None else weight
        if self.method == "operations":
            if self.folded is None:
                y = F.relu(conv._conv_forward(x, weight, conv.bias))
            else:
                y = F.relu(self.folded(x, weight))
            if self.pool is None:
                return y
            pooled: Tensor = self.pool(y)
            return pooled
        dtype = _compute_type(x)
        x, weight = x.to(dtype), weight.to(dtype)
        if self.method == "cudnn":
            found: Tensor = _ConvRelu.apply(x, weight, conv.bias, self)  # type: ignore[no-untyped-call]
            return found
        if self.folded is None:
            made = F.conv2d(x, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
        else:
            made = self.folded.without_bias(x, weight)
        ended: Tensor = _BiasRelu.apply(made, conv.bias, self.pool)  # type: ignore[no-untyped-call]
        return ended

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"method={self.method}"


class _BiasRelu(torch.autograd.Function):
    """relu(x + bias), pooled with a `pool`. Without one it overwrites x, which no other reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, pool: nn.MaxPool2d | None) -> Tensor:
        from cubemesh.kernels.triton.bias_relu import bias_relu
        from cubemesh.kernels.triton.pool import max_pool_forward_kernel

        ctx.pool, ctx.shape, ctx.bias_dtype = pool, x.shape, bias.dtype
        given = x
        x = channels_last(x)
        if pool is None:
            bias_relu(x, bias)
            if x is given:
                ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x
        size = pooled_size(x, pool)
        y = image((*x.shape[:2], *size), x.dtype, x.device)
        argmax = image((*x.shape[:2], *size), torch.uint8, x.device)
        launch(max_pool_forward_kernel, (x, bias, y, argmax), y, x.shape[2:], size, pool, True)
        ctx.save_for_backward(argmax)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        from cubemesh.kernels.triton.bias_relu import argmax_sums
        from cubemesh.kernels.triton.pool import max_pool_backward_kernel

        (kept,) = ctx.saved_tensors
        grad_output = channels_last(grad_output)
        if ctx.pool is None:
            dx, dbias = _relu_backward(grad_output, kept)
            return dx, dbias.to(ctx.bias_dtype), None
        dx = image(ctx.shape, grad_output.dtype, grad_output.device)
        arrays = (grad_output, kept, dx)
        launch(max_pool_backward_kernel, arrays, dx, ctx.shape[2:], kept.shape[2:], ctx.pool)
        dbias = argmax_sums(grad_output, kept, NO_ARGMAX)
        return dx, dbias.to(ctx.bias_dtype), None


class _ConvRelu(torch.autograd.Function):
    """relu(conv(x)), bias and ReLU in cuDNN's convolution."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, op: FusedConvRelu) -> Tensor:
        conv = op.conv
        assert not isinstance(conv.padding, str)
        y: Tensor = torch.cudnn_convolution_relu(
            x, weight, bias.to(x.dtype), conv.stride, conv.padding, conv.dilation, conv.groups
        )
        ctx.save_for_backward(x, weight, y)
        ctx.conv, ctx.bias_dtype = conv, bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        conv = ctx.conv
        dz, dbias = _relu_backward(channels_last(grad_output), channels_last(y))
        dx, dweight, _ = torch.ops.aten.convolution_backward(
            dz, x, weight, None, conv.stride, conv.padding, conv.dilation, False, [0, 0],
            conv.groups, [ctx.needs_input_grad[0], True, False],
        )  # fmt: skip
        return dx, dweight, dbias.to(ctx.bias_dtype), None


def _relu_backward(grad_output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of what relu made `y` of, and its sums over each channel."""
    from cubemesh.kernels.triton.bias_relu import relu_backward

    dx = torch.empty_like(y, dtype=grad_output.dtype)
    return dx, relu_backward(grad_output, y, dx)


def _compute_type(x: Tensor) -> torch.dtype:
    """Autocast's, where it is enabled."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
