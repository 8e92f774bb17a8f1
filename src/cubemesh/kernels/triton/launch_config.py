"""In how many launches and programs, and of what shape, does a batch normalisation run?

One launch of `norm_kernels.py`, where a slice of channels fits into the registers of the GPU; two
of `apart_kernels.py` for any array. Which of those that fit is fastest is found by trying
(`norm_choice.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

SHARE = 0.75
"""Of the programs that are on the GPU at once, how many a slice may have at most: the rest is room
for a transfer between GPUs that runs beside it."""
HELD = ((8192, 8), (8192, 4), (2048, 4))
"""(values that a program holds in registers, warps): what is tried in one launch."""
SUMMED = ((4096, 8), (2048, 4))
"""(values of a tile, warps): what is tried for sums."""
SUMMED_SHARES = (2, 4, 8)
"""Programs for each multiprocessor, of those."""
PASSED = ((4096, 8), (2048, 4))
"""(values of a tile, warps): what is tried for what needs the sums, a tile a program."""
_REGISTERS, _PROGRAMS = 65536, 16
"""Of one multiprocessor: 16 programs of all that this was made for (CUDA C++ Programming Guide,
technical specifications; 8.0 and 9.0 have 32)."""
_RESERVED_BYTES = 1024
"""Of shared memory, by the driver, for each program."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How an array of rows by channels is cut into programs."""

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
"""Of a pass: one launch, or two."""


def shown(plan: Plan) -> str:
    """As `print` shows it."""
    return " + ".join(map(str, plan))


def together(rows: int, channels: int, processors: int, arrays: int) -> Iterator[Launch]:
    """Those worth trying in one launch, on a GPU of `processors` multiprocessors, where a program
    holds as many values of each of `arrays` arrays."""
    for cols in _widths(channels, (32, 64, 128)):
        for values, warps in HELD:
            launch = Launch(block_rows=values // cols // arrays, block_cols=cols, warps=warps)
            if launch.block_rows < 2 * rows and launch.parts(rows) <= 2 * processors:
                yield launch


def for_sums(rows: int, channels: int, processors: int) -> Iterator[Launch]:
    """Those worth trying for the first of two launches."""
    for cols in _widths(channels, (64, 128, 256)):
        for values, warps in SUMMED:
            whole = Launch(block_rows=values // cols, block_cols=cols, warps=warps)
            parts = {max(1, share * processors * cols // channels) for share in SUMMED_SHARES}
            for tiles in sorted({math.ceil(whole.parts(rows) / most) for most in parts}):
                yield replace(whole, tiles=tiles)


def for_the_rest(channels: int) -> Iterator[Launch]:
    """Those worth trying for the second."""
    for cols in _widths(channels, (64, 128, 256)):
        for values, warps in PASSED:
            yield Launch(block_rows=values // cols, block_cols=cols, warps=warps)


def _widths(channels: int, wanted: Sequence[int]) -> list[int]:
    """Of `wanted`, what divides `channels`; else the widest power of 2 that does."""
    return [w for w in wanted if channels % w == 0] or [math.gcd(channels, wanted[0])]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One launch of a kernel, not yet run."""

    kernel: Any
    launch: Launch
    size: tuple[int, int]
    """Rows and channels."""
    arguments: tuple[Any, ...]
    flags: Mapping[str, bool]
    meets: bool = False
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

    def fits(self, device: torch.device) -> bool:
        """Whether all parts of a slice are on the GPU at once, with room to spare, where they wait
        for one another, and nothing is spilled from the registers. Compiles the kernel, and does
        not run it."""
        compiled = self.kernel.warmup(*self.arguments, grid=self._grid, **self._options)
        compiled._init_handles()
        if not self.meets:
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
        return not compiled.n_spills and parts <= SHARE * resident * gpu.multi_processor_count


def as_size(x: Tensor) -> tuple[int, int]:
    """(batch, channels, height, width) → rows and channels."""
    return x.numel() // x.shape[1], x.shape[1]
