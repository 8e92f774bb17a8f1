"""Managed memory: how fast its pages move between host and GPU, and how long a page fault takes.

    first_touch           a kernel writes untouched memory: its pages appear on the GPU
    fault_to_host         the host writes a word of each page that is on the GPU
    fault_to_device       a kernel writes memory whose pages are on the host
    prefetch_to_host,     the same migrations, asked for in advance and whole
    prefetch_to_device    (cuMemPrefetchAsync)
    gpu_fault, cpu_fault  one access after the other, each in another block of 2 MiB, which the
                          other side has: seconds of one

The driver moves more than the page that was touched, up to its block of 2 MiB (NVIDIA's open kernel
modules, uvm_perf_prefetch.c), so a rate is of all bytes and a fault includes what moved with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from ctypes import c_int32, c_int64
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import torch

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch.links.driver import (
    HOST_DEVICE,
    CudaDriver,
    DriverError,
    driver,
    host_array,
    near,
    on,
)
from cubemesh.schema.collective import HOST, LinkRate
from cubemesh.schema.machine import Unknown
from cubemesh.schema.warning import Warning, warn
from cubemesh.units import format_bytes, format_count

SIZE = 256 << 20
BLOCK = 2 << 20
PAGE = 4096
SAMPLES = 3
_FREE_FRACTION = 4
"""A GPU must have so many times the size free."""


def measure(
    size: int | None, devices: Sequence[int], processors: Sequence[Sequence[int]]
) -> Iterator[LinkRate | Unknown | Warning]:
    """Migrations between the host and each device."""
    if find_spec("triton") is None:
        raise Unsupported(
            "operation=page_migration needs Triton, which compiles its kernels. Install the "
            "package triton of this PyTorch."
        )
    cuda = driver()
    for place, device in enumerate(devices):
        near_processors = processors[place] if place < len(processors) else ()
        name = f"cuda:{device}"
        try:
            if not cuda.migrates_pages(device):
                yield Unknown(
                    what=f"page migration of {name}",
                    why="this GPU, driver or hypervisor moves managed memory whole when a kernel "
                    "starts, not page by page",
                )
                continue
            free = torch.cuda.mem_get_info(device)[0] // _FREE_FRACTION
            fits = min(size or SIZE, free) // BLOCK * BLOCK
            if not fits:
                raise Unsupported(
                    f"operation=page_migration needs {format_bytes(_FREE_FRACTION * BLOCK)} of "
                    f"free memory on {name}; {format_bytes(_FREE_FRACTION * free)} are free."
                )
            with on(device) as stream, near(near_processors):
                yield from _migrations(cuda, device, fits, stream)
                yield from _faults(cuda, device, fits)
        except DriverError as error:
            yield Unknown(what=f"page migration of {name}", why=str(error))


def _migrations(
    cuda: CudaDriver, device: int, size: int, stream: Any
) -> Iterator[LinkRate | Warning]:
    from cubemesh.kernels.triton import peer

    name, words = f"cuda:{device}", size // 4
    ends = {
        "first_touch": (name, name),
        "fault_to_host": (name, HOST),
        "fault_to_device": (HOST, name),
        "prefetch_to_host": (name, HOST),
        "prefetch_to_device": (HOST, name),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in ends}
    zeros = torch.zeros(words, dtype=torch.int32, device=name)
    peer.add_one(zeros, words)  # compiles it
    peer.copy(zeros, torch.empty_like(zeros), words)
    zeros.zero_()
    for _ in range(SAMPLES):
        torch.cuda.synchronize()
        address = cuda.managed(size)
        try:
            array = peer.Words(address, torch.int32)
            start = time.perf_counter()
            peer.copy(zeros, array, words)
            torch.cuda.synchronize()
            seconds["first_touch"].append(time.perf_counter() - start)

            view = host_array(address, words, c_int32)[:: PAGE // 4]
            start = time.perf_counter()
            view += 1
            seconds["fault_to_host"].append(time.perf_counter() - start)

            start = time.perf_counter()
            peer.add_one(array, words)
            torch.cuda.synchronize()
            seconds["fault_to_device"].append(time.perf_counter() - start)

            for kind, where in (
                ("prefetch_to_host", HOST_DEVICE),
                ("prefetch_to_device", device),
            ):
                start = time.perf_counter()
                cuda.prefetch(address, size, where, stream)
                stream.synchronize()
                seconds[kind].append(time.perf_counter() - start)
            # Zeros, then one more on each page's first word, then one more on each word.
            whole = host_array(address, words, c_int32)
            wrong = int((whole[:: PAGE // 4] != 2).sum()) + int((whole[1 :: PAGE // 4] != 1).sum())
            if wrong:
                yield warn(
                    "wrong-results",
                    f"{format_count(wrong)} words of managed memory had wrong values after moving "
                    f"between the host and {name}.",
                    "Do not use results from this device. Check its ECC counters.",
                )
        finally:
            cuda.free_managed(address)
    for kind, (source, target) in ends.items():
        yield LinkRate(
            name=kind,
            source=source,
            target=target,
            value=size / median(seconds[kind]),
            unit="B/s",
            n=SAMPLES,
            method=f"{format_bytes(size)} of managed memory",
        )


def _faults(cuda: CudaDriver, device: int, size: int) -> Iterator[LinkRate]:
    """Seconds of a fault of the GPU, and of the host."""
    from cubemesh.kernels.triton import peer

    name, blocks, step = f"cuda:{device}", size // BLOCK, BLOCK // 8
    position = torch.zeros(1, dtype=torch.int64, device=name)
    compiled = torch.zeros(1, dtype=torch.int64, device=name)
    peer.chase(compiled, position, blocks)
    torch.cuda.synchronize()
    on_gpu, on_host = [], []
    for _ in range(SAMPLES):
        address = cuda.managed(size)
        try:
            chain = host_array(address, size // 8, c_int64)[::step]
            chain[:] = np.roll(np.arange(blocks), -1) * step
            position.zero_()
            torch.cuda.synchronize()
            start = time.perf_counter()
            peer.chase(peer.Words(address, torch.int64), position, blocks)
            torch.cuda.synchronize()
            on_gpu.append((time.perf_counter() - start) / blocks)
            start = time.perf_counter()
            chain.sum()
            on_host.append((time.perf_counter() - start) / blocks)
        finally:
            cuda.free_managed(address)
    for kind, ends, found in (
        ("gpu_fault", (HOST, name), on_gpu),
        ("cpu_fault", (name, HOST), on_host),
    ):
        yield LinkRate(
            name=kind,
            source=ends[0],
            target=ends[1],
            value=median(found),
            unit="s",
            n=SAMPLES,
            method=f"{blocks} accesses, one after the other, in blocks of {format_bytes(BLOCK)}",
        )
