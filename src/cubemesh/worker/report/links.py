"""Network link of a rank's gradient synchronization, and whether a faster one was unused.

In the Dell EMC paper "Deep learning performance with P100 GPUs" (doc-003), MXNet used Ethernet next
to an idle InfiniBand, at half the speed, without a hint. Each rank logs its interface and transport
as its process group reports them. Where ranks are on several hosts, the interface is compared with
the others that are up: network interfaces by the kernel's speed, and active ports of
/sys/class/infiniband. (On one host messages stay in its memory; runs/enrich.py checks which links
its GPUs could have used.)
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

from cubemesh.frameworks.contract.group import Group, Link, ReportsLink
from cubemesh.schema.warning import Warning, warn
from cubemesh.worker.report.events import EventLog

INFINIBAND = Path("/sys/class/infiniband")
FASTER = 1.5
"""Speed ratio above which another interface is reported."""


def log_link(group: Group, log: EventLog) -> None:
    """Log the link of this rank; nothing on a single device, or where the group does not report
    it."""
    if group.size == 1 or not isinstance(group, ReportsLink):
        return
    link = group.link()  # first: once all have gathered, another rank may close its connections
    hosts = set(group.all_gather_object(socket.gethostname()))
    if link is None:
        return
    log.link(interface=link.interface, transport=link.transport)
    if len(hosts) > 1 and (warning := idle_interface(link, speeds(), infiniband())) is not None:
        log.warning(warning)


def idle_interface(
    link: Link, speeds_bits_per_s: Mapping[str, float], ports: Mapping[str, float]
) -> Warning | None:
    """The warning `faster-link-unused` if a faster interface, or an InfiniBand port, was up and not
    used; None if there was none, or if no speed is known to compare."""
    used = [speeds_bits_per_s[i] for i in link.interface.split(", ") if i in speeds_bits_per_s]
    others = {n: s for n, s in speeds_bits_per_s.items() if n not in link.interface.split(", ")}
    if "NET/IB" not in link.transport:
        others |= ports
    if not others:
        return None
    best = max(others, key=lambda name: others[name])
    if used and others[best] < FASTER * max(used):
        return None
    if not used and best not in ports:
        return None
    own = f"{link.interface} ({max(used) / 1e9:g} Gb/s)" if used else link.interface or "another"
    remedy = (
        "Use NCCL with its InfiniBand plug-in (unset NCCL_IB_DISABLE), or IP over that port."
        if best in ports
        else f"Set GLOO_SOCKET_IFNAME={best} (NCCL_SOCKET_IFNAME={best} with GPUs) on every host."
    )
    return warn(
        "faster-link-unused",
        f"{link.transport} used {own}, while {best} ({others[best] / 1e9:g} Gb/s) was up.",
        remedy,
    )


def speeds() -> dict[str, float]:
    """Interfaces that are up, except the loopback → bits per second; without those whose driver
    reports no speed."""
    stats = psutil.net_if_stats()
    return {
        name: 1e6 * found.speed
        for name, found in stats.items()
        if found.isup and found.speed > 0 and name != "lo"
    }


def infiniband(sys: Path = INFINIBAND) -> dict[str, float]:
    """Active InfiniBand ports, such as `mlx5_0/1` → bits per second."""
    found = {}
    for port in sorted(sys.glob("*/ports/*")):
        try:
            state = (port / "state").read_text()
            rate = re.match(r"([\d.]+) Gb/sec", (port / "rate").read_text())
        except OSError:
            continue
        if "ACTIVE" in state and rate:
            found[f"{port.parent.parent.name}/{port.name}"] = 1e9 * float(rate[1])
    return found
