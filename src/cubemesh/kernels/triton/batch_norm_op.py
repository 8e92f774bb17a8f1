"""Both passes of a fused batch normalisation as kernels, each by its plan of one launch or two.

What they count and sum in lives on from step to step, so each layer has its own. The sums of two
launches are cleared before each forward pass: by the pass itself, or, of a whole network at once,
by whoever owns the array that they lie in. So after each forward pass there is one backward pass
at most, before the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused.batch_norm import Kept
from cubemesh.kernels.triton.batch_norm_fused import (
    batch_norm_backward_kernel,
    batch_norm_forward_kernel,
)
from cubemesh.kernels.triton.batch_norm_two_pass import (
    batch_norm_apply_kernel,
    batch_norm_slope_kernel,
    batch_norm_slope_sums_kernel,
    batch_norm_sums_kernel,
)
from cubemesh.kernels.triton.launch_config import Call, Launch, Plan, as_size, shown

SUMS = 5
"""Arrays of one float32 a channel that two launches need (`apart_kernels.py`)."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """The calls of a pass, and what they will have filled."""

    calls: tuple[Call, ...]
    results: tuple[Tensor, ...]

    def run(self) -> None:
        """Queue them."""
        for call in self.calls:
            call.run()


class Kernels:
    """See `NormKernels` in fused_norm; `plans` are those of the forward and the backward pass.
    Where the first has one launch for a kernel of two, what makes the input has taken the sums."""

    def __init__(
        self, shape: torch.Size, device: torch.device, plans: tuple[Plan, Plan],
        *, adds: bool, rectifies: bool,
    ) -> None:  # fmt: skip
        self.shape, self.plans = shape, plans
        self._device = device
        self._flags = {"adds": adds, "rectifies": rectifies}
        channels = shape[1]
        self.sums = torch.zeros(SUMS, channels, device=device)
        """Of two launches. Another array of this shape may be put here."""
        self.clears = True
        """Whether a forward pass clears `sums`."""
        self.summed_before = False
        """Whether what makes the input takes the sums of the forward pass, into `sums`."""
        self._own_sums = torch.zeros(2, 2 * 2 * channels, device=device)
        slices = channels // min(launch.block_cols for plan in plans for launch in plan)
        self._counters = torch.zeros(2, 1 + slices, dtype=torch.int64, device=device)

    def another(self) -> Kernels:
        """The same for another layer of this shape, with sums and counters of its own."""
        kernels = Kernels(self.shape, self._device, self.plans, **self._flags)
        kernels.summed_before = self.summed_before
        return kernels

    def after_sums(self, launch: Launch) -> Kernels:
        """The same for a layer whose input is made by what takes the sums; `launch` is what is
        left of the forward pass."""
        kernels = Kernels(self.shape, self._device, ((launch,), self.plans[1]), **self._flags)
        kernels.summed_before = True
        return kernels

    def __str__(self) -> str:
        before = "sums before, " if self.summed_before else ""
        return f"forward {before}{shown(self.plans[0])}; backward {shown(self.plans[1])}"

    def forward(
        self, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d
    ) -> tuple[Tensor, Kept]:
        """See `NormKernels`."""
        if self.clears and not self.summed_before:
            self.sums.zero_()
        made = self.forward_calls(x, residual, norm)
        made.run()
        return made.results[0], made.results[1:]

    def backward(
        self, slopes: tuple[Tensor, ...], x: Tensor, norm: tuple[Tensor, Tensor], kept: Kept
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """See `NormKernels`."""
        made = self.backward_calls(slopes, x, norm, kept)
        made.run()
        dx, dresidual, dweight, dbias = made.results
        return dx, dresidual if self._flags["adds"] else None, dweight, dbias

    def forward_calls(self, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d) -> Made:
        """The forward pass, not yet run; results are y, mask, mean, 1 / standard deviation."""
        rows, channels = size = as_size(x)
        y, mask = torch.empty_like(x), self._mask(x)
        mean, rstd = torch.empty_like(norm.weight), torch.empty_like(norm.weight)
        given = (
            x, y if residual is None else residual, y, mask, norm.weight, norm.bias,
            norm.running_mean, norm.running_var, mean, rstd,
        )  # fmt: skip
        last = (norm.eps, norm.momentum, rows / max(rows - 1, 1))
        *before, launch = plan = self.plans[0]
        parts = launch.parts(rows)
        arguments: tuple[Any, ...]
        if len(plan) == 1 and not self.summed_before:
            counts = (rows, channels, parts, channels // launch.block_cols)
            arguments = (*given, self._own_sums[0], self._counters[0], *counts, *last)
            calls = [self._call(batch_norm_forward_kernel, launch, size, arguments, meets=True)]
        else:
            calls = [self._sums_call(one, x) for one in before]
            arguments = (*given, self.sums, rows, channels, launch.tiles, parts, *last)
            calls.append(self._call(batch_norm_apply_kernel, launch, size, arguments))
        return Made(calls=tuple(calls), results=(y, mask, mean, rstd))

    def backward_calls(
        self, slopes: tuple[Tensor, ...], x: Tensor, norm: tuple[Tensor, Tensor], kept: Kept
    ) -> Made:
        """The backward pass, not yet run; results: gradients of x, residual, weight, bias."""
        rows, channels = size = as_size(x)
        mask, mean, rstd = kept
        dx = torch.empty_like(x)
        dresidual = torch.empty_like(x) if self._flags["adds"] else dx
        dweight, dbias = torch.empty_like(mean), torch.empty_like(mean)
        given = (slopes[0], slopes[-1], x, mask, *norm, mean, rstd)
        made = (dx, dresidual, dweight, dbias)
        two = {"sums_two": len(slopes) == 2}
        *before, launch = plan = self.plans[1]
        parts = launch.parts(rows)
        arguments: tuple[Any, ...]
        if len(plan) == 1:
            counts = (rows, channels, parts, channels // launch.block_cols)
            arguments = (*given, *made, self._own_sums[1], self._counters[1], *counts)
            calls = [
                self._call(batch_norm_backward_kernel, launch, size, arguments, meets=True, **two)
            ]
        else:
            calls = []
            for one in before:
                counts = (rows, channels, one.tiles, one.parts(rows))
                summed = (*given, dresidual, self.sums, *counts)
                calls.append(self._call(batch_norm_slope_sums_kernel, one, size, summed, **two))
            arguments = (*given, *made, self.sums, rows, channels, launch.tiles, parts)
            calls.append(self._call(batch_norm_slope_kernel, launch, size, arguments, **two))
        return Made(calls=tuple(calls), results=made)

    def _sums_call(self, launch: Launch, x: Tensor) -> Call:
        rows, channels = size = as_size(x)
        arguments = (x, self.sums, rows, channels, launch.tiles, launch.parts(rows))
        return Call(
            kernel=batch_norm_sums_kernel, launch=launch, size=size, arguments=arguments, flags={}
        )

    def _call(
        self, kernel: Any, launch: Launch, size: tuple[int, int], arguments: tuple[Any, ...],
        *, meets: bool = False, **flags: bool,
    ) -> Call:  # fmt: skip
        return Call(
            kernel=kernel, launch=launch, size=size, arguments=arguments, meets=meets,
            flags={**self._flags, **flags},
        )  # fmt: skip

    def _mask(self, x: Tensor) -> Tensor:
        """Room for one bit a value where a ReLU follows a sum; an array of one byte elsewhere."""
        bits = x.numel() // 8 if self._flags["adds"] and self._flags["rectifies"] else 1
        return torch.empty(bits, dtype=torch.uint8, device=x.device)
