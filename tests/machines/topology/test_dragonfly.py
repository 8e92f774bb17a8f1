"""Dragonflies: Cori's groups of Aries routers, and what must hold of any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.machines.catalogue.systems import system
from cubemesh.machines.topology import NETWORKS, Design, Dragonfly, FatTree, lay_out

ARIES = NETWORKS["aries"]
CORI = Design(network=ARIES, ports_per_system=1, switch_ports=48, links_between_groups=24)


def test_a_group_of_aries():
    shape = ARIES.dragonfly
    assert (shape.systems_per_group, shape.routers_per_group) == (384, 96)
    group = lay_out(384, CORI)
    assert isinstance(group, Dragonfly)
    assert (group.routers, group.groups, group.hops, group.links_between_groups) == (96, 1, 3, 0)
    # 192 systems send 8 GB/s each, and the cut of rows or columns carries more.
    assert group.bisection_bytes_per_s == 2 * 192 * 8e9
    assert group.taper == 1


@pytest.mark.parametrize(
    ("systems", "routers", "latency_us"), [(4, 1, 1.3), (64, 2, 1.4), (384, 3, 1.5), (385, 6, 2.2)]
)
def test_latency_is_that_of_a_router_a_group_and_a_global_link(systems, routers, latency_us):
    """Measured by B. Austin: 1.3 µs on a router, 1.5 µs in a group, 2.2 µs between groups."""
    found = lay_out(systems, CORI)
    assert found.hops == routers
    assert found.latency_s * 1e6 == pytest.approx(latency_us)


def test_cori():
    """34 groups: 17 × 17 pairs are cut, each with 24 links of 4.7 GB/s."""
    found = lay_out(34 * 384, CORI)
    assert (found.groups, found.links_between_groups) == (34, 24)
    assert found.bisection_bytes_per_s == pytest.approx(2 * 17 * 17 * 24 * 4.7e9)
    assert found.taper == pytest.approx(17 * 384 * 8e9 / (17 * 17 * 24 * 4.7e9))


def test_two_chassis_are_cut_at_their_cables():
    """128 systems on 32 routers: 16 cables of three links join the two chassis."""
    found = lay_out(128, CORI)
    assert found.bisection_bytes_per_s == pytest.approx(2 * 16 * 3 * 5.25e9)
    assert lay_out(4, CORI).bisection_bytes_per_s == 2 * 2 * 8e9


def test_links_between_groups_share_what_the_routers_have():
    free = Design(network=ARIES, ports_per_system=1, switch_ports=48)
    assert lay_out(2 * 384, free).links_between_groups == 960
    assert lay_out(34 * 384, free).links_between_groups == 29


def test_the_catalogues_clusters():
    aries, tree = system("knl-aries").cluster, system("knl-omni-path").cluster
    assert isinstance(lay_out(128, aries), Dragonfly)
    stampede = lay_out(128, tree)
    assert isinstance(stampede, FatTree)
    assert (stampede.design.per_leaf, stampede.design.leaf_links) == (20, 16)
    assert stampede.taper == 1.25
    cori = system("cori").cluster
    assert lay_out(cori.systems, cori).groups == 26


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"oversubscription": 2.0}, "is a dragonfly"),
        ({"links_between_groups": 0}, "links_between_groups=0"),
    ],
)
def test_what_a_dragonfly_cannot_have(changes, words):
    with pytest.raises(UsageError, match=words):
        lay_out(8, Design(network=ARIES, ports_per_system=1, switch_ports=48, **changes))


def test_too_many_and_too_few_systems():
    with pytest.raises(UsageError, match=r"41 groups.*15,744"):
        lay_out(15_745, CORI)
    with pytest.raises(UsageError, match="0 were given"):
        lay_out(0, CORI)
    with pytest.raises(UsageError, match="no groups"):
        Design(network=NETWORKS["edr"], ports_per_system=1, switch_ports=36, links_between_groups=2)


@given(st.integers(1, 15_744))
def test_no_half_receives_more_than_its_ports_carry(systems: int):
    found = lay_out(systems, CORI)
    assert 0 < found.bisection_bytes_per_s <= systems * 8e9
    assert found.taper >= 1
    assert 1 <= found.hops <= 6
