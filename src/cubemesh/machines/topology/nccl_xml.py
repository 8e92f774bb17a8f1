"""Parser of NCCL's topology XML.

NCCL writes it where NCCL_TOPO_DUMP_FILE points (NVIDIA/nccl, src/graph/xml.cc): `system` holds
`cpu`s, these `pci` devices in one another, bridges (class 0x06) and what hangs below them, `gpu`s
with their `nvlink`s and `nic`s with their `net`s. An `nvlink` leads to the PCI address of another
GPU, or to an NVSwitch (class 0x0680). A bridge with a single child is not a node: its link has the
lower bandwidth of its two sides.

Such a file is not trusted: it is read by Python's expat with document types and entities refused,
and its size and depth are limited.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import NoReturn
from xml.parsers import expat

from cubemesh.errors import DataError
from cubemesh.machines.topology import speeds
from cubemesh.machines.topology.graph import Link, Node, Topology
from cubemesh.machines.topology.pairs import USUAL_SMP
from cubemesh.machines.topology.speeds import nvlink, pcie, smp

MOST_BYTES = 4 << 20
MOST_DEPTH = 32
MOST_ELEMENTS = 10_000
MOST_NODES = 256
"""Of each kind, as in NCCL."""

_NVLINK_BY_SM = {60: 1, 61: 1, 70: 2, 72: 2, 75: 2, 80: 3, 86: 3, 90: 4, 100: 5, 103: 5, 120: 5}
_SMP_BY_MODEL = {(6, 79): "qpi-9.6", (6, 63): "qpi-9.6", (6, 85): "upi-10.4", (6, 143): "upi-16"}
"""By (family, model) of Intel's processors: Broadwell, Haswell, Skylake, Sapphire Rapids."""


@dataclass
class XmlElement:
    """An element of NCCL's XML."""

    name: str
    line: int
    attributes: dict[str, str]
    children: list[XmlElement] = field(default_factory=list)

    def every(self, name: str) -> list[XmlElement]:
        """The children of this name."""
        return [child for child in self.children if child.name == name]


def read_nccl_xml(text: str, file: str = "NCCL's topology") -> Topology:
    """The graph in NCCL's XML; DataError, with line and field, for invalid content."""
    return _Builder(file, parse_xml(text, file, "system", "NCCL_TOPO_DUMP_FILE")).build()


def parse_xml(text: str, file: str, outermost: str, variable: str) -> XmlElement:
    """The `outermost` element of XML that NCCL writes where `variable` points; DataError for
    anything else, for document types and entities, and beyond the limits."""
    if len(text) > MOST_BYTES:
        raise DataError(f"{file}: {len(text):,} characters; {MOST_BYTES:,} are the most.")
    parser = expat.ParserCreate("utf-8")  # as decoded, whatever it declares
    top = XmlElement("", 0, {})
    stack, count = [top], 0

    def refuse(*_: object) -> NoReturn:
        raise DataError(
            f"{file}, line {parser.CurrentLineNumber}: it declares a document type or entities; "
            "they are not part of what NCCL writes and are not read."
        )

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        line = parser.CurrentLineNumber
        if len(stack) > MOST_DEPTH or count > MOST_ELEMENTS:
            raise DataError(f"{file}, line {line}: more elements, or deeper, than any system has.")
        element = XmlElement(name, line, attributes)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    try:
        parser.Parse(text.encode("utf-8", errors="surrogatepass"), True)
    except expat.ExpatError as error:
        words = expat.ErrorString(error.code)
        raise DataError(f"{file}, line {error.lineno}: not XML: {words}.") from None
    found = top.children[0]
    if found.name != outermost:
        raise DataError(
            f"{file}, line {found.line}: the outermost element is <{found.name}> and must be "
            f"<{outermost}>, as {variable} writes it."
        )
    return found


class _Builder:
    def __init__(self, file: str, system: XmlElement) -> None:
        self.file, self.system = file, system
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.notes: list[str] = []
        self.gpus: list[tuple[str, str, XmlElement]] = []
        """(name, PCI address, element)."""

    def build(self) -> Topology:
        cpus = self.system.every("cpu")
        if not cpus:
            self.wrong(self.system, "cpu", "there is none; a system needs at least one.")
        for number, cpu in enumerate(cpus):
            name = self.add(Node(name=f"cpu{number}", kind="cpu", index=number), cpu)
            for pci in cpu.every("pci"):
                self.pci(pci, name, None)
        self.sockets(cpus)
        if not self.gpus:
            self.wrong(self.system, "gpu", "there is none: 0 devices.")
        self.mesh()
        return Topology(
            name=self.file.rpartition("/")[2],
            nodes=tuple(self.nodes),
            links=tuple(self.links),
            notes=tuple(self.notes),
        )

    def wrong(self, element: XmlElement, attribute: str, why: str) -> NoReturn:
        raise DataError(f"{self.file}, line {element.line}, {attribute} of <{element.name}>: {why}")

    def whole(self, element: XmlElement, attribute: str, most: int) -> int:
        text = element.attributes.get(attribute)
        if text is None or not re.fullmatch(r"\d{1,9}", text) or int(text) > most:
            given = "is missing" if text is None else f"is '{text}'"
            self.wrong(element, attribute, f"{given} and must be a number from 0 to {most}.")
        return int(text)

    def add(self, node: Node, element: XmlElement) -> str:
        if any(n.name == node.name for n in self.nodes):
            self.wrong(element, "dev", f"there are two called {node.name}.")
        if sum(n.kind == node.kind for n in self.nodes) >= MOST_NODES:
            self.wrong(element, "dev", f"there are more than {MOST_NODES} of its kind.")
        self.nodes.append(node)
        return node.name

    def pci(
        self, element: XmlElement, above: str, narrowest: tuple[float, int, int] | None
    ) -> None:
        """A PCI device below `above`; `narrowest` are the lanes of bridges that got no node."""
        lanes = self.lanes(element)
        narrowest_lanes = min(narrowest, lanes) if narrowest and lanes else narrowest or lanes
        below = [c for c in element.children if c.name in ("pci", "gpu", "nic")]
        if not below:
            return
        if len(below) > 1 or len(below[0].every("net")) > 1:
            number = sum(n.kind == "pcie-switch" for n in self.nodes)
            node = Node(name=f"switch{number}", kind="pcie-switch", index=number)
            name = self.add(node, element)
            self.join(name, above, narrowest_lanes)
            above, narrowest_lanes = name, None
        for child in below:
            if child.name == "pci":
                self.pci(child, above, narrowest_lanes)
            elif child.name == "gpu":
                self.gpu(child, element, above, narrowest_lanes or lanes)
            else:
                self.nic(child, above, narrowest_lanes or lanes)

    def gpu(
        self,
        element: XmlElement,
        pci: XmlElement,
        above: str,
        lanes: tuple[float, int, int] | None,
    ) -> None:
        number = self.whole(element, "dev", 10_000)
        name = self.add(Node(name=f"gpu{number}", kind="gpu", index=number), element)
        self.gpus.append((name, pci.attributes.get("busid", "").lower(), element))
        self.join(name, above, lanes)

    def nic(self, element: XmlElement, above: str, lanes: tuple[float, int, int] | None) -> None:
        for net in element.every("net"):
            number = sum(n.kind == "nic" for n in self.nodes)
            label = net.attributes.get("name", "")
            node = Node(name=f"nic{number}", kind="nic", index=number, label=label)
            self.join(self.add(node, net), above, lanes)

    def lanes(self, element: XmlElement) -> tuple[float, int, int] | None:
        """(bytes per second, generation, width) of a PCI link; None if not given."""
        speed, width = (element.attributes.get(k, "") for k in ("link_speed", "link_width"))
        if not speed or speed.lower().startswith("unknown"):
            return None
        rate = re.match(r"\s*(\d{1,4}(?:\.\d{1,6})?)\s*GT/s", speed)
        generations = {v: k for k, v in speeds.PCIE_TRANSFERS_PER_S.items()}
        generation = generations.get(float(rate[1]) * 1e9) if rate else None
        if generation is None:
            self.wrong(element, "link_speed", f"is '{speed}'; known: 2.5, 5, 8, 16 and 32 GT/s.")
        if not re.fullmatch(r"\d{1,3}", width) or int(width) not in speeds.PCIE_WIDTHS:
            if width in ("", "0"):
                return None
            self.wrong(element, "link_width", f"is '{width}'; known: 1, 2, 4, 8 and 16.")
        rate_bytes = speeds.pcie_bytes_per_s(generation, int(width))
        return rate_bytes, generation, int(width)

    def join(self, name: str, above: str, lanes: tuple[float, int, int] | None) -> None:
        if lanes is None:
            note = "A PCIe link's speed is not given: PCIe 3 x16 is assumed."
            if note not in self.notes:
                self.notes.append(note)
            lanes = (0.0, 3, 16)
        self.links.append(pcie(name, above, lanes[1], lanes[2]))

    def sockets(self, cpus: list[XmlElement]) -> None:
        if len(cpus) < 2:
            return
        attributes = cpus[0].attributes
        kind = USUAL_SMP
        if attributes.get("vendor") in ("AuthenticAMD", "AMD"):
            kind = "xgmi-16"
        elif attributes.get("vendor") == "GenuineIntel":
            model = (attributes.get("familyid", ""), attributes.get("modelid", ""))
            kind = next((v for k, v in _SMP_BY_MODEL.items() if model == tuple(map(str, k))), kind)
        name = speeds.SMP[kind].name
        self.notes.append(
            f"How many links join the processors is not given: one {name} is assumed."
        )
        for a, b in combinations(range(len(cpus)), 2):
            self.links.append(smp(f"cpu{a}", f"cpu{b}", kind, 1))

    def mesh(self) -> None:
        addresses = {address: name for name, address, _ in self.gpus if address}
        joined: dict[tuple[str, str], int] = {}
        switched: dict[str, int] = {}
        switches: set[str] = set()
        for name, _, element in self.gpus:
            for link in element.every("nvlink"):
                count = self.whole(link, "count", 64)
                if not count:
                    self.wrong(link, "count", "is 0 and must be 1 or more.")
                target = link.attributes.get("target", "").lower()
                if link.attributes.get("tclass", "").startswith("0x0680"):
                    switched[name] = switched.get(name, 0) + count
                    switches.add(target)
                elif target in addresses and addresses[target] != name:
                    ends = (min(name, addresses[target]), max(name, addresses[target]))
                    if joined.setdefault(ends, count) != count:
                        self.wrong(link, "count", f"is {count}; its other end has {joined[ends]}.")
                elif target not in addresses and not link.attributes.get("tclass", "").startswith(
                    "0x0302"
                ):
                    self.wrong(link, "target", f"is '{target}', not the address of a GPU.")
        if switched:
            self.nodes.append(Node(name="nvswitch", kind="nvswitch", count=len(switches)))
        generation = {name: self.generation(element) for name, _, element in self.gpus}
        for name, count in switched.items():
            self.links.append(nvlink(name, "nvswitch", count, generation[name], switched=True))
        for (a, b), count in joined.items():
            self.links.append(nvlink(a, b, count, min(generation[a], generation[b])))

    def generation(self, element: XmlElement) -> int:
        """NVLink's, by the GPU's architecture."""
        capability = self.whole(element, "sm", 10_000)
        if capability not in _NVLINK_BY_SM:
            known = ", ".join(map(str, _NVLINK_BY_SM))
            self.wrong(element, "sm", f"is {capability}, an unknown GPU; known: {known}.")
        return _NVLINK_BY_SM[capability]
