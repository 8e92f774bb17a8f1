"""Time of a collective of one group of devices, while the other groups run theirs.

A group takes every `stride`-th device: neighbours first, then system after system. Groups side by
side in a system share its network ports evenly. The time is that of `forecast/communication.py` on
what joins the group.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cubemesh.errors import UsageError
from cubemesh.forecast.calibration import Calibration, Operation
from cubemesh.forecast.communication import collective
from cubemesh.forecast.fabric import Fabric, fabric
from cubemesh.machines.catalogue.system import System


@dataclass(frozen=True, eq=False)
class Groups:
    """The devices of a job, and the times of their groups' collectives."""

    system: System
    known: Calibration
    times: dict[tuple[object, ...], float] = field(default_factory=dict)
    fabrics: dict[tuple[int, int], Fabric] = field(default_factory=dict)

    def seconds(self, operation: Operation, size_bytes: float, devices: int, stride: int) -> float:
        """Of a collective of `devices` devices, `stride` apart; 0 for one device or no bytes."""
        if devices == 1 or size_bytes <= 0:
            return 0.0
        key = (operation, round(size_bytes), devices, stride)
        if key not in self.times:
            if (devices, stride) not in self.fabrics:
                self.fabrics[devices, stride] = group_fabric(self.system, devices, stride)
            on = self.fabrics[devices, stride]
            self.times[key] = collective(on, operation, size_bytes, self.known).seconds
        return self.times[key]

    def send_s(self, size_bytes: float, stride: int) -> float:
        """Of sending an array from a device to the one `stride` further."""
        return self.seconds("broadcast", size_bytes, 2, stride)


def group_fabric(system: System, devices: int, stride: int) -> Fabric:
    """What joins so many devices, `stride` apart; UsageError where the system is no cluster and has
    fewer."""
    each = system.devices
    inside = min(devices, max(1, each // stride))
    while devices % inside:
        inside -= 1
    systems = devices // inside
    if systems == 1:
        return fabric(system, inside)
    if system.cluster is None:
        raise UsageError(
            f"{system.name} has {each} devices; for more, name a cluster (docs/topology.md)."
        )
    whole = fabric(system, 2 * each)
    network = (whole.network_bytes_per_s or 0.0) * inside / each
    local = fabric(system, inside)
    return replace(
        local,
        systems=systems,
        network_bytes_per_s=network,
        network_latency_s=whole.network_latency_s,
        network_name=whole.network_name,
    )
