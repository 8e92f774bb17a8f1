"""Convolutions whose weight gradients may run beside the rest of the backward pass.

Nothing waits for a weight's gradient but the update. So it is computed on a stream of its own,
while the main one goes on with the gradient of the layer before: what is bound by memory and what
is bound by arithmetic share the GPU, and small kernels fill it together.

    main    ─ slope ─┬─ gradient of x ─ norm ─ …  ─┬─ gradients of the segment
    beside           └─ gradient of w ─ …          ┘  (`join`)

Whatever the other stream reads or writes is kept until the streams have met.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused.batch_norm import as_rows

Result = Callable[[Tensor, Tensor], Tensor]
"""Of an image and a weight."""


class Beside:
    """A stream beside the current one, and what is in use on it."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        while self._stream == torch.cuda.current_stream(device):  # of 32, given in turn
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._held: list[Tensor] = []

    def weight_gradient(self, slope: Tensor, x: Tensor, weight: Tensor, how: Any) -> Tensor:
        """Queue the gradient of `weight`; it is not there before `join`."""
        self._stream.wait_stream(torch.cuda.current_stream(slope.device))
        with torch.cuda.stream(self._stream):
            found = _backward(slope, x, weight, how)
        self._held += [slope, x, weight, found]
        return found

    def join(self) -> None:
        """What is queued from now on sees all that was queued beside."""
        if self._held:
            torch.cuda.current_stream(self._held[0].device).wait_stream(self._stream)
            self._held.clear()


def convolve(
    x: Tensor, weight: Tensor, conv: nn.Conv2d, beside: Beside | None, result: Result | None = None
) -> Tensor:
    """What `conv` makes of `x`, with `weight` in place of its own, and without a bias; by `result`
    of both, if it is given. The gradient of the weight is computed beside the rest, or, without
    one, with it."""
    how = (conv.stride, conv.padding, conv.dilation, conv.groups)
    x = x.to(weight.dtype)  # as autocast would
    made: Tensor = _Convolve.apply(x, weight, how, beside, result)  # type: ignore[no-untyped-call]
    return made


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, how: Any, beside: Beside | None, result: Result | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.beside = how, beside
        if result is not None:
            return result(x, weight)
        stride, padding, dilation, groups = how
        return torch.conv2d(x, weight, None, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if x.is_contiguous(memory_format=torch.channels_last):
            slope = as_rows(slope)
        by = _backward if ctx.beside is None else ctx.beside.weight_gradient
        dweight = by(slope, x, weight, ctx.how)
        dx = _backward(slope, x, weight, ctx.how, of_x=True) if ctx.needs_input_grad[0] else None
        return dx, dweight, None, None, None


def _backward(slope: Tensor, x: Tensor, weight: Tensor, how: Any, of_x: bool = False) -> Tensor:
    """The gradient of the weight, or of x."""
    stride, padding, dilation, groups = how
    found = torch.ops.aten.convolution_backward(
        slope, x, weight, None, stride, padding, dilation, False, [0, 0], groups,
        [of_x, not of_x, False],
    )  # fmt: skip
    made: Tensor = found[0 if of_x else 1]
    return made
