"""Convolutions whose weight gradients run beside the rest of the backward pass.

Nothing waits for a weight's gradient but the update. So it is computed on a stream of its own,
while the main one goes on with the gradient of the layer before: what is bound by memory and what
is bound by arithmetic share the GPU, and small kernels fill it together.

    main    ─ slope ─┬─ gradient of x ─ norm ─ …  ─┬─ gradients of the segment
    beside           └─ gradient of w ─ …          ┘  (`join`)

Whatever the other stream reads or writes is kept until the streams have met.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused_norm import as_rows


class Beside:
    """A stream beside the current one, and what is in use on it."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._held: list[Tensor] = []

    def weight_gradient(self, slope: Tensor, x: Tensor, weight: Tensor, how: Any) -> Tensor:
        """Queue the gradient of `weight`; it is not there before `join`."""
        self._stream.wait_stream(torch.cuda.current_stream(slope.device))
        with torch.cuda.stream(self._stream):
            found: Tensor = _backward(slope, x, weight, how, 1)
        self._held += [slope, x, weight, found]
        return found

    def join(self) -> None:
        """What is queued from now on sees all that was queued beside."""
        if self._held:
            torch.cuda.current_stream(self._held[0].device).wait_stream(self._stream)
            self._held.clear()

    def convolve(self, x: Tensor, weight: Tensor, conv: nn.Conv2d) -> Tensor:
        """What `conv` makes of `x`, with `weight` in place of its own, and without a bias."""
        how = (conv.stride, conv.padding, conv.dilation, conv.groups)
        x = x.to(weight.dtype)  # as autocast would
        result: Tensor = _Convolve.apply(x, weight, how, self)  # type: ignore[no-untyped-call]
        return result


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: Any, beside: Beside) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.beside = how, beside
        stride, padding, dilation, groups = how
        return torch.conv2d(x, weight, None, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        if x.is_contiguous(memory_format=torch.channels_last):
            slope = as_rows(slope)
        dweight = ctx.beside.weight_gradient(slope, x, weight, ctx.how)
        dx = _backward(slope, x, weight, ctx.how, 0) if ctx.needs_input_grad[0] else None
        return dx, dweight, None, None


def _backward(slope: Tensor, x: Tensor, weight: Tensor, how: Any, which: int) -> Tensor:
    """The gradient of x (0) or of the weight (1)."""
    stride, padding, dilation, groups = how
    found = torch.ops.aten.convolution_backward(
        slope, x, weight, None, stride, padding, dilation, False, [0, 0], groups,
        [which == 0, which == 1, False],
    )  # fmt: skip
    made: Tensor = found[which]
    return made
