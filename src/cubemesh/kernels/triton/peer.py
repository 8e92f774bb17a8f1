# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Loads, stores and atomics of a GPU in memory that it has mapped: its own, another GPU's, the
host's pinned memory, or managed memory.

Each kernel runs on the current device. `Words` is an array at an address that no tensor owns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Words of a program."""
WARPS = 8


@dataclass(frozen=True)
class Words:
    """An array of `dtype` at `address`, as an argument of a kernel."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        """The address; Triton asks for it."""
        return self.address


Array = Tensor | Words


def copy(source: Array, target: Array, words: int) -> None:
    """Load each word of one array of int32 and store it in the other."""
    copy_kernel[(-(-words // BLOCK),)](source, target, words, BLOCK, num_warps=WARPS)


def add_one(target: Array, words: int) -> None:
    """Load each word of an array of int32, add one, store it."""
    add_one_kernel[(-(-words // BLOCK),)](target, words, BLOCK, num_warps=WARPS)


def atomic_add_one(target: Array, words: int) -> None:
    """Add one to each word of an array of int32, by an atomic operation at system scope."""
    atomic_add_one_kernel[(-(-words // BLOCK),)](target, words, BLOCK, num_warps=WARPS)


def chase(chain: Array, position: Tensor, hops: int) -> None:
    """Follow a chain of int64, each element the index of the next, from the index in `position`;
    leave the last index there. One load at a time: each needs the one before."""
    chase_kernel[(1,)](chain, position, hops, num_warps=1)


@triton.jit
def copy_kernel(source, target, words, block: tl.constexpr):
    """See `copy`."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < words
    tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)


@triton.jit
def add_one_kernel(target, words, block: tl.constexpr):
    """See `add_one`."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < words
    tl.store(target + at, tl.load(target + at, mask=inside) + 1, mask=inside)


@triton.jit
def atomic_add_one_kernel(target, words, block: tl.constexpr):
    """See `atomic_add_one`."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    ones = tl.full((block,), 1, tl.int32)
    tl.atomic_add(target + at, ones, mask=at < words, sem="relaxed", scope="sys")


@triton.jit
def chase_kernel(chain, position, hops):
    """See `chase`."""
    at = tl.load(position)
    for _ in range(hops):
        at = tl.load(chain + at)
    tl.store(position, at)
