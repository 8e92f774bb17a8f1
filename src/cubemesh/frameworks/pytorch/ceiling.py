"""How fast does this device multiply matrices, or copy memory, at best through PyTorch?

A product of two square matrices of side n is 2 n³ operations; a copy of b bytes reads b and writes
b. Where the size is not given it doubles until the rate grows by less than 5 %; the fastest
size is kept. Copies start at 256 MiB, beyond nearly all caches: it is memory that is asked about.
Elements are random, because a GPU multiplies zeros faster than anything real.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from cubemesh.frameworks.base import CeilingProgram, monotonic_s
from cubemesh.frameworks.ceilings import COPY_SIZES, fastest
from cubemesh.frameworks.pytorch.runtime import (
    ARRAY_TYPES,
    NARROW_TYPES,
    is_out_of_memory,
    prepare,
    synchronize,
)
from cubemesh.model.spec import Ceiling, ProgramSettings


class _OnDevice:
    """What both operations share."""

    def __init__(self, device: str) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self.device)

    def clock(self) -> float:
        """The process's monotonic clock."""
        return monotonic_s()


class MatrixProduct(_OnDevice):
    """c = a b, all three `side` × `side`."""

    unit = "FLOP/s"

    def __init__(self, side: int, dtype: torch.dtype, device: str) -> None:
        super().__init__(device)
        self.work_per_call = 2.0 * side**3
        self._a, self._b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
        self._c = torch.empty_like(self._a)

    def call(self) -> None:
        """Queue one product."""
        torch.mm(self._a, self._b, out=self._c)


class Copy(_OnDevice):
    """A copy from one array of `size_bytes` to another."""

    unit = "byte/s"

    def __init__(self, size_bytes: int, device: str) -> None:
        super().__init__(device)
        self.work_per_call = 2.0 * size_bytes
        # Random once, then repeated: drawing 2 GiB would take a CPU half a minute.
        drawn = torch.randint(0, 256, (min(size_bytes, 1 << 20),), dtype=torch.uint8, device=device)
        self._source = drawn.repeat(math.ceil(size_bytes / len(drawn)))[:size_bytes]
        self._target = torch.empty_like(self._source)

    def call(self) -> None:
        """Queue one copy."""
        self._target.copy_(self._source)


def build_ceiling(
    work: Ceiling, program: ProgramSettings, device: str, threads: int
) -> CeilingProgram:
    """The operation of `work` in the program's precision, at its size or at the fastest found."""
    prepare(device, program.precision, threads)
    torch.manual_seed(0)
    on_gpu = torch.device(device).type == "cuda"
    if work.operation == "copy":
        sizes = COPY_SIZES
        make: Callable[[int], CeilingProgram] = lambda size: Copy(size, device)  # noqa: E731
    else:
        exact = ARRAY_TYPES.get(program.precision, torch.float32)
        dtype = NARROW_TYPES.get(program.precision, exact)
        sizes = (1 << 10, 1 << 14) if on_gpu else (1 << 9, 1 << 13)
        make = lambda side: MatrixProduct(side, dtype, device)  # noqa: E731
    if work.size is not None:
        return make(work.size)
    return fastest(make, *sizes, is_out_of_memory)
