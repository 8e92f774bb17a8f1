"""CPU pinning: the processors on which the threads of a run may be scheduled.

    none      all that the process may use: the kernel decides, and may move threads
    compact   as many processors as threads, as close as possible: the hardware threads of one core
              first, then the next core of the same NUMA node
    spread    as many, as far apart as possible: one core at a time, from node to node, and second
              hardware threads last
    cores     as many, as close as whole cores allow: one hardware thread of each core, node by
              node, and second hardware threads last

Without `pinning`, ranks of several GPUs are bound too (`near_gpu`): each to its share of the
cores of its GPU's NUMA node, so that batches do not cross the link between nodes.

Threads are bound to the set, not each to one processor, before the framework starts any: all that
it starts then inherits the set. With `numa_node` the set is chosen from that node only, and memory
comes from it too: Linux allocates a page on the node of the thread that touches it first.

Sources: /sys/devices/system/cpu/cpu*/topology, /sys/devices/system/node, sched_setaffinity(2);
/sys/bus/pci/devices/*/local_cpulist (ABI/testing/sysfs-bus-pci of the Linux kernel).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.schema.spec import Placement

SYS = Path("/sys/devices/system")
PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, kw_only=True)
class Processor:
    """A logical processor and its location."""

    number: int
    node: int
    core: int
    """The lowest processor of the same core, which identifies the core."""


def pin(placement: Placement, threads: int, sys: Path = SYS) -> tuple[int, ...]:
    """Bind this process as `placement` requires; its processors, empty without pinning.
    `Unsupported` where the NUMA node does not exist or has no processor for this process."""
    if placement.pinning == "none" and placement.numa_node is None:
        return ()
    processors = read_processors(os.sched_getaffinity(0), sys)
    node = placement.numa_node
    if node is not None:
        nodes = sorted({p.node for p in processors})
        processors = [p for p in processors if p.node == node]
        if not processors:
            raise Unsupported(
                f"numa_node={node}: this process may use no processor of that node, only of node "
                f"{', '.join(map(str, nodes))}. Set one of these, or leave numa_node out."
            )
    chosen = choose(processors, placement.pinning, threads)
    os.sched_setaffinity(0, chosen)
    return chosen


def near_gpu(
    addresses: Sequence[str],
    local_rank: int,
    allowed: Collection[int],
    sys: Path = SYS,
    pci: Path = PCI,
) -> tuple[int, ...]:
    """Processors for a rank of this host, each of which has the GPU at one of the PCI `addresses`:
    an even share of the cores of its GPU's NUMA node, with all their hardware threads.

    Empty where that is unknown for a GPU or gives a rank no core, and where the `allowed`
    processors of the process are not all of them: then somebody has bound it already.
    """
    if not addresses or set(allowed) != set(numbers_of(sys / "cpu/online")):
        return ()
    near = [_local(pci / address) for address in addresses]
    cores: dict[int, list[int]] = {}
    for p in read_processors(set(near[local_rank]) & set(allowed), sys):
        cores.setdefault(p.core, []).append(p.number)
    ranks = near.count(near[local_rank])
    each, first = len(cores) // ranks, near[:local_rank].count(near[local_rank])
    if not all(near) or not each:
        return ()
    own = sorted(cores)[first * each : (first + 1) * each]
    return tuple(sorted(number for core in own for number in cores[core]))


def _local(device: Path) -> list[int]:
    """Processors of the NUMA node of a PCI device; empty where the firmware names no node."""
    try:
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return []
    return numbers_of(device / "local_cpulist") if node >= 0 else []


def choose(processors: Sequence[Processor], pinning: str, threads: int) -> tuple[int, ...]:
    """Processors for `threads` threads, in rising order; all with `pinning` none or where there are
    no more."""
    if pinning == "none":
        ordered = list(processors)
        threads = len(ordered)
    elif pinning == "compact":
        ordered = sorted(processors, key=lambda p: (p.node, p.core, p.number))
    elif pinning == "cores":
        ordered = [p for layer in _layers(processors) for p in layer]
    else:
        ordered = _spread(processors)
    return tuple(sorted(p.number for p in ordered[:threads]))


def read_processors(allowed: Iterable[int], sys: Path = SYS) -> list[Processor]:
    """Location of each of the `allowed` processors; without the kernel's information each is a core
    on node 0."""
    nodes = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in sys.glob("node/node[0-9]*")
        for cpu in numbers_of(folder / "cpulist")
    }
    found = []
    for number in sorted(allowed):
        topology = sys / f"cpu/cpu{number}/topology"
        # The second is the older kernels' name of the first.
        siblings = numbers_of(topology / "core_cpus_list") or numbers_of(
            topology / "thread_siblings_list"
        )
        core = min(siblings, default=number)
        found.append(Processor(number=number, node=nodes.get(number, 0), core=core))
    return found


def whole_cores(allowed: Iterable[int], sys: Path = SYS) -> tuple[int, ...]:
    """First hardware thread of each core of the `allowed` processors, node by node."""
    layers = _layers(read_processors(allowed, sys))
    return tuple(p.number for p in layers[0]) if layers else ()


def _layers(processors: Sequence[Processor]) -> list[list[Processor]]:
    """First hardware threads of the cores, then second ones, …; each node by node."""
    cores: dict[int, list[Processor]] = {}
    for p in sorted(processors, key=lambda p: p.number):
        cores.setdefault(p.core, []).append(p)
    return [
        sorted(filter(None, layer), key=lambda p: (p.node, p.number))
        for layer in zip_longest(*cores.values())
    ]


def _spread(processors: Sequence[Processor]) -> list[Processor]:
    """First hardware threads before second ones; each round-robin over the nodes."""
    ordered: list[Processor] = []
    for layer in _layers(processors):
        by_node: dict[int, list[Processor]] = {}
        for p in layer:
            by_node.setdefault(p.node, []).append(p)
        turns = zip_longest(*(by_node[node] for node in sorted(by_node)))
        ordered += [p for turn in turns for p in turn if p is not None]
    return ordered


def numbers_of(path: Path) -> list[int]:
    """Numbers of a kernel list such as "0-3,8"; empty without the file."""
    try:
        return parse_numbers(path.read_text(encoding="ascii").strip())
    except OSError:
        return []


def parse_numbers(text: str) -> list[int]:
    """The numbers of "0-3,8"."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
