"""Compilation of several Triton kernels at once, in threads.

Most of the time is spent in LLVM's code generation and in `ptxas`, both without the interpreter's
lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

MAX_THREADS = 16


@contextmanager
def compiling_in_threads() -> Iterator[None]:
    """Kernels whose `warmup` is called in the block compile in threads, until its end. A kernel
    that cannot be compiled raises when it is used. No kernel may run in the block."""
    import triton

    if not hasattr(triton, "AsyncCompileMode"):  # before Triton 3.4
        yield
        return
    threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads) as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
        yield
