"""In how many programs, and of what shape, does a fused batch normalisation run fastest?

There is no rule worth trusting: an array may fit into the registers of the whole GPU, a slice at a
time, or not; a slice of few channels makes short reads, one of many needs many programs that wait
for one another. So the launches that fit are tried on arrays of the very shape, forward and
backward by themselves, and held against PyTorch's own operations. Those that tie are all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused_norm import FusedNorm, Kept
from cubemesh.frameworks.pytorch.gpu_time import both_passes_ms, time_ms
from cubemesh.frameworks.pytorch.norm_kernels import backward_kernel, forward_kernel

SHARE = 0.75
"""Of the programs that are on the GPU at once, how many a slice may have at most: the rest is room
for a transfer between GPUs that runs beside it."""
HELD = ((8192, 8), (8192, 4), (2048, 4))
"""(values that a program holds in registers, warps): what is tried with one tile."""
LOOPED = ((4096, 8), (2048, 4))
"""(values of a tile, warps): what is tried with several."""
LOOPED_SHARES = (1.0, 1.5, 2.0, 3.0)
"""Programs of a slice for each multiprocessor, of those."""
_REGISTERS, _THREADS, _PROGRAMS = 65536, 2048, 32
"""Of one multiprocessor (CUDA C++ Programming Guide, technical specifications, 8.0 and 9.0)."""
_RESERVED_BYTES = 1024
"""Of shared memory, by the driver, for each program."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How an array is cut into programs."""

    block_rows: int
    block_cols: int
    tiles: int
    warps: int

    def parts(self, rows: int) -> int:
        """Programs of a slice."""
        return math.ceil(rows / (self.block_rows * self.tiles))

    def __str__(self) -> str:
        held = "held" if self.tiles == 1 else f"× {self.tiles}"
        return f"{self.block_rows}×{self.block_cols} {held}, {self.warps} warps"


def launches(rows: int, channels: int, processors: int, arrays: int) -> list[Launch]:
    """Those worth trying for `rows` × `channels` values on a GPU of `processors` multiprocessors,
    where a program holds as many values of each of `arrays` arrays."""
    found = []
    for cols in (c for c in (32, 64, 128, 256, 512) if channels % c == 0):
        for values, warps in HELD if cols <= 128 else ():
            block = values // cols // arrays
            launch = Launch(block_rows=block, block_cols=cols, tiles=1, warps=warps)
            if block < 2 * rows and launch.parts(rows) <= 2 * processors:
                found.append(launch)
        for values, warps in LOOPED if cols >= min(channels, 64) or channels == 64 else ():
            block = values // cols
            counts = {math.ceil(rows / (block * processors * share)) for share in LOOPED_SHARES}
            for tiles in sorted(counts - {1}):
                found.append(Launch(block_rows=block, block_cols=cols, tiles=tiles, warps=warps))
    return found


class Kernels:
    """Both kernels, each in its launch, and what they count and sum in, which lives on from
    launch to launch: each layer has its own."""

    def __init__(
        self,
        shape: torch.Size,
        device: torch.device,
        launches: tuple[Launch, Launch],
        *,
        adds: bool,
        rectifies: bool,
    ) -> None:
        self.shape, self._device = shape, device
        self.launches = launches
        """Forward, backward."""
        self._flags = {"adds": adds, "rectifies": rectifies}
        channels = shape[1]
        self._sums = torch.zeros(2, 2 * 2 * channels, device=device)
        slices = channels // min(launch.block_cols for launch in launches)
        self._counters = torch.zeros(2, 1 + slices, dtype=torch.int64, device=device)

    def another(self) -> Kernels:
        """The same for another layer of this shape, with sums and counters of its own."""
        return Kernels(self.shape, self._device, self.launches, **self._flags)

    def __str__(self) -> str:
        return f"forward {self.launches[0]}; backward {self.launches[1]}"

    def forward(
        self, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d
    ) -> tuple[Tensor, Kept]:
        """See `NormKernels`."""
        call = self.forward_call(x, residual, norm)
        call.run()
        return call.results[0], call.results[1:]

    def backward(
        self, slopes: tuple[Tensor, ...], x: Tensor, norm: tuple[Tensor, Tensor], kept: Kept
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """See `NormKernels`."""
        call = self.backward_call(slopes, x, norm, kept)
        call.run()
        dx, dresidual, dweight, dbias = call.results
        return dx, dresidual if self._flags["adds"] else None, dweight, dbias

    def forward_call(self, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d) -> Call:
        """The forward pass, not yet run; results are y, mask, mean, 1 / standard deviation."""
        channels, rows = x.shape[1], x.numel() // x.shape[1]
        y = torch.empty_like(x)
        mask = self._mask(x)
        mean, rstd = torch.empty_like(norm.weight), torch.empty_like(norm.weight)
        launch = self.launches[0]
        arguments = (
            x, y if residual is None else residual, y, mask, norm.weight, norm.bias,
            norm.running_mean, norm.running_var, mean, rstd, self._sums[0],
            self._counters[0], rows, channels, launch.tiles, launch.parts(rows),
            channels // launch.block_cols,
            norm.eps, norm.momentum, rows / max(rows - 1, 1),
        )  # fmt: skip
        return Call(forward_kernel, launch, arguments, self._flags, (y, mask, mean, rstd))

    def backward_call(
        self, slopes: tuple[Tensor, ...], x: Tensor, norm: tuple[Tensor, Tensor], kept: Kept
    ) -> Call:
        """The backward pass, not yet run; results: gradients of x, residual, weight, bias."""
        channels, rows = x.shape[1], x.numel() // x.shape[1]
        mask, mean, rstd = kept
        dx = torch.empty_like(x)
        dresidual = torch.empty_like(x) if self._flags["adds"] else dx
        dweight, dbias = torch.empty_like(mean), torch.empty_like(mean)
        launch = self.launches[1]
        arguments = (
            slopes[0], slopes[-1], x, mask, *norm, mean, rstd, dx, dresidual, dweight, dbias,
            self._sums[1], self._counters[1], rows, channels, launch.tiles, launch.parts(rows),
            channels // launch.block_cols,
        )  # fmt: skip
        flags = {**self._flags, "sums_two": len(slopes) == 2}
        return Call(backward_kernel, launch, arguments, flags, (dx, dresidual, dweight, dbias))

    def _mask(self, x: Tensor) -> Tensor:
        """Room for one bit a value where a ReLU follows a sum; an array of one byte elsewhere."""
        bits = x.numel() // 8 if self._flags["adds"] and self._flags["rectifies"] else 1
        return torch.empty(bits, dtype=torch.uint8, device=x.device)


@dataclass(frozen=True)
class Call:
    """One launch of a kernel with its arguments and what it will have filled."""

    kernel: Any
    launch: Launch
    arguments: tuple[Any, ...]
    flags: dict[str, bool]
    results: tuple[Tensor, ...]

    @property
    def _options(self) -> dict[str, Any]:
        launch = self.launch
        blocks = {"block_rows": launch.block_rows, "block_cols": launch.block_cols}
        even = self._rows % launch.block_rows == 0
        own = {"held": launch.tiles == 1, "even": even, "num_warps": launch.warps}
        return {**blocks, **self.flags, **own}

    @property
    def _grid(self) -> tuple[int]:
        channels = self.arguments[_X[self.kernel]].shape[1]
        return (self.launch.parts(self._rows) * (channels // self.launch.block_cols),)

    @property
    def _rows(self) -> int:
        x: Tensor = self.arguments[_X[self.kernel]]
        return x.numel() // x.shape[1]

    def run(self) -> None:
        """Queue it."""
        self.kernel[self._grid](*self.arguments, **self._options)

    def fits(self) -> bool:
        """Whether all parts of a slice are on the GPU at once, with room to spare, and nothing is
        spilled from the registers. Compiles the kernel, and does not run it."""
        compiled = self.kernel.warmup(*self.arguments, grid=self._grid, **self._options)
        compiled._init_handles()
        device = torch.cuda.get_device_properties(self.results[0].device)
        threads = 32 * self.launch.warps
        registers = max(8 * math.ceil(compiled.n_regs / 8), 16)
        resident = min(_THREADS // threads, _REGISTERS // (registers * threads), _PROGRAMS)
        if compiled.metadata.shared:
            shared_bytes = device.shared_memory_per_multiprocessor
            resident = min(resident, shared_bytes // (compiled.metadata.shared + _RESERVED_BYTES))
        parts = self.launch.parts(self._rows)
        return not compiled.n_spills and parts <= SHARE * resident * device.multi_processor_count


_X = {forward_kernel: 0, backward_kernel: 2}
"""Which argument of a kernel is the layer's input."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What one launch took, or PyTorch's own operations (`launch` None)."""

    launch: Launch | None
    ms: float


def choose(op: FusedNorm, x: Tensor) -> Kernels | None:
    """The fastest kernels for `op` on arrays like `x`; None where PyTorch's own operations, both
    passes together, take no longer. `x` is overwritten, and the running statistics of `op`."""
    forward, backward = measure(op, x)
    own_ms = sum(t.ms for t in (*forward, *backward) if t.launch is None)
    best = [
        min((t for t in tried if t.launch is not None), key=lambda t: t.ms, default=None)
        for tried in (forward, backward)
    ]
    if best[0] is None or best[1] is None or best[0].ms + best[1].ms >= own_ms:
        return None
    assert best[0].launch is not None
    assert best[1].launch is not None
    return kernels(op, x, best[0].launch, best[1].launch)


def measure(op: FusedNorm, x: Tensor) -> tuple[list[Tried], list[Tried]]:
    """(forward, backward): milliseconds of each launch that fits and of PyTorch's own operations,
    on random values in arrays like `x`."""
    x.normal_()
    residual, slopes = others(op, x)
    own = FusedNorm(op.norm, adds=op.adds, rectifies=op.rectifies, readers=1)
    given = x.detach().requires_grad_()
    wanted = [given, op.norm.weight, op.norm.bias]
    forward, backward = both_passes_ms(lambda: own(given, residual)[0], wanted, slopes)
    tried = [Tried(launch=None, ms=forward)], [Tried(launch=None, ms=backward)]
    for call in calls(op, x, residual, slopes):
        if call.fits():
            found = Tried(launch=call.launch, ms=time_ms(call.run))
            tried[call.kernel is backward_kernel].append(found)
    return tried


def calls(
    op: FusedNorm, x: Tensor, residual: Tensor | None, slopes: tuple[Tensor, ...]
) -> Iterator[Call]:
    """Both kernels in each launch worth trying, on given arrays."""
    norm = (op.norm.weight.detach(), op.norm.bias.detach())
    for launch in _launches(x, arrays=1):
        yield kernels(op, x, launch, launch).forward_call(x, residual, op.norm)
    safe = safest(x)
    kept = kernels(op, x, safe, safe).forward(x, residual, op.norm)[1]
    for launch in _launches(x, arrays=2):
        yield kernels(op, x, launch, launch).backward_call(slopes, x, norm, kept)


def others(op: FusedNorm, x: Tensor) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """A residual, where one is added, and the gradients of one reader or two."""
    residual = torch.randn_like(x) if op.adds else None
    return residual, tuple(torch.randn_like(x) for _ in range(min(op.readers, 2)))


def _launches(x: Tensor, arrays: int) -> list[Launch]:
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    return launches(x.numel() // x.shape[1], x.shape[1], processors, arrays)


def kernels(op: FusedNorm, x: Tensor, forward: Launch, backward: Launch) -> Kernels:
    """Those of `op` for arrays like `x`, in given launches."""
    launches = (forward, backward)
    return Kernels(x.shape, x.device, launches, adds=op.adds, rectifies=op.rectifies)


def safest(x: Tensor) -> Launch:
    """A launch of few programs for each slice, which fits anywhere."""
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    tiles = math.ceil(x.numel() / x.shape[1] / (64 * max(1, processors // 2)))
    return Launch(block_rows=64, block_cols=16, tiles=max(2, tiles), warps=4)
