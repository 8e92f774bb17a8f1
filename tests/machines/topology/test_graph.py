"""A graph is checked when it is made, and says what does not fit."""

import math
from dataclasses import replace

import pytest

from cubemesh.errors import DataError, UsageError
from cubemesh.machines.topology import Node, Topology
from cubemesh.machines.topology.speeds import nvlink, pcie, smp


def two(*links, nodes=None) -> Topology:
    nodes = nodes or (
        Node(name="gpu0", kind="gpu"),
        Node(name="gpu1", kind="gpu", index=1),
        Node(name="cpu0", kind="cpu"),
    )
    return Topology(name="two", nodes=tuple(nodes), links=tuple(links))


BOTH = (pcie("gpu0", "cpu0", 3, 16), pcie("gpu1", "cpu0", 3, 16))


def test_speeds_are_those_of_the_specifications():
    assert pcie("a", "b", 3, 16).bandwidth_bytes_per_s == pytest.approx(15.754e9, rel=1e-4)
    assert pcie("a", "b", 2, 8).bandwidth_bytes_per_s == pytest.approx(4e9)
    assert pcie("a", "b", 5, 16).bandwidth_bytes_per_s == pytest.approx(63.015e9, rel=1e-4)
    six = nvlink("a", "b", 6, 2)
    assert (six.bandwidth_bytes_per_s, six.one_bytes_per_s) == (150e9, 25e9)
    assert nvlink("a", "b", 18, 4).bandwidth_bytes_per_s == 450e9
    assert nvlink("a", "b", 18, 5).bandwidth_bytes_per_s == 900e9
    assert smp("a", "b", "qpi-9.6", 2).bandwidth_bytes_per_s == pytest.approx(38.4e9)
    assert smp("a", "b", "qpi-9.6", 2).sustained_bytes_per_s == 6e9
    with pytest.raises(DataError, match="generation 9"):
        pcie("a", "b", 9, 16)
    with pytest.raises(DataError, match="width 12"):
        pcie("a", "b", 3, 12)


def test_networkx_has_the_same_graph(dgx1_v100: Topology):
    graph = dgx1_v100.graph
    assert graph.number_of_nodes() == 14
    assert graph["gpu0"]["gpu3"]["nvlink"]["link"].count == 2
    assert sum(x.count for x in dgx1_v100.links_of("gpu5", "nvlink")) == 6


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ((BOTH[0],), "disconnected: no links lead from gpu0 to gpu1"),
        ((*BOTH, replace(BOTH[0], bandwidth_bytes_per_s=0.0)), "bandwidth_bytes_per_s is 0.0"),
        ((*BOTH, replace(BOTH[0], bandwidth_bytes_per_s=math.inf)), "bandwidth_bytes_per_s is inf"),
        ((*BOTH, replace(BOTH[0], latency_s=-1.0)), "latency_s is -1.0"),
        ((*BOTH, replace(BOTH[0], count=0)), "count is 0"),
        ((*BOTH, replace(BOTH[0], second="gpu7")), "there is no gpu7"),
        ((*BOTH, replace(BOTH[0], second="gpu0")), "two ends"),
        ((*BOTH, replace(BOTH[0], first="cpu0", second="gpu0")), "given twice"),
    ],
)
def test_what_does_not_fit_is_named(links, message: str):
    with pytest.raises(DataError, match=message):
        two(*links)


def test_nodes_are_checked():
    with pytest.raises(DataError, match=r"\bgpu0\b"):
        two(nodes=[Node(name="gpu0", kind="gpu")] * 2)
    with pytest.raises(DataError, match="0 devices"):
        two(nodes=[Node(name="switch0", kind="pcie-switch")])


def test_subsets_keep_the_rest_of_the_system(dgx1_v100: Topology):
    part = dgx1_v100.subset([0, 4])
    assert [n.name for n in part.gpus] == ["gpu0", "gpu4"]
    assert len(part.of_kind("pcie-switch")) == 4
    assert {x.count for x in part.links_of("gpu0", "nvlink")} == {2}


@pytest.mark.parametrize(
    ("gpus", "message"), [([], "0 devices"), ([9], "no GPU 9"), ([1, 1], "named twice")]
)
def test_invalid_subsets(dgx1_v100: Topology, gpus: list[int], message: str):
    with pytest.raises(UsageError, match=message):
        dgx1_v100.subset(gpus)
