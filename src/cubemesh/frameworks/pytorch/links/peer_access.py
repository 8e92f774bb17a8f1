"""Peer access: loads, stores and atomics of a kernel on one GPU in the memory of another, in its
own and in the host's pinned memory, as nvbandwidth's SM copies and its latency by pointer chasing.

    load           the kernel loads from there and stores in its own memory
    store          the kernel loads from its own memory and stores there
    atomic_add     the kernel adds 1 to each 32-bit word there, at system scope
    load_latency   one load after the other, each at the address that the last one gave, at random
                   places that no cache has

Every array that a kernel wrote is compared with what it must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import c_int32, c_int64
from functools import cache
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch.links.driver import (
    DriverError,
    driver,
    host_array,
    median_s,
    near,
    on,
)
from cubemesh.schema.collective import HOST, LinkRate
from cubemesh.schema.machine import Unknown
from cubemesh.schema.warning import Warning, warn
from cubemesh.units import format_bytes, format_count

SIZE = 128 << 20
CALLS = 4
SAMPLES = 5
CHAIN_BYTES = 64 << 20
STRIDE = 32
"""Numbers of 8 bytes between two nodes of a chain: 256 bytes, more than a cache line."""
HOPS = 20_000
CHASES = 3


def measure(
    size: int | None, devices: Sequence[int], processors: Sequence[Sequence[int]]
) -> Iterator[LinkRate | Unknown | Warning]:
    """The accesses of every device to the host's memory, to its own, and to every other's."""
    if find_spec("triton") is None:
        raise Unsupported(
            "operation=peer_access needs Triton, which compiles its kernels. Install the package "
            "triton of this PyTorch."
        )
    words = max(1, (size or SIZE) // 4)
    for place, device in enumerate(devices):
        near_processors = processors[place] if place < len(processors) else ()
        yield from _host(device, words, near_processors)
        for other in devices:
            yield from _pair(device, other, words)


def _pair(device: int, other: int, words: int) -> Iterator[LinkRate | Unknown | Warning]:
    """Accesses of a kernel on `device` to memory of `other`."""
    from cubemesh.kernels.triton import peer

    own, there = f"cuda:{device}", f"cuda:{other}"
    if device != other:
        if not torch.cuda.can_device_access_peer(device, other):
            yield Unknown(
                what=f"peer access of {own} to {there}",
                why="CUDA says that the GPUs have no access to each other's memory; a hypervisor, "
                "IOMMU or chipset may prevent it (nvidia-smi topo -p2p r)",
            )
            return
        try:
            with on(device):
                driver().map_peer(other)
        except DriverError as error:
            yield Unknown(what=f"peer access of {own} to {there}", why=str(error))
            return
    remote = torch.arange(words, dtype=torch.int32, device=there)
    local = torch.zeros(words, dtype=torch.int32, device=own)
    chain = _chain().to(there)
    torch.cuda.synchronize(other)
    with on(device):
        yield _rate("load", (there, own), words, lambda: peer.copy(remote, local, words))
        yield from _check("loads", (there, own), local, remote)
        local += 1
        yield _rate("store", (own, there), words, lambda: peer.copy(local, remote, words))
        yield from _check("stores", (own, there), local, remote)
        yield _latency((there, own), lambda at: peer.chase(chain, at, HOPS))
        if device != other and not driver().has_atomics(device, other):
            yield Unknown(
                what=f"atomics of {own} in memory of {there}",
                why="the link between these GPUs carries no atomic operations",
            )
            return
        remote.zero_()
        torch.cuda.synchronize(other)
        yield _rate("atomic_add", (own, there), words, lambda: peer.atomic_add_one(remote, words))
        yield from _check("atomics", (own, there), local.fill_(CALLS * (SAMPLES + 1)), remote)


def _host(device: int, words: int, processors: Sequence[int]) -> Iterator[LinkRate | Warning]:
    """Accesses of a kernel to pinned memory of the host."""
    from cubemesh.kernels.triton import peer

    cuda, own = driver(), f"cuda:{device}"
    size = max(words * 4, CHAIN_BYTES)
    local = torch.zeros(words, dtype=torch.int32, device=own)
    with on(device):
        with near(processors):
            address = cuda.pinned(size)
        try:
            numbers = host_array(address, words, c_int32)
            numbers[:] = np.arange(words, dtype=np.int32)
            remote = peer.Words(address, torch.int32)
            yield _rate("load", (HOST, own), words, lambda: peer.copy(remote, local, words))
            yield from _check("loads", (HOST, own), local, torch.from_numpy(numbers))
            local += 1
            yield _rate("store", (own, HOST), words, lambda: peer.copy(local, remote, words))
            yield from _check("stores", (own, HOST), local, torch.from_numpy(numbers))
            chain = _chain().numpy()
            host_array(address, len(chain), c_int64)[:] = chain
            linked = peer.Words(address, torch.int64)
            yield _latency((HOST, own), lambda at: peer.chase(linked, at, HOPS))
        finally:
            torch.cuda.synchronize(device)
            cuda.free_pinned(address)


@cache
def _chain() -> Tensor:
    """A closed chain through all nodes of `CHAIN_BYTES`, in random order: each holds the index of
    the next."""
    nodes = CHAIN_BYTES // 8 // STRIDE
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(0)) * STRIDE
    chain = torch.zeros(nodes * STRIDE, dtype=torch.int64)
    chain[order] = order.roll(-1)
    return chain


def _rate(kind: str, ends: tuple[str, str], words: int, run: Callable[[], None]) -> LinkRate:
    """The rate of a kernel on the current device, `CALLS` at a time."""

    def several() -> None:
        for _ in range(CALLS):
            run()

    seconds = median_s(several, torch.cuda.synchronize, SAMPLES) / CALLS
    atomics = kind == "atomic_add"
    return LinkRate(
        name=kind,
        source=ends[0],
        target=ends[1],
        value=words / seconds if atomics else 4 * words / seconds,
        unit="1/s" if atomics else "B/s",
        n=SAMPLES,
        method=f"Triton kernel on {format_bytes(4 * words)}, {CALLS} at a time",
    )


def _latency(ends: tuple[str, str], chase: Callable[[Tensor], None]) -> LinkRate:
    position = torch.zeros(1, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    seconds = median_s(lambda: chase(position), torch.cuda.synchronize, CHASES) / HOPS
    return LinkRate(
        name="load_latency",
        source=ends[0],
        target=ends[1],
        value=seconds,
        unit="s",
        n=CHASES,
        method=f"{format_count(HOPS)} dependent loads in {format_bytes(CHAIN_BYTES)}",
    )


def _check(what: str, ends: tuple[str, str], expected: Tensor, found: Tensor) -> Iterator[Warning]:
    """The warning about words that differ, if any. The comparison is on the host: it does not use
    the access that it checks."""
    torch.cuda.synchronize()
    wrong = int((expected.cpu() != found.cpu()).sum())
    if wrong:
        yield warn(
            "wrong-results",
            f"{format_count(wrong)} words of {what} from {ends[0]} to {ends[1]} had wrong values.",
            "Do not use results from these devices. Check the links' error counters.",
        )
