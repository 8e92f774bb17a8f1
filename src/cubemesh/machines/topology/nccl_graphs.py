"""Parser of NCCL's graphs, and the comparison of its rings with those of the model.

NCCL writes the graphs that it searched where NCCL_GRAPH_DUMP_FILE points (NVIDIA/nccl,
src/graph/search.cc, ncclTopoGetXmlFromGraphs): `graphs` holds a `graph` for each algorithm, with
its pattern, the bandwidth of a channel in GB/s and the kinds of path, and this a `channel` for each
channel with its `gpu`s in order and, on several hosts, the `net` at its begin and end. A GPU is
named by its number on the host (`dev`), as in the topology (nccl_xml.py); newer versions write it
with C's `%#lx`: 0, 0x1, 0x2. Before use NCCL may double the channels.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from cubemesh.errors import CubemeshError, DataError
from cubemesh.machines.topology.nccl_xml import XmlElement, parse_xml, read_nccl_xml
from cubemesh.machines.topology.rings import find_rings
from cubemesh.schema.collective import NcclAdapter, NcclGraph, NcclTopology, RingOrder

PATTERNS = {
    1: "balanced tree",
    2: "split tree",
    3: "tree",
    4: "ring",
    5: "nvls",
    6: "collnet direct",
}
"""NCCL's numbers of patterns (src/include/graph.h)."""
MOST_GRAPHS = 16
MOST_CHANNELS = 256
MOST_DEVICES = 1024
"""In a channel."""
MOST_GB_PER_S = 1e6
_ADAPTER_NAME = re.compile(r"[\w.:@ -]{1,64}")


def read_nccl_graphs(text: str, file: str = "NCCL's graphs") -> tuple[NcclGraph, ...]:
    """The graphs with channels in NCCL's XML; DataError, with line and field, for invalid
    content."""
    top = parse_xml(text, file, "graphs", "NCCL_GRAPH_DUMP_FILE")
    graphs = top.every("graph")
    if len(graphs) > MOST_GRAPHS:
        raise DataError(f"{file}: {len(graphs)} graphs; {MOST_GRAPHS} are the most.")
    return tuple(found for graph in graphs if (found := _graph(graph, file)).orders)


def _graph(element: XmlElement, file: str) -> NcclGraph:
    channels = element.every("channel")
    if len(channels) > MOST_CHANNELS:
        raise DataError(
            f"{file}, line {element.line}: {len(channels)} channels; {MOST_CHANNELS} are the most."
        )
    pattern = int(_number(element, "pattern", file, 99))
    counted = Counter(_order(channel, file) for channel in channels)
    return NcclGraph(
        pattern=PATTERNS.get(pattern, f"pattern {pattern}"),
        orders=tuple(RingOrder(order=order, count=count) for order, count in counted.items()),
        channel_bytes_per_s=1e9 * _number(element, "speedintra", file, MOST_GB_PER_S),
        inside=_kind(element, "typeintra"),
        outside=_kind(element, "typeinter") if _has_adapters(channels) else "",
    )


def _order(channel: XmlElement, file: str) -> tuple[str, ...]:
    if len(channel.children) > MOST_DEVICES:
        raise DataError(
            f"{file}, line {channel.line}: more than {MOST_DEVICES:,} devices in a channel."
        )
    devices = (child for child in channel.children if child.name in ("gpu", "net"))
    return tuple(f"{c.name}{int(_number(c, 'dev', file, 1 << 20))}" for c in devices)


def _has_adapters(channels: Iterable[XmlElement]) -> bool:
    return any(channel.every("net") for channel in channels)


def _kind(element: XmlElement, attribute: str) -> str:
    text = element.attributes.get(attribute, "")
    return text if re.fullmatch(r"[A-Z0-9]{1,8}", text) else ""


def _number(element: XmlElement, attribute: str, file: str, most: float) -> float:
    text = element.attributes.get(attribute)
    if text is not None and re.fullmatch(r"\d{1,9}(\.\d{1,9})?|0x[0-9a-f]{1,16}", text):
        value = float(int(text, 16) if text.startswith("0x") else text)
        if math.isfinite(value) and value <= most:
            return value
    given = "is missing" if text is None else f"is '{text[:40]}'"
    raise DataError(
        f"{file}, line {element.line}, {attribute} of <{element.name}>: {given} and must be a "
        f"number from 0 to {most:,.0f}."
    )


def read_adapters(text: str, file: str = "NCCL's topology") -> tuple[NcclAdapter, ...]:
    """The network adapters in NCCL's topology; DataError for invalid XML. A speed that cannot be
    read is left out."""
    top = parse_xml(text, file, "system", "NCCL_TOPO_DUMP_FILE")
    found: list[NcclAdapter] = []
    pending = [top]
    while pending:
        element = pending.pop()
        pending += reversed(element.children)
        if element.name == "net":
            found.append(_adapter(element, len(found)))
    return tuple(found)


def _adapter(element: XmlElement, number: int) -> NcclAdapter:
    name, speed = (element.attributes.get(key, "") for key in ("name", "speed"))
    megabits = float(speed) if re.fullmatch(r"\d{1,9}", speed) else 0.0
    gdr = element.attributes.get("gdr", "")
    return NcclAdapter(
        name=name if _ADAPTER_NAME.fullmatch(name) else f"net{number}",
        bytes_per_s=megabits * 1e6 / 8 or None,
        gdr=gdr == "1" if gdr in ("0", "1") else None,
    )


def nccl_topology(topology: str | None, graphs: str | None) -> NcclTopology:
    """What NCCL wrote, with the rings of the model for the same devices; a file that is None was
    not written. What cannot be read has its reason in the notes."""
    notes: list[str] = []
    found: tuple[NcclGraph, ...] = ()
    adapters: tuple[NcclAdapter, ...] = ()
    model: tuple[RingOrder, ...] = ()
    bytes_per_s: float | None = None
    if graphs is None:
        notes.append("NCCL wrote no graphs.")
    else:
        try:
            found = read_nccl_graphs(graphs)
        except DataError as error:
            notes.append(f"NCCL's graphs cannot be read: {error}")
    if topology is None:
        notes.append("NCCL wrote no topology.")
    else:
        try:
            adapters = read_adapters(topology)
            rings = find_rings(read_nccl_xml(topology))
            counted = Counter(ring.order for ring in rings.rings)
            model = tuple(RingOrder(order=order, count=n) for order, n in counted.items())
            bytes_per_s = rings.bandwidth_bytes_per_s if model else None
        except CubemeshError as error:
            notes.append(f"No rings could be computed from NCCL's topology: {error}")
    return NcclTopology(
        graphs=found,
        adapters=adapters,
        model_rings=model,
        model_bytes_per_s=bytes_per_s,
        notes=tuple(notes),
    )


def ring_differences(found: NcclTopology) -> list[str]:
    """How NCCL's rings differ from the model's, as clauses; none where they agree in orders, or
    either has no rings."""
    rings = found.rings
    if rings is None or not found.model_rings:
        return []
    theirs = {cycle(o.order) for o in rings.orders}
    ours = {cycle(o.order) for o in found.model_rings}
    clauses = []
    if sets := {frozenset(c) for c in theirs} ^ {frozenset(c) for c in ours}:
        named = "; ".join(", ".join(sorted(s)) for s in sorted(sets, key=sorted))
        clauses.append(f"they go through different devices ({named})")
        return clauses
    if only := theirs - ours:
        clauses.append(f"only NCCL has {_named(only)}")
    if only := ours - theirs:
        clauses.append(f"only the model has {_named(only)}")
    count = sum(order.count for order in found.model_rings)
    if rings.channels != count:
        clauses.append(f"NCCL has {rings.channels} channels and the model {count} rings")
    return clauses


def _named(cycles: Iterable[tuple[str, ...]]) -> str:
    ordered = sorted(cycles)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return "; ".join(map(arrow, ordered[:3])) + more


def arrow(order: Sequence[str]) -> str:
    """`gpu0 → gpu1 → gpu3 → gpu2`."""
    return " → ".join(order)


def cycle(order: Sequence[str]) -> tuple[str, ...]:
    """The GPUs of a ring from the first name on; a ring is the same wherever it begins."""
    gpus = [name for name in order if name.startswith("gpu")]
    if not gpus:
        return ()
    first = gpus.index(min(gpus))
    return (*gpus[first:], *gpus[:first])
