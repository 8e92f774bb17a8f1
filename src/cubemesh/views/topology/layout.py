"""Layout of a topology drawing: the position of each node.

A hybrid cube-mesh (two fully meshed fours, joined corner by corner) is a cube between its
processors, with GPUs of one PCIe switch along one edge. Every other topology is a tree: processors
on top, then bridges and switches, adapters next to their parents, GPUs in a row, and below them the
NVSwitches in one bar. The layout is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from cubemesh.machines.topology import Node, Topology

SIZES: Mapping[str, tuple[float, float]] = {
    "gpu": (62, 42),
    "cpu": (84, 36),
    "host-bridge": (62, 26),
    "pcie-switch": (52, 26),
    "nic": (44, 24),
    "nvswitch": (120, 38),
}
"""Width and height of a node by its kind."""

MARGIN, GAP, ROW = 24.0, 18.0, 92.0
_CUBE_FACE = ((0.0, 80.0), (150.0, 0.0), (150.0, 200.0), (0.0, 280.0))
"""Corners of the near face: front top, back top, back bottom, front bottom."""
_CUBE_SHIFT, _CUBE_LEFT = 350.0, 172.0
_CUBE_EDGE = 72.0
"""Distance of the PCIe switches from the cube."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A node's rectangle: its middle, width and height."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The size of the drawing and the place of every node."""

    shape: str
    """`cube` or `tree`."""
    width: float
    height: float
    places: Mapping[str, Place]


def arc_dip(ranks: int) -> float:
    """Distance of the control points of an arc below the GPUs that it spans."""
    return 40.0 + 30.0 * (ranks - 1)


def lay_out(topology: Topology) -> Layout:
    """The layout that suits a topology."""
    # A cube has room for one processor on either side.
    corners = cube_corners(topology) if len(topology.of_kind("cpu")) <= 2 else None
    return _tree(topology) if corners is None else _cube(topology, corners)


def cube_corners(topology: Topology) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The GPUs of either face of a hybrid cube-mesh, in the order of `_CUBE_FACE` and each facing
    the one at the same place of the other; None for what is no such mesh."""
    joined = {
        frozenset((link.first, link.second)) for link in topology.links if link.kind == "nvlink"
    }
    names = [node.name for node in topology.gpus]
    if len(names) != 8 or len(joined) != 16 or topology.of_kind("nvswitch"):
        return None
    first, *others = names
    for rest in combinations(others, 3):
        face = (first, *rest)
        far = [n for n in names if n not in face]
        if not (_meshed(face, joined) and _meshed(far, joined)):
            continue
        facing = {a: [b for b in far if frozenset((a, b)) in joined] for a in face}
        if sorted(b for bs in facing.values() for b in bs) == sorted(far) and all(
            len(bs) == 1 for bs in facing.values()
        ):
            order = _edges_by_switch(topology, face)
            return order, tuple(facing[a][0] for a in order)
    return None


def _meshed(four: Sequence[str], joined: set[frozenset[str]]) -> bool:
    return all(frozenset(pair) in joined for pair in combinations(four, 2))


def _edges_by_switch(topology: Topology, face: tuple[str, ...]) -> tuple[str, ...]:
    """The four GPUs in an order that puts those of one switch on the upper or the lower edge."""
    a, *others = face
    neighbour = next((b for b in others if _above(topology, a) == _above(topology, b)), others[0])
    c, d = (n for n in others if n != neighbour)
    return a, neighbour, c, d


def _above(topology: Topology, name: str) -> str | None:
    """The parent of a node on PCIe."""
    for link in topology.links_of(name, "pcie"):
        other = link.second if link.first == name else link.first
        if _depth(topology.node(other)) < _depth(topology.node(name)):
            return other
    return None


def _depth(node: Node) -> int:
    ranks = {"cpu": 0, "host-bridge": 1, "pcie-switch": 2, "gpu": 9, "nic": 9, "nvswitch": 10}
    # Switches are numbered from the root down.
    return ranks[node.kind] * 1000 + (node.index if node.kind == "pcie-switch" else 0)


def _place(topology: Topology, name: str, x: float, y: float) -> Place:
    width, height = SIZES[topology.node(name).kind]
    return Place(x=x, y=y, width=width, height=height)


def _cube(topology: Topology, corners: tuple[tuple[str, ...], tuple[str, ...]]) -> Layout:
    at: dict[str, tuple[float, float]] = {}
    edge = _CUBE_EDGE if topology.of_kind("pcie-switch") else 0.0
    top = 46.0 + edge
    for side, face in enumerate(corners):
        for name, (x, y) in zip(face, _CUBE_FACE, strict=True):
            at[name] = (_CUBE_LEFT + side * _CUBE_SHIFT + x, top + y)
    width = 2 * _CUBE_LEFT + _CUBE_SHIFT + 150
    bottom = top + 280 + edge
    uppers = {name for face in corners for name in face[:2]}
    for switch in topology.of_kind("pcie-switch"):
        below = [n for n in at if _above(topology, n) == switch.name]
        if below:
            x = sum(at[n][0] for n in below) / len(below)
            at[switch.name] = (x, 46.0 if below[0] in uppers else bottom)
    for number, cpu in enumerate(topology.of_kind("cpu")):
        at[cpu.name] = (60.0 if number == 0 else width - 60, (46 + bottom) / 2)
    _place_adapters(topology, at, width)
    places = {name: _place(topology, name, x, y) for name, (x, y) in at.items()}
    return Layout(shape="cube", width=width, height=bottom + 56, places=places)


def _place_adapters(topology: Topology, at: dict[str, tuple[float, float]], width: float) -> None:
    """Adapters next to their parent, towards the middle; bridges and switches without a place
    above the middle."""
    count: dict[str, int] = {}
    for nic in topology.of_kind("nic"):
        above = _above(topology, nic.name)
        if above not in at:
            above = next(iter(at))
        x, y = at[above]
        rank = count[above] = count.get(above, 0) + 1
        near = (SIZES[topology.node(above).kind][0] + SIZES["nic"][0]) / 2 + 24
        step = near + (rank - 1) * (SIZES["nic"][0] + 8)
        at[nic.name] = (x + (step if x < width / 2 else -step), y)
    for bridge in topology.of_kind("host-bridge"):
        at.setdefault(bridge.name, (width / 2, 46.0))
    for switch in topology.of_kind("pcie-switch"):
        at.setdefault(switch.name, (width / 2, 90.0))


class _Trees:
    """Layout of the PCIe trees of a system, processors side by side."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.children: dict[str, list[str]] = {}
        self.nics: dict[str, list[str]] = {}
        roots = []
        for node in sorted(topology.nodes, key=lambda n: (_depth(n), n.index)):
            above = _above(topology, node.name)
            if node.kind == "nvswitch":
                continue
            if above is None:
                roots.append(node.name)
            elif node.kind == "nic":
                self.nics.setdefault(above, []).append(node.name)
            else:
                self.children.setdefault(above, []).append(node.name)
        self.roots = roots
        self.levels = max((self.level(n.name) for n in topology.devices), default=0)
        self.at: dict[str, tuple[float, float]] = {}

    def level(self, name: str) -> int:
        above = _above(self.topology, name)
        return 0 if above is None else 1 + self.level(above)

    def own_width(self, name: str) -> float:
        """Width of a node with its adapters."""
        own = SIZES[self.topology.node(name).kind][0]
        return own + len(self.nics.get(name, ())) * (SIZES["nic"][0] + GAP)

    def width(self, name: str) -> float:
        below = [self.width(child) for child in self.children.get(name, ())]
        return max(self.own_width(name), sum(below) + GAP * (len(below) - 1 if below else 0))

    def put(self, name: str, left: float) -> None:
        """Place a node and all below it, from `left` on."""
        whole = self.width(name)
        below = self.children.get(name, [])
        total = sum(self.width(child) for child in below) + GAP * max(len(below) - 1, 0)
        x = left + (whole - total) / 2
        for child in below:
            self.put(child, x)
            x += self.width(child) + GAP
        nics = self.nics.get(name, [])
        own = SIZES[self.topology.node(name).kind][0]
        # Half of the adapters to the left, so that the node stays in the middle.
        on_left = (len(nics) + 1) // 2
        step = SIZES["nic"][0] + GAP
        middle = left + whole / 2
        if 2 * (own / 2 + on_left * step) > whole:
            middle = left + (whole - self.own_width(name)) / 2 + on_left * step + own / 2
        elif len(below) == 1 and not nics:
            middle = self.at[below[0]][0]
        is_gpu = self.topology.node(name).kind == "gpu"
        y = 40 + ROW * (self.levels if is_gpu else self.level(name))
        self.at[name] = (middle, y)
        for i, nic in enumerate(nics):
            reach = own / 2 + GAP + SIZES["nic"][0] / 2
            offset = -reach - i * step if i < on_left else reach + (i - on_left) * step
            self.at[nic] = (middle + offset, y)
        if len(below) == 1 and self.topology.node(below[0]).kind == "gpu":
            self.at[below[0]] = (middle, self.at[below[0]][1])


def _tree(topology: Topology) -> Layout:
    trees = _Trees(topology)
    left = MARGIN
    for root in trees.roots:
        trees.put(root, left)
        left += trees.width(root) + 3 * GAP
    places = {name: _place(topology, name, x, y) for name, (x, y) in trees.at.items()}
    width = max(left - 3 * GAP + MARGIN, 360.0)
    lowest = max(place.y + place.height / 2 for place in places.values())
    bars = topology.of_kind("nvswitch")
    if bars:
        at = [places[node.name] for node in topology.gpus]
        low, high = min(p.x - p.width / 2 for p in at), max(p.x + p.width / 2 for p in at)
        y = lowest + 76
        places[bars[0].name] = Place(
            x=(low + high) / 2, y=y, width=max(high - low, SIZES["nvswitch"][0]), height=38
        )
        lowest = y + 19
    elif any(link.kind == "nvlink" for link in topology.links):
        order = sorted(topology.gpus, key=lambda n: places[n.name].x)
        rank = {node.name: i for i, node in enumerate(order)}
        farthest = max(
            abs(rank[x.first] - rank[x.second]) for x in topology.links if x.kind == "nvlink"
        )
        lowest += 0.75 * arc_dip(farthest) + 12  # a curve reaches three quarters of its handles
    return Layout(shape="tree", width=width, height=lowest + 24, places=places)
