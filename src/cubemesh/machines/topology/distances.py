"""PCIe distance between the network adapters and the GPUs of a topology.

In the words of `nvidia-smi topo -m`, as hardware/pci.py has them for the probed machine: from the
shortest path over PCIe and the links between sockets.
"""

from __future__ import annotations

from typing import Any

from cubemesh.machines.topology.graph import Topology


def nic_distances(topology: Topology) -> dict[str, dict[str, list[int]]]:
    """Adapter → distance → numbers of the GPUs at that distance; empty without either."""
    nics, gpus = topology.of_kind("nic"), topology.gpus
    if not nics or not gpus:
        return {}
    graph = _without_nvlink(topology)
    found: dict[str, dict[str, list[int]]] = {}
    for nic in nics:
        for gpu in gpus:
            word = _distance(graph, topology, nic.name, gpu.name)
            if word:
                found.setdefault(nic.name, {}).setdefault(word, []).append(gpu.index)
    return found


def _without_nvlink(topology: Topology) -> Any:
    import networkx

    links = [(x.first, x.second) for x in topology.links if x.kind != "nvlink"]
    graph = networkx.Graph(links)
    graph.add_nodes_from(node.name for node in topology.nodes)
    return graph


def _distance(graph: Any, topology: Topology, nic: str, gpu: str) -> str | None:
    import networkx

    try:
        path = networkx.shortest_path(graph, nic, gpu)
    except networkx.NetworkXNoPath:
        return None
    kinds = [topology.node(name).kind for name in path]
    if kinds.count("cpu") > 1:
        return "SYS"
    if kinds.count("host-bridge") > 1:
        return "NODE"
    if "cpu" in kinds or "host-bridge" in kinds:
        return "PHB"
    return "PIX" if kinds.count("pcie-switch") == 1 else "PXB"
