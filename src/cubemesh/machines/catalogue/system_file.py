"""System files: TOML to a `System`; docs/topology.md describes the format.

    name = "my-server"
    title = "Four H100 over PCIe"
    sources = ["the maker's manual, page 12"]

    [gpus]
    device = "h100-pcie-80gb"        # an id of the catalogue of devices
    count = 4
    [cpus]
    count = 2
    link = "upi-16"                  # between them: an id of speeds.SMP
    links = 3
    [pcie]
    generation = 5
    gpu_to_switch = [0, 0, 1, 1]     # or gpu_to_cpu
    switch_to_cpu = [0, 1]
    [nvlink]
    generation = 4
    pairs = [[0, 1, 6], [2, 3, 6]]   # or switches = 4 and links_per_gpu = 18
    [network]
    technology = "ndr"
    ports = 2
    port_to_switch = [0, 1]

Memory, drives, power and price follow in tables of their own (equipment.py). A cluster names its
system: `system = "dgx1-v100"` and a table [cluster]. Every error names the line and the field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

from cubemesh.errors import DataError, UsageError
from cubemesh.machines.catalogue.equipment import TABLES, read_equipment
from cubemesh.machines.catalogue.fields import Fields, read_toml
from cubemesh.machines.catalogue.load import datasheets
from cubemesh.machines.catalogue.system import Cluster, System
from cubemesh.machines.topology import speeds
from cubemesh.machines.topology.graph import Link, Node, Topology
from cubemesh.machines.topology.interconnects import NETWORKS
from cubemesh.machines.topology.speeds import nvlink, pcie, smp
from cubemesh.untrusted import quoted

MOST_GPUS = 64

_WORDS = ("name", "title", "sources", "facts")
_PARTS = ("gpus", "cpus", "pcie", "nvlink", "network", *TABLES)
_RATES = ("gb_per_s", "latency_us")
"""Own figures of a table of links, instead of those of its kind: of one link, one way."""


def read_system(text: str, file: str, known: Callable[[str], System]) -> System:
    """The system that a TOML text describes; `known` finds the one a cluster names.

    DataError for what does not fit, with file, line and field.
    """
    top = read_toml(text, file)
    if "system" in top or "cluster" in top:
        return _read_cluster(top, known)
    top.only((*_WORDS, *_PARTS))
    name = top.text("name")
    gpus, cpus, network = top.table("gpus"), top.table("cpus"), top.table("network")
    if gpus is None and cpus is None:
        top.wrong("gpus", "is missing, and so is [cpus]: a system needs at least one device.")
    try:
        parts = _Parts(top, gpus, cpus, network)
        topology = Topology(name=name, nodes=tuple(parts.nodes), links=tuple(parts.links))
    except DataError as error:
        message = str(error)
        raise DataError(message if message.startswith(file) else f"{file}: {message}") from None
    device, host_device = _device(gpus, "gpu"), _device(cpus, "cpu")
    return System(
        name=name,
        title=top.text("title"),
        sources=top.texts("sources"),
        topology=topology,
        device=device if gpus is not None else host_device,
        host_device=host_device,
        network="" if network is None else network.one_of("technology", NETWORKS),
        ports=parts.ports,
        equipment=read_equipment(top),
        facts=_facts(top),
    )


def _facts(top: Fields) -> dict[str, str]:
    facts = top.table("facts")
    return {} if facts is None else {key: facts.text(key) for key in facts.values}


def _device(part: Fields | None, kind: str) -> str:
    """The id of a device; empty where the part or the id is missing."""
    if part is None or "device" not in part:
        return ""
    known = [sheet.id for sheet in datasheets().values() if sheet.kind == kind]
    found: str = part.one_of("device", known)
    return found


def _rated(table: Fields, link: Link) -> Link:
    """A link with the table's own bandwidth and latency, where it has them."""
    rate, latency = (table.above_zero(name) for name in _RATES)
    if rate is not None:
        bandwidth = rate * 1e9 * link.count
        link = replace(link, bandwidth_bytes_per_s=bandwidth, sustained_bytes_per_s=None)
    return link if latency is None else replace(link, latency_s=latency * 1e-6)


def _read_cluster(top: Fields, known: Callable[[str], System]) -> System:
    top.only((*_WORDS, "system", "cluster"))
    try:
        system = known(top.text("system"))
    except UsageError as error:
        top.wrong("system", str(error))
    if system.cluster is not None:
        top.wrong("system", f"{system.name} is a cluster itself; name a single system.")
    table = top.table("cluster")
    if table is None:
        top.wrong("cluster", "is missing: the number of systems, and their network.")
    table.only(
        (
            *("systems", "technology", "ports", "switch_ports", "ports_used", "systems_per_leaf"),
            *("oversubscription", "links_between_groups", "gbit_per_s", "latency_us"),
        )
    )
    network = NETWORKS[table.one_of("technology", NETWORKS)]
    rate, latency = table.above_zero("gbit_per_s"), table.above_zero("latency_us")
    if rate is not None:
        network = replace(network, gbit_per_s=rate)
    if latency is not None:
        network = replace(network, latency_s=latency * 1e-6)
    try:
        cluster = Cluster(
            systems=table.whole("systems", least=1),
            network=network,
            ports_per_system=table.whole("ports", least=1, most=64),
            switch_ports=table.whole("switch_ports", 2, 10_000, default=network.switch_ports),
            ports_used=table.maybe_whole("ports_used", 2, 10_000),
            systems_per_leaf=table.maybe_whole("systems_per_leaf", 1, 10_000),
            oversubscription=table.above_zero("oversubscription") or 1.0,
            links_between_groups=table.maybe_whole("links_between_groups", 1, 100_000),
        )
    except UsageError as error:
        table.wrong("ports", str(error))
    return System(
        name=top.text("name"),
        title=top.text("title"),
        sources=(*top.texts("sources"), *system.sources),
        topology=system.topology,
        device=system.device,
        host_device=system.host_device,
        network=network.id,
        ports=cluster.ports_per_system,
        cluster=cluster,
        equipment=system.equipment,
        facts=dict(system.facts) | _facts(top),
    )


class _Parts:
    """The nodes and links of one system, part by part."""

    def __init__(
        self, top: Fields, gpus: Fields | None, cpus: Fields | None, network: Fields | None
    ) -> None:
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.gpus = self._devices(gpus, "gpu")
        self.cpus = self._devices(cpus, "cpu")
        self.switches = 0
        self.ports = 0
        self._sockets(cpus)
        table = top.table("pcie")
        if table is not None:
            self._pcie(table)
        elif self.gpus and self.cpus:
            top.wrong("pcie", "is missing: how the GPUs are connected to the processors.")
        mesh = top.table("nvlink")
        if mesh is not None:
            self._nvlink(mesh)
        if network is not None:
            self._network(network, table)

    def _devices(self, part: Fields | None, kind: Any) -> int:
        if part is None:
            return 0
        fields = ("device", "count")
        part.only(fields if kind == "gpu" else (*fields, "link", "links", *_RATES))
        count = part.whole("count", least=1, most=MOST_GPUS)
        device = _device(part, kind)
        self.nodes += [
            Node(name=f"{kind}{i}", kind=kind, index=i, device=device) for i in range(count)
        ]
        return count

    def _sockets(self, cpus: Fields | None) -> None:
        if cpus is None:
            return
        if self.cpus == 1:
            for key in ("link", "links", *_RATES):
                if key in cpus:
                    cpus.wrong(key, "there is one processor; a link joins two or more.")
            return
        kind = cpus.one_of("link", speeds.SMP)
        count = cpus.whole("links", 1, 16, default=1)
        self.links += [
            _rated(cpus, smp(f"cpu{a}", f"cpu{b}", kind, count))
            for a, b in combinations(range(self.cpus), 2)
        ]

    def _pcie(self, table: Fields) -> None:
        table.only(("generation", "width", "gpu_to_switch", "switch_to_cpu", "gpu_to_cpu", *_RATES))
        generation, width = self._lanes(table)
        if not self.cpus:
            table.wrong("switch_to_cpu", "there are no processors: add [cpus].")
        if "gpu_to_cpu" in table:
            for key in ("gpu_to_switch", "switch_to_cpu"):
                if key in table:
                    table.wrong(key, "conflicts with gpu_to_cpu; give one of them.")
            for gpu, cpu in enumerate(
                table.places("gpu_to_cpu", self.gpus, self.cpus, "processors")
            ):
                self.links.append(_rated(table, pcie(f"gpu{gpu}", f"cpu{cpu}", generation, width)))
            return
        above = table.values.get("switch_to_cpu")
        self.switches = len(above) if isinstance(above, list) else 0
        if not self.switches:
            table.wrong("switch_to_cpu", "must list the processor of each switch, at least one.")
        over = table.places("switch_to_cpu", self.switches, self.cpus, "processors")
        under = table.places("gpu_to_switch", self.gpus, self.switches, "switches")
        for switch, cpu in enumerate(over):
            name = f"switch{switch}"
            self.nodes.append(Node(name=name, kind="pcie-switch", index=switch))
            self.links.append(_rated(table, pcie(name, f"cpu{cpu}", generation, width)))
        for gpu, switch in enumerate(under):
            self.links.append(
                _rated(table, pcie(f"gpu{gpu}", f"switch{switch}", generation, width))
            )

    @staticmethod
    def _lanes(table: Fields) -> tuple[int, int]:
        generation = table.one_of("generation", tuple(speeds.PCIE_TRANSFERS_PER_S))
        return generation, table.one_of("width", speeds.PCIE_WIDTHS, default=16)

    def _nvlink(self, table: Fields) -> None:
        table.only(("generation", "pairs", "switches", "links_per_gpu", *_RATES))
        generation = table.one_of("generation", tuple(speeds.NVLINK_BYTES_PER_S))
        if not self.gpus:
            table.wrong("generation", "there are no GPUs: add [gpus].")
        if "pairs" in table:
            for key in ("switches", "links_per_gpu"):
                if key in table:
                    table.wrong(key, "conflicts with pairs; give one of them.")
            self._pairs(table, generation)
            return
        switches = table.whole("switches", 1, 64)
        per_gpu = table.whole("links_per_gpu", 1, 64)
        self.nodes.append(Node(name="nvswitch", kind="nvswitch", count=switches))
        self.links += [
            _rated(table, nvlink(f"gpu{gpu}", "nvswitch", per_gpu, generation, switched=True))
            for gpu in range(self.gpus)
        ]

    def _pairs(self, table: Fields, generation: int) -> None:
        pairs = table.values["pairs"]
        if not isinstance(pairs, list) or not pairs:
            table.wrong("pairs", f"is {quoted(pairs)} and must list [GPU, GPU, number of links].")
        seen = set()
        for position, pair in enumerate(pairs):
            key = f"pairs[{position}]"
            whole = isinstance(pair, list) and all(
                isinstance(n, int) and not isinstance(n, bool) for n in pair
            )
            if not whole or len(pair) != 3:
                table.wrong(key, f"is {quoted(pair)} and must be [GPU, GPU, number of links].")
            first, second, count = pair
            for gpu in (first, second):
                if not 0 <= gpu < self.gpus:
                    table.wrong(
                        key, f"there is no GPU {gpu}; they are numbered 0 to {self.gpus - 1}."
                    )
            if first == second:
                table.wrong(key, f"is {quoted(pair)}: a link needs two GPUs.")
            if not 1 <= count <= 36:
                table.wrong(key, f"has {count} links and must have 1 to 36.")
            if frozenset((first, second)) in seen:
                table.wrong(key, f"GPUs {first} and {second} are given twice.")
            seen.add(frozenset((first, second)))
            link = nvlink(f"gpu{first}", f"gpu{second}", count, generation)
            self.links.append(_rated(table, link))

    def _network(self, table: Fields, lanes: Fields | None) -> None:
        table.only(("technology", "ports", "port_to_switch", "port_to_cpu", "generation", "width"))
        table.one_of("technology", NETWORKS)
        self.ports = table.whole("ports", 1, 64)
        own = table if "generation" in table else lanes
        if own is None:
            table.wrong("generation", "is missing, and so is [pcie]; one of them is needed.")
        generation, width = self._lanes(own)
        if "port_to_switch" in table:
            above, among, what = "switch", self.switches, "switches"
        else:
            above, among, what = "cpu", self.cpus, "processors"
        for port, place in enumerate(table.places(f"port_to_{above}", self.ports, among, what)):
            self.nodes.append(Node(name=f"nic{port}", kind="nic", index=port))
            self.links.append(pcie(f"nic{port}", f"{above}{place}", generation, width))
