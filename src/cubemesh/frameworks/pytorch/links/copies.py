"""Copies by the copy engines, as nvbandwidth measures them: host to device and back, and from each
GPU to each other, in one direction and in both at once, with pinned host memory.

    read     the copy runs on the GPU that receives
    write    the copy runs on the GPU that sends
    both     a write each way at the same time: the sum of both

A rate is the median of `SAMPLES` groups of `CALLS` copies; a latency the time from the host's call
of a copy of `SMALL` bytes until the host knows that it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations

import torch

from cubemesh.frameworks.pytorch.links.driver import DriverError, driver, median_s, near, on
from cubemesh.schema.collective import HOST, LinkRate
from cubemesh.schema.machine import Unknown
from cubemesh.schema.warning import Warning
from cubemesh.units import format_bytes

SIZE = 256 << 20
SMALL = 8
CALLS = 4
SAMPLES = 5
LATENCY_SAMPLES = 100


def measure(
    size: int | None, devices: Sequence[int], processors: Sequence[Sequence[int]]
) -> Iterator[LinkRate | Unknown | Warning]:
    """The copies of every device with the host, then of every pair."""
    size = size or SIZE
    for place, device in enumerate(devices):
        near_processors = processors[place] if place < len(processors) else ()
        yield from _with_host(device, size, near_processors)
    for first, second in permutations(devices, 2):
        yield from _between(first, second, size)


def _with_host(device: int, size: int, processors: Sequence[int]) -> Iterator[LinkRate]:
    cuda = driver()
    memory = "pinned host memory" + (" of the GPU's NUMA node" if processors else "")
    name = f"cuda:{device}"
    with on(device) as stream:
        other = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        arrays = [torch.zeros(size, dtype=torch.uint8, device=name) for _ in range(2)]
        torch.cuda.synchronize(device)
        hosts: list[int] = []
        try:
            with near(processors):
                hosts.append(cuda.pinned(size))
                hosts.append(cuda.pinned(size))
            there, back = arrays[0].data_ptr(), arrays[1].data_ptr()

            def send(count: int = size) -> None:
                cuda.copy(there, device, hosts[0], None, count, stream)

            def receive(count: int = size) -> None:
                cuda.copy(hosts[1], None, back, device, count, other)

            def wait() -> None:
                stream.synchronize()
                other.synchronize()

            for kind, run, queue, ends in (
                ("host_to_device", send, stream, (HOST, name)),
                ("device_to_host", receive, other, (name, HOST)),
            ):
                yield _rate(kind, ends, size, [run], queue.synchronize, memory)
                yield _latency(f"{kind}_latency", ends, run, queue.synchronize, memory)
            yield _rate("host_both", (HOST, name), size, [send, receive], wait, memory)
        finally:
            torch.cuda.synchronize(device)
            for address in hosts:
                cuda.free_pinned(address)


def _between(first: int, second: int, size: int) -> Iterator[LinkRate | Unknown]:
    """Reads and writes of `first` with `second`; both directions once a pair."""
    cuda = driver()
    source, target = f"cuda:{first}", f"cuda:{second}"
    path = "direct"
    try:
        if not torch.cuda.can_device_access_peer(first, second):
            raise PermissionError("no peer access")
        for device, other in ((first, second), (second, first)):
            with on(device):
                cuda.map_peer(other)
    except (PermissionError, DriverError) as reason:
        path = f"through the host ({reason})"
    here = [torch.zeros(size, dtype=torch.uint8, device=source) for _ in range(2)]
    there = [torch.zeros(size, dtype=torch.uint8, device=target) for _ in range(2)]
    for device in (first, second):
        torch.cuda.synchronize(device)
    with on(second) as its_stream, on(first) as own_stream:

        def write(count: int = size) -> None:
            a, b = here[0].data_ptr(), there[0].data_ptr()
            cuda.copy(b, second, a, first, count, own_stream)

        def read(count: int = size) -> None:
            a, b = here[1].data_ptr(), there[1].data_ptr()
            cuda.copy(a, first, b, second, count, own_stream)

        def opposite(count: int = size) -> None:
            a, b = here[1].data_ptr(), there[1].data_ptr()
            with torch.cuda.device(second):
                cuda.copy(a, first, b, second, count, its_stream)

        def wait() -> None:
            own_stream.synchronize()
            its_stream.synchronize()

        done = own_stream.synchronize
        yield _rate("write", (source, target), size, [write], done, path)
        yield _rate("read", (target, source), size, [read], done, path)
        yield _latency("copy_latency", (source, target), write, done, path)
        if first < second:
            yield _rate("both", (source, target), size, [write, opposite], wait, path)


def _rate(
    kind: str,
    ends: tuple[str, str],
    size: int,
    copies: Sequence[Callable[[], None]],
    wait: Callable[[], None],
    how: str,
) -> LinkRate:
    def run() -> None:
        for _ in range(CALLS):
            for copy in copies:
                copy()

    seconds = median_s(run, wait, SAMPLES)
    return LinkRate(
        name=kind,
        source=ends[0],
        target=ends[1],
        value=CALLS * len(copies) * size / seconds,
        unit="B/s",
        n=SAMPLES,
        method=f"copy engine, {CALLS} copies of {format_bytes(size)}, {how}",
    )


def _latency(
    kind: str,
    ends: tuple[str, str],
    copy: Callable[[int], None],
    wait: Callable[[], None],
    how: str,
) -> LinkRate:
    return LinkRate(
        name=kind,
        source=ends[0],
        target=ends[1],
        value=median_s(lambda: copy(SMALL), wait, LATENCY_SAMPLES),
        unit="s",
        n=LATENCY_SAMPLES,
        method=f"a copy of {SMALL} bytes, from the host's call until it is done, {how}",
    )
