"""A training step takes and frees the same arrays each time: let the process keep what it frees.

glibc gives an array of more than 32 MiB back to the kernel when it is freed, and the end of its
heap too; the kernel then hands the memory out anew in the next step, 4 KiB at a time, each piece
cleared before it is touched. Here it is told to take every array from its heap and never to give
the heap's end back (mallopt(3)). And PyTorch is told to ask for large pages (2 MiB) under large
arrays, where the kernel gives them to who asks ("madvise" in
/sys/kernel/mm/transparent_hugepage/enabled).

A heap that is cut and joined again has no room at the place where the next step wants it: ResNet-50
took new memory for a dozen steps, and came to hold 4.0 GB where 2.7 are enough. So PyTorch's own
arrays of a megabyte and more come from `allocator.cpp`, which keeps each size by itself, where
a compiler is there to make it. It holds at most twice what was ever in use at once.

Who has set glibc's own variables (MALLOC_…, GLIBC_TUNABLES) or another allocator (LD_PRELOAD) is
left alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from cubemesh.kernels.cpu.compiler import declared_library

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Of mallopt(3)."""
_NEVER = -1
SOURCE = Path(__file__).with_name("allocator.cpp")
_ARGUMENTS: dict[str, list[type]] = {"keep_arrays": [], "release_unused": [], "held_bytes": []}
LARGE_PAGES_VARIABLE = "THP_MEM_ALLOC_ENABLE"
"""PyTorch's own: large pages under arrays of 2 MiB and more (c10/core/alignment.h)."""


_keeping: list[ctypes.CDLL] = []
"""The allocator, once it is in use."""


def user_has_chosen(environ: Mapping[str, str]) -> bool:
    """Whether the allocator was set from outside."""
    named = ("GLIBC_TUNABLES", "LD_PRELOAD")
    return any(name.startswith("MALLOC_") or name in named for name in environ)


def keep_freed_memory() -> bool:
    """Tell the allocators, for the whole process; whether they were told. PyTorch's asks for large
    pages only if it hears of it before its first array."""
    libc = ctypes.CDLL(None)
    if user_has_chosen(os.environ) or not hasattr(libc, "mallopt"):
        return False
    os.environ.setdefault(LARGE_PAGES_VARIABLE, "1")
    told = bool(libc.mallopt(_M_MMAP_MAX, 0)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, _NEVER))
    with suppress(OSError):  # then the heap is all there is
        library().keep_arrays()
        _keeping.append(library())
    return told


def release_freed_memory() -> None:
    """Give back to the kernel what no array uses, of what `keep_freed_memory` keeps by size."""
    for allocator in _keeping[:1]:
        allocator.release_unused()


@cache
def library() -> ctypes.CDLL:
    """The allocator, compiled for this very PyTorch. OSError where that is not possible."""
    if sys.platform != "linux":
        raise OSError("it asks Linux for its pages")
    import torch

    place = Path(torch.__file__).parent
    flags = (
        f"-I{place / 'include'}", f"-L{place / 'lib'}", "-lc10",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-DFOR_PYTORCH={torch.__version__}",  # another one is compiled for anew
    )  # fmt: skip
    found = declared_library(SOURCE, _ARGUMENTS, *flags)
    found.held_bytes.restype = ctypes.c_size_t
    return found
