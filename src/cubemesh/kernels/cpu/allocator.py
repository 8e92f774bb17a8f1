"""CPU memory allocator settings: freed memory stays in the process, for the next training step.

A step allocates and frees the same arrays each time. glibc returns freed arrays of more than 32
MiB, and the top of its heap, to the kernel, which clears and maps the pages again in the next step.
Here glibc serves every array from its heap and never trims it (mallopt(3)), and PyTorch requests
large pages (2 MiB) for large arrays (with "madvise" in
/sys/kernel/mm/transparent_hugepage/enabled).

A heap fragments: ResNet-50 needed new memory for a dozen steps and grew to 4.0 GB, where 2.7 are
enough. So PyTorch's arrays of 1 MiB and more come from `allocator.cpp`, with a free list per size,
where a compiler is installed. It holds at most twice the peak in use.

Nothing is changed if glibc's variables (MALLOC_…, GLIBC_TUNABLES) or LD_PRELOAD are set.
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
"""Parameters of mallopt(3)."""
_NEVER = -1
SOURCE = Path(__file__).with_name("allocator.cpp")
_ARGUMENTS: dict[str, list[type]] = {
    "install_allocator": [],
    "release_unused": [],
    "held_bytes": [],
}
LARGE_PAGES_VARIABLE = "THP_MEM_ALLOC_ENABLE"
"""PyTorch's own: large pages under arrays of 2 MiB and more (c10/core/alignment.h)."""

_installed: list[ctypes.CDLL] = []
"""The allocator, if it is installed."""


def user_has_chosen(environ: Mapping[str, str]) -> bool:
    """Whether the environment configures the allocator."""
    named = ("GLIBC_TUNABLES", "LD_PRELOAD")
    return any(name.startswith("MALLOC_") or name in named for name in environ)


def keep_freed_memory() -> bool:
    """Apply the settings to the process; whether they were applied. Large pages need the call
    before PyTorch's first array."""
    libc = ctypes.CDLL(None)
    if user_has_chosen(os.environ) or not hasattr(libc, "mallopt"):
        return False
    os.environ.setdefault(LARGE_PAGES_VARIABLE, "1")
    applied = bool(libc.mallopt(_M_MMAP_MAX, 0)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, _NEVER))
    with suppress(OSError):  # without a compiler: glibc's heap only
        library().install_allocator()
        _installed.append(library())
    return applied


def release_freed_memory() -> None:
    """Release to the kernel the arrays that the installed allocator does not use."""
    if _installed:
        _installed[0].release_unused()


@cache
def library() -> ctypes.CDLL:
    """The allocator, compiled for this version of PyTorch. OSError where that is impossible."""
    if sys.platform != "linux":
        raise OSError("the allocator is for Linux only")
    import torch

    place = Path(torch.__file__).parent
    flags = (
        f"-I{place / 'include'}", f"-L{place / 'lib'}", "-lc10",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-DFOR_PYTORCH={torch.__version__}",  # compiled again for another version
    )  # fmt: skip
    return declared_library(SOURCE, _ARGUMENTS, *flags, held_bytes=ctypes.c_size_t)
