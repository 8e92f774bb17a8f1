"""What does an exchange add to a step, and what of it runs beside the backward pass?

S bytes of gradients leave in buckets as backward completes them, one after the other; what has not
ended with backward is exposed, and what comes after the update is exposed as a whole:

    all-reduce               each bucket's all-reduce; nothing after the update
    all-reduce-16            the same with two bytes a value
    parameter-server         each bucket's reduce to one device; then a broadcast of the weights
    parameter-server-cpu     each bucket copied to its processor's memory, over links shared with
                             neighbours; the weights are fetched while the next forward pass runs
    parameter-server-spread  the same with a part of the weights on each device; between systems
                             one sum a system goes to servers spread over all, and weights return
    asynchronous             every device sends S to a server and fetches S, and waits for nobody;
                             the server's links serve n devices in a step (2 n S)
    local-sgd                an all-reduce of the weights every `average_every` steps

(M. Li et al., Scaling distributed machine learning with the parameter server, 2014; J. Dean et al.
2012; S. Stich 2019.) Servers are taken to add as fast as bytes come in. What runs beside a pass
slows it: `overlap_slowdown` for what processors and devices drive themselves, `copy_slowdown` for
copy engines, which take no share of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from cubemesh.errors import unknown_name
from cubemesh.forecast.calibration import Calibration
from cubemesh.forecast.communication import Library, collective
from cubemesh.forecast.fabric import Fabric
from cubemesh.forecast.passes import Passes

GradientSync = Literal[
    "all-reduce",
    "all-reduce-16",
    "parameter-server",
    "parameter-server-cpu",
    "parameter-server-spread",
    "asynchronous",
    "local-sgd",
]
STRATEGIES: tuple[GradientSync, ...] = get_args(GradientSync)

Timed = tuple[float, str]
"""(seconds, what bounds them)."""


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """What an exchange does to a step of one device."""

    slowdown_s: float = 0.0
    """Of backward, by what runs beside it."""
    exposed_s: float = 0.0
    busy_s: float = 0.0
    """All of it, hidden or not."""
    limit: str = ""
    bytes: int = 0
    """That one device gives in a step, before any algorithm multiplies it."""
    together: float = 1.0
    """How much of waiting for the slowest is left: 0 where nobody waits."""


def exchanged(
    kind: GradientSync, on: Fabric, own: Passes, known: Calibration, library: Library
) -> Exchanged:
    """The exchange of a step whose passes are `own`; nothing on one device. UsageError for an
    exchange that there is not."""
    if kind not in STRATEGIES:
        raise unknown_name("sync", kind, STRATEGIES)
    if on.devices == 1:
        return Exchanged()
    ways = _Ways(on, known, library)
    size = own.gradient_bytes * known["gradient_scale"]
    if kind == "local-sgd":
        seconds, limit = ways.collective("all-reduce", size)
        every = known["average_every"]
        return Exchanged(
            exposed_s=seconds / every,
            busy_s=seconds / every,
            limit=limit,
            bytes=round(size / every),
            together=every**-0.5,  # the spread of a sum of steps grows with their root
        )
    if kind == "asynchronous":
        return _asynchronous(ways, own, size)
    if kind.startswith("parameter-server-") and on.systems == 1:
        return _copied(ways, own, known, size, kind)
    narrow = 0.5 if kind == "all-reduce-16" else 1.0
    before, after = ways.around(kind)
    return _overlapped(own, known, before, after, narrow)


class _Ways:
    """How long bytes take, each way there is."""

    def __init__(self, on: Fabric, known: Calibration, library: Library) -> None:
        self.on, self.known, self.library = on, known, library

    def collective(self, operation: str, size: float) -> Timed:
        found = collective(self.on, operation, size, self.known, self.library)  # type: ignore[arg-type]
        return found.seconds, found.limit

    def around(
        self, kind: GradientSync
    ) -> tuple[Callable[[float], Timed], Callable[[float], Timed]]:
        """What takes how long with each bucket before the update, and with all after it."""

        def run(operation: str) -> Callable[[float], Timed]:
            return lambda size: self.collective(operation, size)

        if kind == "parameter-server":
            return run("reduce"), run("broadcast")
        if kind == "parameter-server-cpu":
            return self.to_host, self.to_host
        if kind == "parameter-server-spread":
            return self.to_servers, self.to_servers
        return run("all-reduce"), lambda size: (0.0, "")

    def host_rate(self) -> float:
        """Of each device to its processor's memory; processors, and devices of which that way is
        not known, send through TCP."""
        return self.on.host_bytes_per_s or self.known["gloo_local_bytes_per_s"]

    def to_host(self, size: float) -> Timed:
        """Every device to its processor's memory at once; other systems' go on to the first."""
        on = self.on
        seconds, limit = size / self.host_rate(), "the way to the processor"
        if on.systems > 1 and on.network_bytes_per_s:
            crossing = size * (on.devices - on.devices_per_system) / self.wire()
            if crossing > seconds:
                return crossing, on.network_name
        return seconds, limit

    def to_servers(self, size: float) -> Timed:
        """A system's sum to servers spread over all systems: the part of the others crosses."""
        on = self.on
        inside = 0.0
        if on.devices_per_system > 1:
            inside = size / self.host_rate()
        crossing = size * (on.systems - 1) / on.systems / self.wire()
        return inside + crossing, on.network_name if crossing > inside else "the way to the host"

    def wire(self) -> float:
        """A system's ports together, less what frames take on Ethernet."""
        rate = self.on.network_bytes_per_s or float("inf")
        ethernet = self.library == "gloo" or "Ethernet" in self.on.network_name
        return rate * self.known["tcp_efficiency"] if ethernet else rate


def _copied(
    ways: _Ways, own: Passes, known: Calibration, size: float, kind: GradientSync
) -> Exchanged:
    """Copies beside backward, and of the new weights beside the next forward pass."""
    devices = ways.on.devices
    part = (devices - 1) / devices if kind == "parameter-server-spread" else 1.0
    seconds, limit = ways.to_host(part * size)
    hidden_s = min(seconds, own.backward_s) + min(seconds, own.forward_s)
    return Exchanged(
        slowdown_s=known["copy_slowdown"] * hidden_s,
        exposed_s=2 * seconds - hidden_s,
        busy_s=2 * seconds,
        limit=limit,
        bytes=round(part * size),
    )


def _asynchronous(ways: _Ways, own: Passes, size: float) -> Exchanged:
    """A device waits for its own bytes alone, unless the server's links are full."""
    crowded, limit = ways.to_host(size)
    alone = size / min(ways.host_rate(), ways.wire())
    full = crowded - own.step_s  # either way of a link carries S of every device in a step
    return Exchanged(
        exposed_s=max(2 * alone, full),
        busy_s=max(2 * alone, crowded),
        limit=limit,
        bytes=round(size),
        together=0.0,
    )


def _overlapped(
    own: Passes,
    known: Calibration,
    before: Callable[[float], Timed],
    after: Callable[[float], Timed],
    narrow: float,
) -> Exchanged:
    end_s, ended_s, busy_s, hidden_s, limit = own.backward_s, 0.0, 0.0, 0.0, ""
    total = 0.0
    for ready_s, size in _buckets(own, known, narrow):
        seconds, limit = before(size)
        started_s = max(ready_s, ended_s)
        ended_s = started_s + seconds
        hidden_s += max(0.0, min(ended_s, end_s) - started_s)
        busy_s += seconds
        total += size
    back_s, back_limit = after(total)
    if back_s:
        busy_s, limit = busy_s + back_s, back_limit
    return Exchanged(
        slowdown_s=known["overlap_slowdown"] * hidden_s,
        exposed_s=max(0.0, ended_s - end_s) + back_s,
        busy_s=busy_s,
        limit=limit,
        bytes=round(total),
    )


def _buckets(own: Passes, known: Calibration, narrow: float) -> Iterator[tuple[float, float]]:
    """(when it is ready after backward began, bytes) of each bucket."""
    scale = narrow * known["gradient_scale"]
    ready_s, waiting, room = 0.0, 0, known["first_bucket_bytes"]
    for i, layer in enumerate(own.backward):
        ready_s += layer.seconds
        waiting += layer.gradient_bytes
        if waiting and (waiting >= room or i == len(own.backward) - 1):
            yield ready_s, waiting * scale
            waiting, room = 0, known["bucket_bytes"]
