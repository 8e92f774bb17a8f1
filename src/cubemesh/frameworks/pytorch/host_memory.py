"""A training step takes and frees the same arrays each time: let the process keep what it frees.

glibc gives an array of more than 32 MiB back to the kernel when it is freed, and the end of its
heap too; the kernel then hands the memory out anew in the next step, 4 KiB at a time, each piece
cleared before it is touched. Here it is told to take every array from its heap and never to give
the heap's end back (mallopt(3)). So a process holds on to the most that it ever needed, which is
what a step needs. And PyTorch is told to ask for large pages (2 MiB) under large arrays, where the
kernel gives them to who asks ("madvise" in /sys/kernel/mm/transparent_hugepage/enabled).

Who has set glibc's own variables (MALLOC_…, GLIBC_TUNABLES) or another allocator (LD_PRELOAD) is
left alone.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Of mallopt(3)."""
_NEVER = -1
LARGE_PAGES_VARIABLE = "THP_MEM_ALLOC_ENABLE"
"""PyTorch's own: large pages under arrays of 2 MiB and more (c10/core/alignment.h)."""


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
    return bool(libc.mallopt(_M_MMAP_MAX, 0)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, _NEVER))
