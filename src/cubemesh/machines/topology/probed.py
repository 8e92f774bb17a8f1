"""Topology of the probed machine.

GPUs and the path between each two come from NVML (nvidia.py); NVLink's generation from the GPUs'
compute capability, PCIe's generation and width from NVML too.
"""

from __future__ import annotations

from itertools import combinations

from cubemesh.errors import DataError
from cubemesh.machines.catalogue.names import find
from cubemesh.machines.topology.graph import Topology
from cubemesh.machines.topology.pairs import DevicePairs, Pair, from_pairs, generation_of
from cubemesh.machines.topology.routes import REACHES
from cubemesh.schema import GpuLink, Machine


def topology_of(machine: Machine) -> Topology:
    """The graph of a probed machine's GPUs.

    DataError, with the reason, for a machine without GPUs, or where NVML does not report the path
    between two of them.
    """
    gpus = machine.gpus
    if not gpus:
        raise DataError(f"{machine.hostname} has 0 GPUs: there is no topology to draw.")
    place = {gpu.index: i for i, gpu in enumerate(gpus)}
    pairs = {
        (min(ends), max(ends)): _pair(link)
        for link in machine.gpu_links
        if len(ends := {place.get(link.first, -1), place.get(link.second, -1)} - {-1}) == 2
    }
    for a, b in combinations(range(len(gpus)), 2):
        if (a, b) not in pairs:
            raise DataError(
                f"The path between GPU {gpus[a].index} and GPU {gpus[b].index} of "
                f"{machine.hostname} is not known; `cubemesh probe` gives the reason under "
                "Unknown."
            )
    sheets = [find(gpu.name) for gpu in gpus]
    return from_pairs(
        DevicePairs(
            name=machine.hostname,
            gpus=len(gpus),
            numbers=[gpu.index for gpu in gpus],
            devices=["" if sheet is None else sheet.id for sheet in sheets],
            pairs=pairs,
            lanes=[
                (g.pcie_generation, g.pcie_width) if g.pcie_generation and g.pcie_width else None
                for g in gpus
            ],
            nvlink_generation=generation_of(gpus[0].compute_capability),
        )
    )


def _pair(link: GpuLink) -> Pair:
    for reach in REACHES:
        if link.kind == reach:
            return Pair(reach=reach, nvlinks=link.links or 0)
    raise DataError(f"A link between GPUs is of unknown kind '{link.kind}'.")
