"""PCI devices: their place in the tree of bridges, and the distance between two of them.

/sys/bus/pci/devices has a link for each device to its place below /sys/devices, a folder for every
bridge on the way (Documentation/PCI/sysfs-pci.rst of the Linux kernel):

    pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/0000:3d:00.0
    root complex  root port  switch, up   switch, down  device

Distances have the words of `nvidia-smi topo -m`. In a virtual machine the tree is the hypervisor's.
"""

from __future__ import annotations

import re

from cubemesh.machines.files import Tree

DEVICES = "/sys/bus/pci/devices"
NODES = "/sys/devices/system/node"
DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""The nearest first."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def sysfs_address(bus_id: str) -> str | None:
    """`0000:3b:00.0`, as /sys has it, of NVML's `00000000:3B:00.0`; None for another text."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    address = f"{domain[-4:] if domain[:-4].strip('0') == '' else domain}:{rest}"
    hidden = set(domain) == {"f"}  # from a guest
    return address if _ADDRESS.fullmatch(address) and not hidden else None


def address_in(path: str | None) -> str | None:
    """The address of the last PCI device on a path below /sys/devices; None without one."""
    found = [part for part in (path or "").split("/") if _ADDRESS.fullmatch(part)]
    return found[-1] if found else None


def numa_node(tree: Tree, address: str) -> int | None:
    """The NUMA node of a device; None where the firmware names none."""
    node = tree.number(f"{DEVICES}/{address}/numa_node")
    return None if node is None or node < 0 else node


def distance(tree: Tree, first: str, second: str) -> str | None:
    """The distance between two devices, one of `DISTANCES`; None where it is not known."""
    one, other = _bridges(tree, first), _bridges(tree, second)
    if one is None or other is None:
        return None
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    if shared >= 2:  # the root complex and a bridge, at least
        # A switch is two bridges: its upstream port, which both share, and a downstream port each.
        return "PIX" if max(len(one), len(other)) - shared <= 2 else "PXB"
    if shared == 1:
        return "PHB"
    nodes = numa_node(tree, first), numa_node(tree, second)
    if None in nodes:
        return "NODE" if len(tree.numbered(NODES, "node")) <= 1 else None
    return "NODE" if nodes[0] == nodes[1] else "SYS"


def _bridges(tree: Tree, address: str) -> list[str] | None:
    """The root complex, the bridges and the device itself; None where it is not in the tree."""
    parts = (tree.target(f"{DEVICES}/{address}") or "").split("/")
    root = next((i for i, part in enumerate(parts) if _ROOT.fullmatch(part)), None)
    if root is None or parts[-1] != address:
        return None
    return parts[root:]
