"""CPU probe: processors, cores, caches, NUMA nodes, and the cores this process may use.

The usable cores are the physical cores that the affinity mask reaches (two hardware threads of one
core share its arithmetic units, so they count once), limited by the whole cores of CPU time that
the control groups grant. 1.5 granted cores count as one: a second thread would be throttled in
every scheduling period, and delay the steps.

Sources: /proc/cpuinfo, /sys/devices/system/cpu (Documentation/admin-guide/cputopology.rst and
ABI/testing/sysfs-devices-system-cpu of the Linux kernel), /sys/devices/system/node, cgroups.py.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Collection

from cubemesh.cgroups import cgroup_cores
from cubemesh.machines.cpuinfo import Cpuinfo
from cubemesh.machines.files import Tree, cpu_list, meminfo_bytes, size_bytes, whole_number
from cubemesh.schema import Cache, Cpu, NumaNode
from cubemesh.units import format_bytes

CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"


def read_cpu(tree: Tree, info: Cpuinfo) -> Cpu:
    """The CPU as this process may use it; unknown properties are noted in `tree`."""
    online = _online(tree, info)
    cores = _cores(tree, info, online)
    affinity = _affinity(tree, online)
    granted = cgroup_cores(tree.root)
    _note_unnamed(tree, info)
    return Cpu(
        model=info.model,
        vendor=info.vendor,
        architecture=_architecture(tree),
        sockets=_sockets(tree, info, online),
        physical_cores=len(set(cores.values())) if cores else None,
        logical_cores=len(online) or None,
        affinity_cores=None if affinity is None else len(affinity),
        cgroup_cores=granted,
        usable_cores=usable_cores(online, cores, affinity, granted),
        max_mhz=_max_mhz(tree, online),
        instruction_sets=info.instruction_sets,
        caches=read_caches(tree, online),
        numa_nodes=read_numa_nodes(tree),
    )


def usable_cores(
    online: Collection[int],
    cores: dict[int, str],
    affinity: Collection[int] | None,
    granted: float | None,
) -> int:
    """Physical cores that the process may be scheduled on, at most those it is granted.

    `online` are the logical processors, `cores` has the core of each (empty if unknown: every
    logical processor counts as a core), `affinity` those the process may be scheduled on (None:
    all), `granted` the limit of the control groups in cores (None: no limit).
    At least 1.
    """
    reachable = online if affinity is None else affinity
    count = len({cores.get(cpu, f"processor {cpu}") for cpu in reachable})
    if granted is not None:
        count = min(count, int(granted))
    return max(count, 1)


def read_caches(tree: Tree, online: Collection[int]) -> tuple[Cache, ...]:
    """The caches of all online processors, each physical one counted once."""
    found: Counter[tuple[int, str, int]] = Counter()
    seen: set[tuple[int, int]] = set()  # (cache's index, processor) already counted
    for cpu in online:
        for index in tree.numbered(f"{CPUS}/cpu{cpu}/cache", "index"):
            if (index, cpu) in seen:
                continue
            folder = f"{CPUS}/cpu{cpu}/cache/index{index}"
            shared = cpu_list(tree.text(f"{folder}/shared_cpu_list")) or (cpu,)
            seen.update((index, other) for other in shared)
            level, size = tree.number(f"{folder}/level"), size_bytes(tree.text(f"{folder}/size"))
            kind = (tree.text(f"{folder}/type") or "").lower()
            if level is not None and size is not None and kind:
                found[level, kind, size] += 1
            else:
                tree.missing(f"cache {index} of processor {cpu}", f"{folder} does not describe it")
    if not found:
        tree.missing("processor caches", f"{CPUS}/cpu*/cache does not report their sizes")
    return tuple(
        Cache(level=level, kind=kind, size_bytes=size, instances=count)
        for (level, kind, size), count in sorted(found.items())
    )


def read_numa_nodes(tree: Tree) -> tuple[NumaNode, ...]:
    """The NUMA nodes, with the processors and the memory of each.

    Some virtual machines add memory to a node only when it is used; the nodes' figures are left out
    where they add up to less than half of the machine's memory.
    """
    nodes = []
    for number in tree.numbered(NODES, "node"):
        cpus = cpu_list(tree.text(f"{NODES}/node{number}/cpulist"))
        memory = _node_memory(tree, number)
        nodes.append(NumaNode(node=number, cpus=cpus or (), memory_bytes=memory))
        if cpus is None:
            tree.missing(f"processors of NUMA node {number}", f"{NODES} does not list them")
    if not nodes:
        tree.missing("NUMA nodes", f"there is no {NODES}/node*")
    total = meminfo_bytes(tree, "MemTotal")
    in_nodes = sum(n.memory_bytes or 0 for n in nodes)
    if nodes and total and in_nodes < total / 2:
        shown = f"{format_bytes(in_nodes)} of the machine's {format_bytes(total)}"
        why = f"the nodes have only {shown}"
        tree.missing("memory of each NUMA node", why)
        return tuple(NumaNode(node=n.node, cpus=n.cpus) for n in nodes)
    return tuple(nodes)


def _node_memory(tree: Tree, node: int) -> int | None:
    for line in (tree.text(f"{NODES}/node{node}/meminfo") or "").splitlines():
        before, _, value = line.partition("MemTotal:")
        if value and before.split() == ["Node", str(node)]:
            return size_bytes(value.strip())
    return None


def _online(tree: Tree, info: Cpuinfo) -> tuple[int, ...]:
    online = cpu_list(tree.text(f"{CPUS}/online")) or info.numbers()
    if not online:
        tree.missing("logical processors", f"neither {CPUS}/online nor /proc/cpuinfo lists them")
    return online


def _cores(tree: Tree, info: Cpuinfo, online: tuple[int, ...]) -> dict[int, str]:
    """An id of the core of each logical processor; empty unless known for all."""
    cores: dict[int, str] = {}
    places = info.places()
    for cpu in online:
        topology = f"{CPUS}/cpu{cpu}/topology"
        # The second is the older kernels' name of the first.
        siblings = tree.text(f"{topology}/core_cpus_list") or tree.text(
            f"{topology}/thread_siblings_list"
        )
        if siblings and cpu_list(siblings):
            cores[cpu] = siblings
        elif cpu in places:
            cores[cpu] = "socket {} core {}".format(*places[cpu])
    if online and len(cores) == len(online):
        return cores
    tree.missing("physical cores", f"neither {CPUS}/cpu*/topology nor /proc/cpuinfo reports them")
    return {}


def _sockets(tree: Tree, info: Cpuinfo, online: tuple[int, ...]) -> int | None:
    places = info.places()
    sockets: set[str] = set()
    for cpu in online:
        package = tree.number(f"{CPUS}/cpu{cpu}/topology/physical_package_id")
        if package is not None and package >= 0:  # -1 is the kernel's "not known"
            sockets.add(str(package))
        elif cpu in places:
            sockets.add(places[cpu][0])
        else:
            tree.missing("processor sockets", f"processor {cpu} does not report its node")
            return None
    return len(sockets) or None


def _affinity(tree: Tree, online: tuple[int, ...]) -> tuple[int, ...] | None:
    allowed: Collection[int] | None = None
    if tree.live and hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
    else:
        for line in (tree.text("/proc/self/status") or "").splitlines():
            if line.startswith("Cpus_allowed_list:"):
                allowed = cpu_list(line.partition(":")[2])
    if allowed is None:
        tree.missing(
            "processor affinity", "the system does not report which processors are allowed"
        )
        return None
    # The mask may hold processors that are offline.
    return tuple(sorted(set(allowed) & set(online) if online else set(allowed)))


def _architecture(tree: Tree) -> str:
    # The file exists from Linux 6.1 on.
    named = None if tree.live else tree.text("/proc/sys/kernel/arch")
    return named or platform.machine()


def _max_mhz(tree: Tree, online: tuple[int, ...]) -> float | None:
    read = (tree.text(f"{CPUS}/cpu{cpu}/cpufreq/cpuinfo_max_freq") for cpu in online)
    in_khz = [khz for text in read if (khz := whole_number(text)) is not None and khz > 0]
    if not in_khz:
        why = f"there is no {CPUS}/cpu*/cpufreq, as in most virtual machines"
        tree.missing("processor's highest clock", why)
    return max(in_khz) / 1000 if in_khz else None


def _note_unnamed(tree: Tree, info: Cpuinfo) -> None:
    if not info.processors:
        tree.missing("processor model and instruction sets", "/proc/cpuinfo cannot be read")
        return
    if info.model is None:
        first = info.processors[0]
        numbers = (first.get("CPU implementer", "none"), first.get("CPU part", "none"))
        why = "/proc/cpuinfo names no model; implementer {}, part {}".format(*numbers)
        tree.missing("processor model", why)
    if info.vendor is None:
        tree.missing("processor vendor", "/proc/cpuinfo does not name it")
    if not info.flags:
        tree.missing("instruction sets", "/proc/cpuinfo lists neither flags nor features")
