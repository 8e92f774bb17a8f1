"""Weight gradients of convolutions on a side stream, concurrent with the backward pass.

Only the update waits for a weight gradient. On a stream of its own it runs while the main stream
computes the gradient of the previous layer: memory-bound and compute-bound kernels share the GPU,
and small kernels fill it together.

    main    ─ grad_output ─┬─ gradient of x ─ norm ─ …  ─┬─ gradients of the segment
    side                   └─ gradient of w ─ …          ┘  (`join`)

Arrays that the side stream reads or writes stay alive until `join`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.kernels.fused.batch_norm import channels_last

ConvForward = Callable[[Tensor, Tensor], Tensor]
"""Of an image and a weight."""


class SideStream:
    """A second stream, and the arrays in use on it."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        while self._stream == torch.cuda.current_stream(device):  # PyTorch returns 32 in turn
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in_use: list[Tensor] = []

    def weight_gradient(
        self, grad_output: Tensor, x: Tensor, weight: Tensor, geometry: Any
    ) -> Tensor:
        """Queue the gradient of `weight`; it is ready after `join`."""
        self._stream.wait_stream(torch.cuda.current_stream(grad_output.device))
        with torch.cuda.stream(self._stream):
            found = _backward(grad_output, x, weight, geometry)
        self._in_use += [grad_output, x, weight, found]
        return found

    def join(self) -> None:
        """Make the current stream wait for the side stream."""
        if self._in_use:
            torch.cuda.current_stream(self._in_use[0].device).wait_stream(self._stream)
            self._in_use.clear()


def convolve(
    x: Tensor,
    weight: Tensor,
    conv: nn.Conv2d,
    side_stream: SideStream | None,
    forward: ConvForward | None = None,
) -> Tensor:
    """`conv` of `x`, with `weight` in place of its own and without a bias; computed by `forward`
    if given. The gradient of the weight is computed on the side stream, if given."""
    geometry = (conv.stride, conv.padding, conv.dilation, conv.groups)
    x = x.to(weight.dtype)  # as autocast does
    made: Tensor = _Convolve.apply(x, weight, geometry, side_stream, forward)  # type: ignore[no-untyped-call]
    return made


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        geometry: Any,
        side_stream: SideStream | None,
        forward: ConvForward | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry, ctx.side_stream = geometry, side_stream
        if forward is not None:
            return forward(x, weight)
        stride, padding, dilation, groups = geometry
        return torch.conv2d(x, weight, None, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if x.is_contiguous(memory_format=torch.channels_last):
            grad_output = channels_last(grad_output)
        side = ctx.side_stream
        gradient = _backward if side is None else side.weight_gradient
        dweight = gradient(grad_output, x, weight, ctx.geometry)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = _backward(grad_output, x, weight, ctx.geometry, of_x=True)
        return dx, dweight, None, None, None


def _backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, geometry: Any, of_x: bool = False
) -> Tensor:
    """The gradient of the weight, or of x."""
    stride, padding, dilation, groups = geometry
    found = torch.ops.aten.convolution_backward(
        grad_output, x, weight, None, stride, padding, dilation, False, [0, 0], groups,
        [of_x, not of_x, False],
    )  # fmt: skip
    made: Tensor = found[0 if of_x else 1]
    return made
