"""Small systems to ask about, made without the catalogue."""

from collections.abc import Callable, Sequence

import pytest

from cubemesh.machines.topology import Node, Topology
from cubemesh.machines.topology.speeds import nvlink, pcie, smp

V100_PAIRS = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
    *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
)


def gpus(count: int) -> list[Node]:
    return [Node(name=f"gpu{i}", kind="gpu", index=i) for i in range(count)]


def cubemesh_of(generation: int, pairs: Sequence[tuple[int, int, int]] = V100_PAIRS) -> Topology:
    """A DGX-1: the mesh, four PCIe switches, two processors."""
    switches = [Node(name=f"switch{i}", kind="pcie-switch", index=i) for i in range(4)]
    cpus = [Node(name=f"cpu{i}", kind="cpu", index=i) for i in range(2)]
    links = [nvlink(f"gpu{a}", f"gpu{b}", n, generation) for a, b, n in pairs]
    links += [pcie(f"gpu{i}", f"switch{i // 2}", 3, 16) for i in range(8)]
    links += [pcie(f"switch{i}", f"cpu{i // 2}", 3, 16) for i in range(4)]
    links.append(smp("cpu0", "cpu1", "qpi-9.6", 2))
    return Topology(name="DGX-1", nodes=(*gpus(8), *switches, *cpus), links=tuple(links))


@pytest.fixture
def dgx1_v100() -> Topology:
    return cubemesh_of(2)


@pytest.fixture
def dgx1_p100() -> Topology:
    return cubemesh_of(1, [(a, b, 1) for a, b, _ in V100_PAIRS])


@pytest.fixture
def tree() -> Topology:
    """Document 002, figure 11: four GPUs, two switches, one processor."""
    switches = [Node(name=f"switch{i}", kind="pcie-switch", index=i) for i in range(2)]
    links = [pcie(f"gpu{i}", f"switch{i // 2}", 3, 16) for i in range(4)]
    links += [pcie(f"switch{i}", "cpu0", 3, 16) for i in range(2)]
    nodes = (*gpus(4), *switches, Node(name="cpu0", kind="cpu"))
    return Topology(name="tree", nodes=nodes, links=tuple(links))


@pytest.fixture(scope="session")
def meshed() -> Callable[[int, Sequence[tuple[int, int, int]]], Topology]:
    """GPUs on one processor, with NVLinks (first, second, count) of 25 GB/s."""

    def make(count: int, pairs: Sequence[tuple[int, int, int]]) -> Topology:
        links = [pcie(f"gpu{i}", "cpu0", 3, 16) for i in range(count)]
        links += [nvlink(f"gpu{a}", f"gpu{b}", n, 2) for a, b, n in pairs]
        nodes = (*gpus(count), Node(name="cpu0", kind="cpu"))
        return Topology(name="mesh", nodes=nodes, links=tuple(links))

    return make


@pytest.fixture(scope="session")
def switched() -> Callable[[int, int], Topology]:
    """GPUs that all have so many links to NVSwitches, and nothing else."""

    def make(count: int, links: int) -> Topology:
        joined = [nvlink(f"gpu{i}", "nvswitch", links, 4, switched=True) for i in range(count)]
        nodes = (*gpus(count), Node(name="nvswitch", kind="nvswitch", count=4))
        return Topology(name="switched", nodes=nodes, links=tuple(joined))

    return make
