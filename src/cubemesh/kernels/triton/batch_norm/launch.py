"""The launches of a fused batch normalization: shapes of programs, calls, both passes.

Each pass runs as one launch or as two (`kernels.py`), in programs of a given shape; `autotune.py`
finds the fastest. Sums and counters persist from step to step, so each layer has its own. The sums
of two launches are zeroed before each forward pass: by the pass itself or, for a whole network at
once, by the owner of the array that they are views of. So each forward pass allows one backward
pass, before the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.kernels.fused.batch_norm import SavedForBackward

MAX_RESIDENT_FRACTION = 0.75
"""Of the programs that the GPU runs at once, how many a slice may have in one launch: the rest is
room for a transfer between GPUs that runs at the same time."""
SUMS = 5
"""Arrays of one fp32 value per channel that two launches need (`kernels.py`)."""
_REGISTERS, _PROGRAMS = 65536, 16
"""Per multiprocessor: 16 programs on all GPUs that this was made for (CUDA C++ Programming Guide,
technical specifications; 8.0 and 9.0 have 32)."""
_RESERVED_BYTES = 1024
"""Shared memory that the driver reserves for each program."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How an array of rows by channels is divided among programs."""

    block_rows: int
    block_cols: int
    warps: int
    tiles: int = 1
    """Blocks that a program goes through, one after the other."""

    def parts(self, rows: int) -> int:
        """Programs of a slice of channels."""
        return math.ceil(rows / (self.block_rows * self.tiles))

    def __str__(self) -> str:
        times = f" × {self.tiles}" if self.tiles > 1 else ""
        return f"{self.block_rows}×{self.block_cols}{times}, {self.warps} warps"


Plan = tuple[Launch, ...]
"""The launches of a pass: one or two."""


def describe(plan: Plan) -> str:
    """A plan in one line."""
    return " + ".join(map(str, plan))


@dataclass(frozen=True, kw_only=True)
class Call:
    """One launch of a kernel with its arguments, not yet queued."""

    kernel: Any
    launch: Launch
    size: tuple[int, int]
    """Rows and channels."""
    arguments: tuple[Any, ...]
    flags: Mapping[str, bool]
    barrier: bool = False
    """Whether the programs of a slice wait for one another."""

    @property
    def _options(self) -> dict[str, Any]:
        launch = self.launch
        blocks = {"block_rows": launch.block_rows, "block_cols": launch.block_cols}
        even = self.size[0] % launch.block_rows == 0
        return {**blocks, **self.flags, "even": even, "num_warps": launch.warps}

    @property
    def _grid(self) -> tuple[int]:
        rows, channels = self.size
        return (self.launch.parts(rows) * (channels // self.launch.block_cols),)

    def run(self) -> None:
        """Queue it."""
        self.kernel[self._grid](*self.arguments, **self._options)

    def compile(self) -> Any:
        """Compile it without running it; Triton's compiled kernel."""
        return self.kernel.warmup(*self.arguments, grid=self._grid, **self._options)

    def fits(self, device: torch.device) -> bool:
        """Whether no register spills and, with a barrier, whether all parts of a slice are on the
        GPU at once, with room to spare."""
        compiled = self.compile()
        compiled._init_handles()
        if not self.barrier:
            return not compiled.n_spills
        gpu = torch.cuda.get_device_properties(device)
        threads = 32 * self.launch.warps
        registers = max(8 * math.ceil(compiled.n_regs / 8), 16)
        most = gpu.max_threads_per_multi_processor
        resident = min(most // threads, _REGISTERS // (registers * threads), _PROGRAMS)
        if compiled.metadata.shared:
            shared_bytes = gpu.shared_memory_per_multiprocessor
            resident = min(resident, shared_bytes // (compiled.metadata.shared + _RESERVED_BYTES))
        parts = self.launch.parts(self.size[0])
        most_parts = MAX_RESIDENT_FRACTION * resident * gpu.multi_processor_count
        return not compiled.n_spills and parts <= most_parts


def rows_and_channels(x: Tensor) -> tuple[int, int]:
    """The matrix that (batch, channels, height, width) in channels-last is."""
    return x.numel() // x.shape[1], x.shape[1]


@dataclass(frozen=True, kw_only=True)
class PassCalls:
    """The calls of a pass, and the arrays that they fill."""

    calls: tuple[Call, ...]
    results: tuple[Tensor, ...]

    def run(self) -> None:
        """Queue them."""
        for call in self.calls:
            call.run()


class TritonBatchNorm:
    """See `BatchNormKernels`; `plans` are those of the forward and the backward pass. With
    `stats_from_conv` the convolution before it adds to `sums`, and the first launch is omitted."""

    def __init__(
        self, shape: torch.Size, device: torch.device, plans: tuple[Plan, Plan],
        *, add: bool, relu: bool,
    ) -> None:  # fmt: skip
        from cubemesh.kernels.triton.batch_norm import kernels  # imports Triton

        self._kernels = kernels
        self.shape, self.plans = shape, plans
        self._device = device
        self._flags = {"add": add, "relu": relu}
        channels = shape[1]
        self.sums = torch.zeros(SUMS, channels, device=device)
        """For two launches. May be replaced by another array of this shape."""
        self.zeroes_sums = True
        """Whether a forward pass zeroes `sums`."""
        self.stats_from_conv = False
        self._own_sums = torch.zeros(2, 2 * 2 * channels, device=device)
        slices = channels // min(launch.block_cols for plan in plans for launch in plan)
        self._counters = torch.zeros(2, 1 + slices, dtype=torch.int64, device=device)

    def copy(self) -> TritonBatchNorm:
        """The same for another layer of this shape, with its own sums and counters."""
        kernels = TritonBatchNorm(self.shape, self._device, self.plans, **self._flags)
        kernels.stats_from_conv = self.stats_from_conv
        return kernels

    def after_conv_stats(self, launch: Launch) -> TritonBatchNorm:
        """The same for a layer after a convolution that adds to `sums`; `launch` is the rest of the
        forward pass."""
        plans = ((launch,), self.plans[1])
        kernels = TritonBatchNorm(self.shape, self._device, plans, **self._flags)
        kernels.stats_from_conv = True
        return kernels

    def __str__(self) -> str:
        before = "sums by the convolution, " if self.stats_from_conv else ""
        return f"forward {before}{describe(self.plans[0])}; backward {describe(self.plans[1])}"

    def forward(
        self, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d
    ) -> tuple[Tensor, SavedForBackward]:
        """See `BatchNormKernels`."""
        if self.zeroes_sums and not self.stats_from_conv:
            self.sums.zero_()
        calls = self.forward_calls(x, residual, norm)
        calls.run()
        return calls.results[0], calls.results[1:]

    def backward(
        self, gradients: tuple[Tensor, ...], x: Tensor, affine: tuple[Tensor, Tensor],
        saved: SavedForBackward,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
        """See `BatchNormKernels`."""
        calls = self.backward_calls(gradients, x, affine, saved)
        calls.run()
        dx, dresidual, dweight, dbias = calls.results
        return dx, dresidual if self._flags["add"] else None, dweight, dbias

    def forward_calls(self, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d) -> PassCalls:
        """The forward pass, not yet queued; results: y, ReLU mask, mean, 1 / standard deviation."""
        rows, channels = size = rows_and_channels(x)
        y, mask = torch.empty_like(x), self._relu_mask(x)
        mean, rstd = torch.empty_like(norm.weight), torch.empty_like(norm.weight)
        arrays = (
            x, y if residual is None else residual, y, mask, norm.weight, norm.bias,
            norm.running_mean, norm.running_var, mean, rstd,
        )  # fmt: skip
        last = (norm.eps, norm.momentum, rows / max(rows - 1, 1))
        *before, launch = plan = self.plans[0]
        parts = launch.parts(rows)
        arguments: tuple[Any, ...]
        if len(plan) == 1 and not self.stats_from_conv:
            counts = (rows, channels, parts, channels // launch.block_cols)
            arguments = (*arrays, self._own_sums[0], self._counters[0], *counts, *last)
            kernel = self._kernels.batch_norm_forward_one_launch_kernel
            calls = [self._call(kernel, launch, size, arguments, barrier=True)]
        else:
            calls = [self._stats_call(one, x) for one in before]
            arguments = (*arrays, self.sums, rows, channels, launch.tiles, parts, *last)
            kernel = self._kernels.batch_norm_apply_kernel
            calls.append(self._call(kernel, launch, size, arguments))
        return PassCalls(calls=tuple(calls), results=(y, mask, mean, rstd))

    def backward_calls(
        self, gradients: tuple[Tensor, ...], x: Tensor, affine: tuple[Tensor, Tensor],
        saved: SavedForBackward,
    ) -> PassCalls:  # fmt: skip
        """The backward pass, not yet queued; results: gradients of x, residual, weight, bias."""
        rows, channels = size = rows_and_channels(x)
        mask, mean, rstd = saved
        dx = torch.empty_like(x)
        dresidual = torch.empty_like(x) if self._flags["add"] else dx
        dweight, dbias = torch.empty_like(mean), torch.empty_like(mean)
        arrays = (gradients[0], gradients[-1], x, mask, *affine, mean, rstd)
        results = (dx, dresidual, dweight, dbias)
        two = {"two_gradients": len(gradients) == 2}
        *before, launch = plan = self.plans[1]
        parts = launch.parts(rows)
        arguments: tuple[Any, ...]
        if len(plan) == 1:
            counts = (rows, channels, parts, channels // launch.block_cols)
            arguments = (*arrays, *results, self._own_sums[1], self._counters[1], *counts)
            kernel = self._kernels.batch_norm_backward_one_launch_kernel
            calls = [self._call(kernel, launch, size, arguments, barrier=True, **two)]
        else:
            calls = []
            for one in before:
                counts = (rows, channels, one.tiles, one.parts(rows))
                arguments = (*arrays, dresidual, self.sums, *counts)
                kernel = self._kernels.batch_norm_backward_reduce_kernel
                calls.append(self._call(kernel, one, size, arguments, **two))
            arguments = (*arrays, *results, self.sums, rows, channels, launch.tiles, parts)
            kernel = self._kernels.batch_norm_backward_apply_kernel
            calls.append(self._call(kernel, launch, size, arguments, **two))
        return PassCalls(calls=tuple(calls), results=results)

    def _stats_call(self, launch: Launch, x: Tensor) -> Call:
        rows, channels = size = rows_and_channels(x)
        return Call(
            kernel=self._kernels.batch_norm_stats_kernel, launch=launch, size=size, flags={},
            arguments=(x, self.sums, rows, channels, launch.tiles, launch.parts(rows)),
        )  # fmt: skip

    def _call(
        self, kernel: Any, launch: Launch, size: tuple[int, int], arguments: tuple[Any, ...],
        *, barrier: bool = False, **flags: bool,
    ) -> Call:  # fmt: skip
        return Call(
            kernel=kernel, launch=launch, size=size, arguments=arguments, barrier=barrier,
            flags={**self._flags, **flags},
        )  # fmt: skip

    def _relu_mask(self, x: Tensor) -> Tensor:
        """Room for one bit per value where a ReLU follows an add; else an array of one byte."""
        bits = x.numel() // 8 if self._flags["add"] and self._flags["relu"] else 1
        return torch.empty(bits, dtype=torch.uint8, device=x.device)
