"""Network adapters: driver, link rate, and the PCIe distance of each to each GPU.

From /sys/class/net (interfaces with a device below them; `speed` in Mb/s) and /sys/class/infiniband
(ports with `rate`, `state` and `link_layer`): Documentation/ABI/testing/sysfs-class-net and
sysfs-class-infiniband of the Linux kernel. An InfiniBand device and the interfaces of one PCI
function are one adapter. Distances are those of pci.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cubemesh.machines.files import Tree
from cubemesh.machines.hardware.pci import address_in, distance, numa_node
from cubemesh.schema import Gpu, NetworkAdapter, NicLink

INTERFACES = "/sys/class/net"
INFINIBAND = "/sys/class/infiniband"
MOST_ADAPTERS = 256

_KINDS = {1: "ethernet", 32: "infiniband"}
"""ARPHRD_ETHER and ARPHRD_INFINIBAND of the kernel's if_arp.h."""
_RATE = re.compile(r"\s*([\d.]{1,8})\s*Gb/sec")


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Network adapters and their distances to the GPUs."""

    adapters: tuple[NetworkAdapter, ...] = ()
    links: tuple[NicLink, ...] = ()


def read_adapters(tree: Tree, gpus: Sequence[Gpu] = ()) -> Adapters:
    """The adapters on a bus: not bridges, bonds, tunnels or the loopback interface."""
    found = _merged([*_infiniband(tree), *_interfaces(tree)])
    if len(found) > MOST_ADAPTERS:
        tree.missing("some network adapters", f"there are {len(found)}; {MOST_ADAPTERS} are shown")
    adapters = tuple(found[:MOST_ADAPTERS])
    return Adapters(adapters=adapters, links=tuple(_links(tree, adapters, gpus)))


def _merged(found: Iterable[NetworkAdapter]) -> list[NetworkAdapter]:
    """One for each PCI function: its InfiniBand device, which comes first, with its interfaces."""
    merged: dict[str, NetworkAdapter] = {}
    for one in found:
        key = one.pci_address or one.name
        first = merged.get(key)
        if first is None:
            merged[key] = one
            continue
        merged[key] = replace(
            first,
            interfaces=(*first.interfaces, *one.interfaces),
            rate_bits_per_s=first.rate_bits_per_s or one.rate_bits_per_s,
            up=first.up or one.up,
        )
    return sorted(
        merged.values(), key=lambda one: [_by_number(w) for w in _WORDS.findall(one.name)]
    )


_WORDS = re.compile(r"\d+|\D+")


def _by_number(word: str) -> tuple[int, str]:
    """Sorts mlx5_2 before mlx5_10."""
    return (int(word), "") if word.isdecimal() and len(word) < 20 else (-1, word)


def _interfaces(tree: Tree) -> Iterable[NetworkAdapter]:
    for name in tree.names(INTERFACES):
        folder = f"{INTERFACES}/{name}"
        if not tree.exists(f"{folder}/device"):
            continue
        speed = tree.number(f"{folder}/speed")
        state = tree.text(f"{folder}/operstate")
        yield _adapter(
            tree,
            f"{folder}/device",
            name=name,
            interfaces=(name,),
            kind=_KINDS.get(tree.number(f"{folder}/type") or 0),
            rate_bits_per_s=speed * 1e6 if speed and speed > 0 else None,
            up=None if state in (None, "", "unknown") else state == "up",
        )


def _infiniband(tree: Tree) -> Iterable[NetworkAdapter]:
    for name in tree.names(INFINIBAND):
        ports = f"{INFINIBAND}/{name}/ports"
        rates, up, kinds = 0.0, False, set()
        for port in tree.numbered(ports, ""):
            layer = (tree.text(f"{ports}/{port}/link_layer") or "").lower()
            kinds.add(layer if layer in _KINDS.values() else None)
            if "ACTIVE" not in (tree.text(f"{ports}/{port}/state") or ""):
                continue
            up = True
            rate = _RATE.match(tree.text(f"{ports}/{port}/rate") or "")
            rates += _gigabits(rate[1]) if rate else 0.0
        yield _adapter(
            tree,
            f"{INFINIBAND}/{name}/device",
            name=name,
            interfaces=(),
            kind=kinds.pop() if len(kinds) == 1 else None,
            rate_bits_per_s=rates or None,
            up=up,
        )


def _gigabits(text: str) -> float:
    try:
        return float(text) * 1e9
    except ValueError:
        return 0.0


def _adapter(
    tree: Tree,
    device: str,
    *,
    name: str,
    interfaces: tuple[str, ...],
    kind: str | None,
    rate_bits_per_s: float | None,
    up: bool | None,
) -> NetworkAdapter:
    address = address_in(tree.target(device))
    driver = tree.target(f"{device}/driver")
    return NetworkAdapter(
        name=name,
        interfaces=interfaces,
        kind=kind,
        driver=None if driver is None else driver.rpartition("/")[2],
        rate_bits_per_s=rate_bits_per_s,
        up=up,
        pci_address=address,
        numa_node=None if address is None else numa_node(tree, address),
    )


def _links(
    tree: Tree, adapters: Sequence[NetworkAdapter], gpus: Sequence[Gpu]
) -> Iterable[NicLink]:
    for adapter in adapters:
        if adapter.pci_address is None:
            continue
        for gpu in gpus:
            found = gpu.pci_address and distance(tree, adapter.pci_address, gpu.pci_address)
            if found:
                yield NicLink(nic=adapter.name, gpu=gpu.index, distance=found)
            else:
                tree.missing(
                    f"PCIe distance between {adapter.name} and GPU {gpu.index}",
                    "one of them is not in /sys/bus/pci/devices, or has no NUMA node there",
                )
