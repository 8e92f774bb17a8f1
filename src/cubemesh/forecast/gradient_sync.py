"""Time that a gradient synchronization strategy adds to a step, and the part that overlaps with the
backward pass.

S bytes of gradients are sent in buckets as the backward pass completes them, one after the other.
What has not finished with the backward pass is exposed, and so is everything after the update. The
patterns of a `SyncCost` (parallel/strategy.py):

    overlapped    a collective of each bucket; after the update, one of the weights
    host-copies   each bucket copied to the memory of its host, over links shared with neighbours,
                  and added there; the weights are fetched during the next forward pass
    host-server   all gradients, after the backward pass, to a process that adds and updates
                  (strategies/cpu_server.py)
    asynchronous  every device sends S to a server and fetches S, and waits for no other device; the
                  server's links carry n devices in a step (2 n S)
    peer-copies   each bucket copied between GPUs of one system by their copy engines, as often as
                  rings send it
    periodic      a collective of the weights every `average_every` steps
    sharded       a unit's weights are gathered while the unit before computes, in 16 bits where the
                  network computes in them, once or twice a step; a reduce-scatter of each bucket
                  competes with them in the backward pass. Each device updates its part. Copies to
                  and from the messages are exposed (strategies/sharded.py)

A parameter server in the memory of one host (`parameter-server-cpu`) is forecast as it runs here:
gradients go through gloo after the backward pass. The frameworks of 2016 to 2018 copied buckets
during it (style `tensorflow-parameter-server`). With a part of the weights for each device
(`parameter-server-spread`; between systems one sum a system goes to servers spread over all, and
weights return) it is forecast only.

A gradient style (forecast/styles.py) replaces the strategy's transfers by those of a framework.

    one ring  NCCL 1 in one system: 2 (n - 1) / n S over one link of each GPU (`one_ring_…`)
    device    each array is summed whole on one GPU and sent back: the busiest GPU has its share of
              all bytes, or the largest array, from and to each of the others
    servers   one a system; each takes its part of the gradients of every system, or of every
              device where none are summed before, and sends it back, at the least of the rates
              of the network, of TCP and of adding (`server_tcp_bytes_per_s`, `server_sum_…`)

(M. Li et al., Scaling distributed machine learning with the parameter server, 2014; J. Dean et al.
2012; S. Stich 2019.) Servers on devices are assumed to add as fast as bytes arrive. What overlaps
with a pass slows it: `overlap_slowdown` for transfers by processors and devices, `copy_slowdown`
for copy engines, which use neither. The sums between copies of GPUs are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cubemesh.errors import UsageError, unknown_name
from cubemesh.forecast.calibration import Calibration, Operation
from cubemesh.forecast.communication import Library, collective
from cubemesh.forecast.fabric import Fabric
from cubemesh.forecast.passes import Passes
from cubemesh.forecast.strategies import cpu_server, sharded
from cubemesh.forecast.styles import GradientStyle
from cubemesh.parallel.context_parallel import ContextParallel
from cubemesh.parallel.hybrid_by_layer import HybridByLayer
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.parallel.strategy import SyncCost
from cubemesh.parallel.tensor_parallel import TensorParallel

COSTS: dict[str, SyncCost] = {
    **{name: s.cost for name, s in STRATEGIES.items() if s.cost is not None},
    "parameter-server-spread": SyncCost(
        pattern="host-copies", gradients="servers", weights="servers"
    ),
}
"""Strategy → its cost, of those that exchange gradients and weights alone."""
STYLE_COSTS = {"host-copies": SyncCost(pattern="host-copies", gradients="host", weights="host")}
"""The same of styles alone."""
PREDICTED = (*COSTS, HybridByLayer.name)
"""The strategies that can be forecast for any network."""

Timed = tuple[float, str]
"""(seconds, the link or limit that bounds them)."""


@dataclass(frozen=True, kw_only=True)
class SyncTime:
    """What a strategy adds to a step of one device."""

    slowdown_s: float = 0.0
    """Of the passes that transfers overlap with."""
    exposed_s: float = 0.0
    busy_s: float = 0.0
    """All transfers, hidden or not."""
    limit: str = ""
    bytes: int = 0
    """Sent by one device in a step, before any algorithm multiplies it."""
    update_share: float = 1.0
    """Of the weights that one device updates."""
    waiting: float = 1.0
    """Fraction of the wait for the slowest device that remains: 0 where no device waits."""


def check_cost(name: str) -> None:
    """UsageError naming the nearest where no strategy called `name` can be forecast."""
    if name in (TensorParallel.name, ContextParallel.name):
        raise UsageError(
            f"sync={name} is forecast for transformers by their sizes, such as gpt2 or llama3-8b: "
            f"cubemesh predict NETWORK --sync {name} --devices 2 (docs/transformers.md). Choose "
            "such a network, or another sync."
        )
    if name not in PREDICTED:
        raise unknown_name("sync", name, PREDICTED)


def sync_time(
    sync: str,
    on: Fabric,
    own: Passes,
    known: Calibration,
    library: Library,
    *,
    low_precision: bool = False,
    bytes_per_s: float = float("inf"),
) -> SyncTime:
    """For a step whose passes are `own`, in 16 bits with `low_precision`, on devices that copy so
    many bytes a second; zero on one device."""
    if sync not in COSTS:
        raise unknown_name("sync", sync, COSTS)
    cost = COSTS[sync]
    if on.devices == 1:
        return SyncTime()
    if cost.pattern == "peer-copies" and (on.systems > 1 or on.through_host or library != "nccl"):
        raise UsageError(
            f"sync={sync} copies between GPUs of one system that reach one another's memory, which "
            f"these {on.devices} devices do not. Use sync=all-reduce."
        )
    return _time_of(cost, on, own, known, library, low_precision, bytes_per_s)


def _time_of(
    cost: SyncCost,
    on: Fabric,
    own: Passes,
    known: Calibration,
    library: Library,
    low_precision: bool,
    bytes_per_s: float,
) -> SyncTime:
    links = _Links(on, known, library)
    size = cost.bytes_factor * own.gradient_bytes * known["gradient_scale"]
    if cost.pattern == "host-server":
        return _host_server(links, known, size)
    if cost.pattern == "periodic":
        seconds, limit = links.transfer(cost.weights, size)
        every = known["average_every"]
        return SyncTime(
            exposed_s=seconds / every,
            busy_s=seconds / every,
            limit=limit,
            bytes=round(size / every),
            waiting=every**-0.5,  # the spread of a sum of steps grows with their root
        )
    if cost.pattern == "sharded":
        return _sharded(links, own, known, cost, 0.5 if low_precision else 1.0, bytes_per_s)
    if cost.pattern == "asynchronous":
        return _asynchronous(links, own, size)
    if cost.pattern == "host-copies" and on.systems == 1:
        return _host_copies(links, own, known, size, cost)
    return _overlapped(links, own, known, cost)


class _Links:
    """The time of a transfer over each kind of link."""

    def __init__(self, on: Fabric, known: Calibration, library: Library) -> None:
        self.on, self.known, self.library = on, known, library

    def transfer(self, kind: Operation | str, size: float) -> Timed:
        """A collective, or a transfer to the memory of the `host` or of all `servers`, or
        copies between `peers`."""
        if kind == "host":
            return self.to_host(size)
        if kind == "servers":
            return self.to_servers(size)
        if kind == "peers":
            return self.to_peers(size)
        found = collective(self.on, kind, size, self.known, self.library)  # type: ignore[arg-type]
        return found.seconds, found.limit

    def host_rate(self) -> float:
        """From each device to its processor's memory; processors, and devices whose link to it is
        unknown, send through TCP."""
        return self.on.host_bytes_per_s or self.known["gloo_local_bytes_per_s"]

    def to_host(self, size: float) -> Timed:
        """Every device to its processor's memory at once; those of other systems go on to the
        first."""
        on = self.on
        seconds, limit = size / self.host_rate(), "device-to-host link"
        if on.systems > 1 and on.network_bytes_per_s:
            crossing = size * (on.devices - on.devices_per_system) / self.wire()
            if crossing > seconds:
                return crossing, on.network_name
        return seconds, limit

    def to_peers(self, size: float) -> Timed:
        """Every GPU copies its part from all others, then theirs with the mean."""
        on = self.on
        rate = on.nvlink_bytes_per_s or on.pcie_bytes_per_s or float("inf")
        passed = 2 * (on.devices - 1) / on.devices * size
        return passed / (self.known["peer_copy_share"] * rate), on.local_name

    def to_servers(self, size: float) -> Timed:
        """The sum of each system to servers spread over all systems: the parts of other systems
        cross the network."""
        on = self.on
        inside = 0.0
        if on.devices_per_system > 1:
            inside = size / self.host_rate()
        crossing = size * (on.systems - 1) / on.systems / self.wire()
        return inside + crossing, on.network_name if crossing > inside else "device-to-host link"

    def style(self, style: GradientStyle, size: float, largest: float) -> Timed:
        """Of so many bytes, in a system and between systems; `largest` is the share of the largest
        array in all gradients."""
        on = self.on
        if style.one_ring and on.systems == 1:
            rate = min(self.known["one_ring_bytes_per_s"], on.local_bytes_per_s or float("inf"))
            return 2 * (on.devices - 1) / on.devices * size / rate, on.local_name
        if style.inside == style.between == "all-reduce":
            return self.transfer("all-reduce", size)
        inside = self._inside(style, replace(on, systems=1), size, largest)
        across: Timed = (0.0, "")
        if style.between == "servers" and (on.systems > 1 or style.inside == "none"):
            across = self._servers(style, size)
        elif on.systems > 1:
            leaders = replace(on, devices_per_system=1, local_bytes_per_s=None)
            across = _Links(leaders, self.known, self.library).transfer("all-reduce", size)
        return inside[0] + across[0], max(inside, across)[1]

    def _inside(self, style: GradientStyle, one: Fabric, size: float, largest: float) -> Timed:
        """There and back in one system."""
        if one.devices == 1 or style.inside == "none":
            return 0.0, ""
        if style.inside == "host":
            return 2 * size / self.host_rate(), "device-to-host link"
        if style.inside == "device":
            shared = one.devices if one.local_over == "pcie" else 1  # of the links of a tree
            rate = (one.local_bytes_per_s or self.host_rate()) / min(2, shared)
            busiest = max(1 / one.devices, largest)
            return 2 * (one.devices - 1) * busiest * size / rate, one.local_name
        local = _Links(one, self.known, self.library)
        (up_s, limit), (down_s, _) = (local.transfer(k, size) for k in ("reduce", "broadcast"))
        return up_s + down_s, limit

    def _servers(self, style: GradientStyle, size: float) -> Timed:
        """To the servers and back."""
        on = self.on
        senders = on.devices if style.inside == "none" else on.systems
        wire = self.wire() if on.systems > 1 else float("inf")
        rate, limit = min(
            (wire, on.network_name),
            (self.known["server_tcp_bytes_per_s"], "TCP of the parameter servers"),
            (self.known["server_sum_bytes_per_s"], "summing by the parameter servers"),
        )
        return 2 * senders * size / on.systems / rate, limit

    def wire(self) -> float:
        """All ports of a system, less the overhead of frames on Ethernet."""
        rate = self.on.network_bytes_per_s or float("inf")
        ethernet = self.library == "gloo" or "Ethernet" in self.on.network_name
        return rate * self.known["tcp_efficiency"] if ethernet else rate


def _host_copies(
    links: _Links, own: Passes, known: Calibration, size: float, cost: SyncCost
) -> SyncTime:
    """Gradients are copied during the backward pass, the new weights during the next forward."""
    devices = links.on.devices
    part = (devices - 1) / devices if cost.gradients == "servers" else 1.0
    seconds, limit = links.to_host(part * size)
    if cost.gradients == "host":
        memory = cpu_server.memory_rate(links.on, known)
        added_s = cpu_server.copied_server_bytes(devices, size) / memory
        if added_s > 2 * seconds:
            seconds, limit = added_s / 2, cpu_server.SUM
    hidden_s = min(seconds, own.backward_s) + min(seconds, own.forward_s)
    return SyncTime(
        slowdown_s=known["copy_slowdown"] * hidden_s,
        exposed_s=2 * seconds - hidden_s,
        busy_s=2 * seconds,
        limit=limit,
        bytes=round(part * size),
    )


def _host_server(links: _Links, known: Calibration, size: float) -> SyncTime:
    """Nothing overlaps with a pass, and the devices update nothing."""
    parts = cpu_server.server_parts(links.on, known, size, links.wire())
    seconds = sum(parts.values())
    return SyncTime(
        exposed_s=seconds,
        busy_s=seconds,
        limit=max(parts, key=lambda name: parts[name]),
        bytes=round(size),
        update_share=0.0,
    )


def _asynchronous(links: _Links, own: Passes, size: float) -> SyncTime:
    """A device waits only for its own bytes, unless the server's links are saturated."""
    crowded, limit = links.to_host(size)
    own_s = size / min(links.host_rate(), links.wire())
    full = crowded - own.step_s  # each direction of a link carries S of every device in a step
    return SyncTime(
        exposed_s=max(2 * own_s, full),
        busy_s=max(2 * own_s, crowded),
        limit=limit,
        bytes=round(size),
        waiting=0.0,
    )


def style_time(
    style: GradientStyle,
    on: Fabric,
    own: Passes,
    known: Calibration,
    library: Library,
    *,
    low_precision: bool,
) -> SyncTime:
    """For a step whose passes are `own`, in 16 bits with `low_precision`; zero on one device."""
    if on.devices == 1:
        return SyncTime()
    if style.sync:
        cost = (COSTS | STYLE_COSTS)[style.sync]
        return _time_of(cost, on, own, known, library, False, float("inf"))
    links = _Links(on, known, library)
    largest = max(g.gradient_bytes for g in own.backward) / own.gradient_bytes
    factor = 0.5 if style.as_computed and low_precision else 1.0
    room = float("inf") if style.bucket_bytes is None else style.bucket_bytes
    first = min(room, known["first_bucket_bytes"])
    end_s, ended_s, busy_s, hidden_s, limit = own.backward_s, 0.0, 0.0, 0.0, ""
    total = 0.0
    for ready_s, size in _buckets(own, factor * known["gradient_scale"], first, room):
        seconds, limit = links.style(style, size, largest)
        seconds += style.cycle_s
        started_s = max(ready_s if style.hidden else end_s, ended_s)
        ended_s = started_s + seconds
        hidden_s += max(0.0, min(ended_s, end_s) - started_s)
        busy_s += seconds
        total += size
    copied = style.inside in ("host", "none")
    return SyncTime(
        slowdown_s=known["copy_slowdown" if copied else "overlap_slowdown"] * hidden_s,
        exposed_s=max(0.0, ended_s - end_s),
        busy_s=busy_s,
        limit=limit,
        bytes=round(total),
    )


def _sharded(
    links: _Links,
    own: Passes,
    known: Calibration,
    cost: SyncCost,
    gathered: float,
    bytes_per_s: float,
) -> SyncTime:
    """Units as large as buckets; `gathered` is the bytes of a gathered weight over those of its
    gradient."""
    weights = own.gradient_bytes * known["gradient_scale"]
    copied_s = sharded.exposed_copies(weights, cost.gathers, gathered) / bytes_per_s
    rooms = known["first_bucket_bytes"], known["bucket_bytes"]
    units = list(_buckets(own, known["gradient_scale"], *rooms))
    gathers_s = [links.transfer(cost.weights, gathered * size)[0] for _, size in units]
    # The first unit is gathered before anything computes, the others while others do.
    first_s, rest_s = gathers_s[-1], sum(gathers_s[:-1])
    exposed_s = first_s + max(0.0, rest_s - own.forward_s)
    hidden_s, busy_s, limit = min(rest_s, own.forward_s), sum(gathers_s), ""
    ended_s, total = 0.0, 0.0
    for (ready_s, size), gather_s in zip(units, gathers_s, strict=True):
        reduce_s, limit = links.transfer(cost.gradients, size)
        seconds = reduce_s + (gather_s if cost.gathers > 1 else 0.0)
        started_s = max(ready_s - gather_s if cost.gathers > 1 else ready_s, ended_s)
        ended_s = started_s + seconds
        hidden_s += max(0.0, min(ended_s, own.backward_s) - started_s)
        busy_s += seconds
        total += size * (1 + gathered * cost.gathers)
    return SyncTime(
        slowdown_s=known["overlap_slowdown"] * hidden_s,
        exposed_s=exposed_s + max(0.0, ended_s - own.backward_s) + copied_s,
        busy_s=busy_s,
        limit=sharded.COPIES if copied_s > busy_s else limit,
        bytes=round(total),
        update_share=1 / links.on.devices,
    )


def _overlapped(links: _Links, own: Passes, known: Calibration, cost: SyncCost) -> SyncTime:
    end_s, ended_s, busy_s, hidden_s, limit = own.backward_s, 0.0, 0.0, 0.0, ""
    total = 0.0
    scale = cost.bytes_factor * known["gradient_scale"]
    rooms = known["first_bucket_bytes"], known["bucket_bytes"]
    for ready_s, size in _buckets(own, scale, *rooms):
        seconds, limit = links.transfer(cost.gradients, size)
        started_s = max(ready_s, ended_s)
        ended_s = started_s + seconds
        hidden_s += max(0.0, min(ended_s, end_s) - started_s)
        busy_s += seconds
        total += size
    back_s = 0.0
    slowed = "copy_slowdown" if cost.pattern == "peer-copies" else "overlap_slowdown"
    if cost.weights:
        back_s, back_limit = links.transfer(cost.weights, total)
        if back_s:
            busy_s, limit = busy_s + back_s, back_limit
    return SyncTime(
        slowdown_s=known[slowed] * hidden_s,
        exposed_s=max(0.0, ended_s - end_s) + back_s,
        busy_s=busy_s,
        limit=limit,
        bytes=round(total),
        update_share=1 / links.on.devices if cost.divides_update else 1.0,
    )


def _buckets(
    own: Passes, scale: float, first_bytes: float, bucket_bytes: float
) -> Iterator[tuple[float, float]]:
    """(when it is ready after backward began, bytes) of each bucket; `scale` is bytes sent for
    each byte of gradients."""
    ready_s, waiting, room = 0.0, 0, first_bytes
    for i, layer in enumerate(own.backward):
        ready_s += layer.seconds
        waiting += layer.gradient_bytes
        if waiting and (waiting >= room or i == len(own.backward) - 1):
            yield ready_s, waiting * scale
            waiting, room = 0, bucket_bytes
