"""Ways between GPUs, and what transfers leave one another: the documents' own statements."""

from itertools import combinations

import pytest

from cubemesh.errors import UsageError
from cubemesh.machines.topology import Topology, hops, route, shared_rates

X16 = pytest.approx(15.754e9, rel=1e-4)


def test_the_wrong_order_halves_the_bandwidth(tree: Topology):
    """Document 002, figure 11: 0→2 and 1→3 share the upper links, 0→1 and 2→3 do not."""
    right = shared_rates(tree, [("gpu0", "gpu1"), ("gpu2", "gpu3")])
    wrong = shared_rates(tree, [("gpu0", "gpu2"), ("gpu1", "gpu3")])
    assert right == (X16, X16)
    assert [2 * rate for rate in wrong] == [X16, X16]


def test_no_gpu_is_more_than_two_hops_from_another(dgx1_p100: Topology):
    """Document 004, section 2.1."""
    names = [n.name for n in dgx1_p100.gpus]
    counts = [hops(dgx1_p100, a, b) for a, b in combinations(names, 2)]
    assert max(counts) == 2
    assert counts.count(1) == 16
    assert counts.count(2) == 12


def test_routes_take_nvlink_where_there_is_one(dgx1_v100: Topology):
    near = route(dgx1_v100, "gpu0", "gpu3")
    assert (near.reach, near.bandwidth_bytes_per_s) == ("nvlink", 50e9)
    far = route(dgx1_v100, "gpu0", "gpu7")
    assert far.reach == "system"
    assert far.nodes == ("gpu0", "switch0", "cpu0", "cpu1", "switch3", "gpu7")
    assert far.bandwidth_bytes_per_s == X16
    assert far.latency_s == pytest.approx(2.5e-6)
    assert far.arcs[0] == ("gpu0", "switch0", "pcie")


def test_the_reach_is_the_nearest_shared_component(tree: Topology):
    assert route(tree, "gpu0", "gpu1").reach == "pcie-switch"
    assert route(tree, "gpu1", "gpu2").reach == "host-bridge"


def test_a_switch_is_not_a_hop(switched):
    topology = switched(8, 18)
    assert hops(topology, "gpu0", "gpu7") == 1
    way = route(topology, "gpu0", "gpu7")
    assert (way.reach, way.bandwidth_bytes_per_s) == ("nvlink", 450e9)
    assert way.latency_s == pytest.approx(0.6e-6)


def test_rates_rise_until_a_link_is_full(tree: Topology):
    """Two share the links up, a third is limited only by its own switch's link."""
    rates = shared_rates(tree, [("gpu0", "gpu2"), ("gpu1", "gpu2"), ("gpu3", "gpu0")])
    assert rates[0] == rates[1] == pytest.approx(15.754e9 / 2, rel=1e-4)
    assert rates[2] == X16


def test_no_route_goes_through_other_gpus(tree: Topology, meshed):
    chain = meshed(3, [(0, 1, 1), (1, 2, 1)])
    bare = type(chain)(
        name="bare",
        nodes=chain.gpus,
        links=tuple(x for x in chain.links if x.kind == "nvlink"),
    )
    with pytest.raises(UsageError, match=r"bare .*gpu0 .*gpu2 "):
        route(bare, "gpu0", "gpu2")
    assert hops(bare, "gpu0", "gpu2") == 2
    assert hops(tree, "gpu0", "gpu1") is None
    with pytest.raises(UsageError, match="has no gpu9"):
        route(tree, "gpu0", "gpu9")
    with pytest.raises(UsageError, match="twice"):
        route(tree, "gpu0", "gpu0")
