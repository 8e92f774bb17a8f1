"""CUDA driver API: functions that PyTorch does not offer, by ctypes on libcuda, which every machine
with an NVIDIA driver has. (CUDA Driver API: memory management, unified addressing, peer context
memory access.)

CUDA's devices are numbered as PyTorch's. A function works on the current device of the calling
thread; `on` sets it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_int, c_int32, c_int64, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import torch

from cubemesh.frameworks.contract.program import OutOfMemory, Unsupported

HOST_DEVICE = -1
"""The host, among devices that memory can be prefetched to (CU_DEVICE_CPU)."""
_CONCURRENT_MANAGED_ACCESS = 89
_NATIVE_ATOMICS = 3
_OUT_OF_MEMORY = 2
_ALREADY_ENABLED = 704
_ATTACH_GLOBAL = 1
_PORTABLE = 1


class DriverError(RuntimeError):
    """A function of the driver failed; the message has its name and CUDA's name of the error."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name}")
        self.code = code


class CudaDriver:
    """The functions of libcuda in use. Unsupported where the library is missing."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unsupported(f"The NVIDIA driver's library cannot be loaded: {error}.") from error
        self._contexts: dict[int, c_void_p] = {}

    def copy(
        self, target: int, on_target: int | None, source: int, on_source: int | None, size: int,
        stream: Any,
    ) -> None:  # fmt: skip
        """Queue a copy of `size` bytes on a stream of PyTorch. `on_target` and `on_source` are the
        GPUs of the addresses, None for the host's pinned memory."""
        queue = c_void_p(stream.cuda_stream)
        ends = c_uint64(target), c_uint64(source)
        if on_target is None or on_source is None:
            self._call("cuMemcpyAsync", *ends, c_size_t(size), queue)
            return
        there, here = self._context(on_target), self._context(on_source)
        self._call("cuMemcpyPeerAsync", ends[0], there, ends[1], here, c_size_t(size), queue)

    def map_peer(self, other: int) -> None:
        """Let kernels of the current device use memory of another GPU."""
        try:
            self._call("cuCtxEnablePeerAccess", self._context(other), c_uint(0))
        except DriverError as error:
            if error.code != _ALREADY_ENABLED:
                raise

    def has_atomics(self, device: int, other: int) -> bool:
        """Whether the link from one GPU to another carries atomic operations."""
        value = c_int()
        ends = c_int(self._device(device)), c_int(self._device(other))
        self._call("cuDeviceGetP2PAttribute", byref(value), c_int(_NATIVE_ATOMICS), *ends)
        return bool(value.value)

    def pinned(self, size: int) -> int:
        """The address of `size` bytes of pinned host memory, of the NUMA node of this thread."""
        address = c_void_p()
        self._call("cuMemHostAlloc", byref(address), c_size_t(size), c_uint(_PORTABLE))
        return int(address.value or 0)

    def free_pinned(self, address: int) -> None:
        """Free what `pinned` returned."""
        self._call("cuMemFreeHost", c_void_p(address))

    def managed(self, size: int) -> int:
        """The address of `size` bytes of managed memory, which no processor has touched."""
        address = c_uint64()
        flags = c_uint(_ATTACH_GLOBAL)
        self._call("cuMemAllocManaged", byref(address), c_size_t(size), flags)
        return int(address.value)

    def free_managed(self, address: int) -> None:
        """Free what `managed` returned."""
        self._call("cuMemFree_v2", c_uint64(address))

    def prefetch(self, address: int, size: int, device: int, stream: Any) -> None:
        """Queue the migration of managed memory to a GPU or to `HOST_DEVICE`."""
        where, queue = c_int(device), c_void_p(stream.cuda_stream)
        self._call("cuMemPrefetchAsync", c_uint64(address), c_size_t(size), where, queue)

    def migrates_pages(self, device: int) -> bool:
        """Whether a GPU fetches single pages of managed memory when it touches them."""
        value = c_int()
        self._call(
            "cuDeviceGetAttribute",
            byref(value),
            c_int(_CONCURRENT_MANAGED_ACCESS),
            c_int(self._device(device)),
        )
        return bool(value.value)

    def _device(self, number: int) -> int:
        device = c_int()
        self._call("cuDeviceGet", byref(device), c_int(number))
        return int(device.value)

    def _context(self, number: int) -> c_void_p:
        """The primary context of a GPU, which PyTorch uses too."""
        if number not in self._contexts:
            context = c_void_p()
            self._call("cuDevicePrimaryCtxRetain", byref(context), c_int(self._device(number)))
            self._contexts[number] = context
        return self._contexts[number]

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(c_int(code), byref(name))
            words = (name.value or b"error %d" % code).decode()
            if code == _OUT_OF_MEMORY:
                raise OutOfMemory(f"{function}: {words}")
            raise DriverError(function, code, words)


@cache
def driver() -> CudaDriver:
    """The driver of this process, which PyTorch has initialized."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return CudaDriver()


@contextmanager
def on(device: int) -> Iterator[Any]:
    """Make a GPU the current device; a stream of its own."""
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # creates the context
        yield torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def near(processors: Collection[int]) -> Iterator[None]:
    """Run this thread on these processors, so that host memory is allocated next to them; where
    none are given, or they are not allowed, where it runs anyway."""
    before = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, processors if processors else before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def host_array(
    address: int, count: int, kind: type[c_int32] | type[c_int64]
) -> np.ndarray[Any, np.dtype[Any]]:
    """Memory at an address that the host can use, as an array of `count` integers."""
    return np.ctypeslib.as_array((kind * count).from_address(address))


def median_s(run: Callable[[], object], wait: Callable[[], object], samples: int) -> float:
    """Median seconds from a call of `run` until `wait` returns, after one call that does not
    count."""
    run()
    wait()
    seconds = []
    for _ in range(samples):
        start = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - start)
    return median(seconds)
