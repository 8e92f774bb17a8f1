"""Topology of a system: its links, and what they carry together.

`graph.py` defines the graph; `smi_matrix.py`, `nccl_xml.py` and `probed.py` read it from machines,
the catalogue from TOML; `routes.py`, `rings.py`, `trees.py` and `cuts.py` analyse it, `fat_tree.py`
and `dragonfly.py` clusters of systems.
"""

from cubemesh.machines.topology.cuts import Bisection, bisection
from cubemesh.machines.topology.dragonfly import Dragonfly, lay_out
from cubemesh.machines.topology.fat_tree import Design, FatTree, Level, fat_tree
from cubemesh.machines.topology.graph import Link, Node, Topology
from cubemesh.machines.topology.interconnects import NETWORKS, Network
from cubemesh.machines.topology.rings import Ring, RingSet, find_rings
from cubemesh.machines.topology.routes import REACHES, Route, hops, route, routes, shared_rates
from cubemesh.machines.topology.trees import Step, broadcast_steps, double_tree

__all__ = [
    "NETWORKS",
    "REACHES",
    "Bisection",
    "Design",
    "Dragonfly",
    "FatTree",
    "Level",
    "Link",
    "Network",
    "Node",
    "Ring",
    "RingSet",
    "Route",
    "Step",
    "Topology",
    "bisection",
    "broadcast_steps",
    "double_tree",
    "fat_tree",
    "find_rings",
    "hops",
    "lay_out",
    "route",
    "routes",
    "shared_rates",
]
