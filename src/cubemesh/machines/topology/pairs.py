"""Topology from pairs of devices, each with the nearest common component.

`nvidia-smi topo -m` and the probe report for every two GPUs (and network adapters) their nearest
common component: a PCIe switch, a host bridge, a NUMA node, or only the link between sockets.
Devices that share a switch are placed below one switch, then those that share a host bridge below
one bridge, and so on. For GPUs with NVLink the PCIe path is not reported; the processor that each
GPU is near decides. What is not reported at all (e.g. the PCIe generation) is assumed to be the
slowest common one, with a note in the topology.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from cubemesh.errors import DataError
from cubemesh.machines.topology import speeds
from cubemesh.machines.topology.graph import Link, Node, Topology
from cubemesh.machines.topology.routes import REACHES, Reach
from cubemesh.machines.topology.speeds import nvlink, pcie, smp

USUAL_LANES = (3, 16)
USUAL_NVLINK = 2
USUAL_SMP = "qpi-9.6"
MOST_NVLINKS = {1: 4, 2: 6, 3: 12, 4: 18, 5: 18}
"""Of one GPU, by generation."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """How two devices reach one another."""

    reach: Reach
    nvlinks: int = 0
    """Where `reach` is nvlink."""


@dataclass(frozen=True, kw_only=True)
class DevicePairs:
    """A system as reported in pairs. Devices are numbered, GPUs first, then adapters."""

    name: str
    gpus: int
    pairs: Mapping[tuple[int, int], Pair]
    """By (smaller, larger) number; a missing pair is unknown."""
    numbers: Sequence[int] = ()
    """The number of each GPU; 0, 1, 2… where empty."""
    devices: Sequence[str] = ()
    """Each GPU's id in the catalogue, where known."""
    nics: Sequence[str] = ()
    """Names of the adapters."""
    near: Sequence[str] = ()
    """A text for each GPU, the same for GPUs near the same processor; "" if unknown."""
    lanes: Sequence[tuple[int, int] | None] = ()
    """PCIe generation and width of each GPU."""
    nvlink_generation: int | None = None
    notes: tuple[str, ...] = ()


def from_pairs(seen: DevicePairs) -> Topology:
    """The graph; DataError where the pairs contradict one another."""
    return _Builder(seen).build()


class _Builder:
    def __init__(self, seen: DevicePairs) -> None:
        self.seen = seen
        self.size = seen.gpus + len(seen.nics)
        numbers = seen.numbers or range(seen.gpus)
        self.names = [f"gpu{i}" for i in numbers] + [f"nic{i}" for i in range(len(seen.nics))]
        self.numbers = list(numbers)
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.notes = list(seen.notes)
        self.sockets_given = True

    def build(self) -> Topology:
        seen = self.seen
        for i, number in enumerate(self.numbers):
            device = seen.devices[i] if seen.devices else ""
            self.nodes.append(Node(name=f"gpu{number}", kind="gpu", index=number, device=device))
        for i, name in enumerate(seen.nics):
            self.nodes.append(Node(name=f"nic{i}", kind="nic", index=i, label=name))
        self._tree()
        self._mesh()
        return Topology(
            name=seen.name,
            nodes=tuple(self.nodes),
            links=tuple(self.links),
            notes=tuple(self.notes),
        )

    def _tree(self) -> None:
        """Processors, bridges and switches above the devices."""
        if any(lanes is None for lanes in self.seen.lanes or [None]):
            self.notes.append("The PCIe generation is not given: PCIe 3 x16 is assumed.")
        switches = self._groups("pcie-switch", [[i] for i in range(self.size)])
        bridges = self._groups("host-bridge", switches)
        sockets = self._groups("numa-node", bridges, near=True)
        for number, socket in enumerate(sockets):
            cpu = f"cpu{number}"
            self.nodes.append(Node(name=cpu, kind="cpu", index=number))
            has_bridges = any(
                p.reach == "numa-node" and set(ends) <= set(socket)
                for ends, p in self.seen.pairs.items()
            )
            for bridge in (b for b in bridges if b[0] in socket):
                above = self._bridge(cpu, bridge) if has_bridges else cpu
                for switch in (s for s in switches if s[0] in bridge):
                    self._switch(above, switch)
        if not self.sockets_given:
            self.notes.append(
                "The processors of GPUs joined by NVLink are not given: as few processors as the "
                "other paths allow are assumed."
            )
        if len(sockets) > 1:
            self.notes.append("The link between processors is not given: one QPI is assumed.")
        self.links += [
            _assumed(smp(f"cpu{a}", f"cpu{b}", USUAL_SMP, 1))
            for a, b in combinations(range(len(sockets)), 2)
        ]

    def _groups(
        self, reach: Reach, groups: list[list[int]], *, near: bool = False
    ) -> list[list[int]]:
        """`groups` joined wherever two of their members are within `reach` of one another."""
        parent = {i: group[0] for group in groups for i in group}

        def root(i: int) -> int:
            while parent[i] != i:
                i = parent[i]
            return i

        farthest = REACHES.index(reach)
        joined = [
            ends
            for ends, pair in self.seen.pairs.items()
            if 0 < REACHES.index(pair.reach) <= farthest
        ]
        if near:
            first_near: dict[str, int] = {}
            for i, words in enumerate(self.seen.near):
                if words:
                    joined.append((first_near.setdefault(words, i), i))
        for a, b in joined:
            first, second = sorted((root(a), root(b)))
            parent[second] = first
        found: dict[int, list[int]] = {}
        for i in range(self.size):
            found.setdefault(root(i), []).append(i)
        groups = list(found.values())
        return self._fewest(groups) if near and not any(self.seen.near) else groups

    def _fewest(self, groups: list[list[int]]) -> list[list[int]]:
        """Groups joined unless two of their members are at different processors."""
        found: list[list[int]] = []
        for group in groups:
            for other in found:
                if not any(self._different_processors(a, b) for a in group for b in other):
                    other += group
                    self.sockets_given = False
                    break
            else:
                found.append(list(group))
        return [sorted(group) for group in found]

    def _different_processors(self, a: int, b: int) -> bool:
        pair = self.seen.pairs.get((min(a, b), max(a, b)))
        return pair is not None and pair.reach == "system"

    def _bridge(self, cpu: str, members: list[int]) -> str:
        number = sum(node.kind == "host-bridge" for node in self.nodes)
        name = f"bridge{number}"
        self.nodes.append(Node(name=name, kind="host-bridge", index=number))
        self.links.append(self._pcie(name, cpu, members))
        return name

    def _switch(self, above: str, members: list[int]) -> None:
        if len(members) > 1:
            number = sum(node.kind == "pcie-switch" for node in self.nodes)
            name = f"switch{number}"
            self.nodes.append(Node(name=name, kind="pcie-switch", index=number))
            self.links.append(self._pcie(name, above, members))
            above = name
        self.links += [self._pcie(self.names[i], above, [i]) for i in members]

    def _pcie(self, name: str, above: str, members: list[int]) -> Link:
        """A link with the lanes of the fastest of its members."""
        known = [
            lanes for i in members if i < len(self.seen.lanes) and (lanes := self.seen.lanes[i])
        ]
        return (
            pcie(name, above, *max(known)) if known else _assumed(pcie(name, above, *USUAL_LANES))
        )

    def _mesh(self) -> None:
        direct = {
            ends: pair.nvlinks for ends, pair in self.seen.pairs.items() if pair.reach == "nvlink"
        }
        if not direct:
            return
        generation = self.seen.nvlink_generation
        if generation is None:
            self.notes.append(
                "The generation of NVLink is not given: 25 GB/s a link one way is assumed."
            )
        of_one = [sum(n for ends, n in direct.items() if i in ends) for i in range(self.seen.gpus)]
        most = MOST_NVLINKS[generation] if generation else max(MOST_NVLINKS.values())
        if max(of_one) <= most:
            for (a, b), count in direct.items():
                self.links.append(self._nvlink(self.names[a], self.names[b], count))
            return
        # More links than a GPU has: each pair shows all of them, since they lead to switches.
        self.nodes.append(Node(name="nvswitch", kind="nvswitch"))
        for i in range(self.seen.gpus):
            counts = {n for ends, n in direct.items() if i in ends}
            if not counts:
                continue
            if max(counts) > most:
                raise DataError(
                    f"{self.seen.name}: {self.names[i]} has {max(counts)} NVLinks to one other; "
                    f"a GPU has {most} at most."
                )
            self.links.append(self._nvlink(self.names[i], "nvswitch", max(counts)))

    def _nvlink(self, first: str, second: str, count: int) -> Link:
        generation, switched = self.seen.nvlink_generation, second == "nvswitch"
        if generation is not None:
            return nvlink(first, second, count, generation, switched=switched)
        link = nvlink(first, second, count, USUAL_NVLINK, switched=switched)
        return _assumed(replace(link, name="NVLink"))


def _assumed(link: Link) -> Link:
    """A link of unknown kind; shown by its name."""
    return replace(link, name=f"{link.name} (assumed)")


def generation_of(compute_capability: str | None) -> int | None:
    """The NVLink generation of a GPU by its CUDA compute capability; None where not known."""
    return speeds.NVLINK_OF_CAPABILITY.get(compute_capability or "")
