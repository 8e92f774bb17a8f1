"""Fat trees: document 002's table 1 and figure 8, and what must hold of any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.machines.topology import NETWORKS, Design, fat_tree

FIGURE_8 = Design(network=NETWORKS["edr"], ports_per_system=4, switch_ports=36, ports_used=32)
WIDER = Design(network=NETWORKS["edr"], ports_per_system=4, switch_ports=36)


def test_table_1():
    infiniband = fat_tree(124, FIGURE_8)
    assert infiniband.bisection_bytes_per_s / 1e9 == pytest.approx(6200)
    assert infiniband.latency_s == pytest.approx(1.28e-6)
    assert infiniband.system_gbit_per_s == 800
    ethernet = fat_tree(124, Design(network=NETWORKS["10gbe"], ports_per_system=2, switch_ports=48))
    assert ethernet.bisection_bytes_per_s / 1e9 == pytest.approx(310)
    assert ethernet.latency_s == pytest.approx(5e-6)
    assert ethernet.system_gbit_per_s == 40


def test_figure_8():
    """At most 32 first-level and 16 second-level switches for 128 systems, four on each leaf."""
    assert FIGURE_8.most_systems(2) == 128
    largest = fat_tree(128, FIGURE_8)
    assert [(x.switches, x.ports_used, x.switch_ports) for x in largest.levels] == [
        (32, 32, 36),
        (16, 32, 36),
    ]
    assert FIGURE_8.per_leaf == 4
    shown = fat_tree(124, FIGURE_8)
    assert [(x.switches, x.ports_used) for x in shown.levels] == [(31, 32), (16, 31)]


def test_the_next_system():
    """The 129th takes a third level in that design; with all 36 ports of a spine only a leaf."""
    over = fat_tree(129, FIGURE_8)
    assert [x.switches for x in over.levels] == [33, 48, 32]
    assert over.hops == 5
    one_more = fat_tree(129, WIDER)
    assert [(x.switches, x.ports_used) for x in one_more.levels] == [(33, 32), (16, 33)]
    assert WIDER.most_systems(2) == 144
    assert len(fat_tree(144, WIDER).levels) == 2
    assert len(fat_tree(145, WIDER).levels) == 3


def test_what_cannot_be_built():
    with pytest.raises(UsageError, match="0 were given"):
        fat_tree(0, FIGURE_8)
    with pytest.raises(UsageError, match=r"10,000 .*\b32-.*\b2,048\b"):
        fat_tree(10_000, FIGURE_8)
    with pytest.raises(UsageError, match=r"\b20 ports.*\b36 usable"):
        Design(network=NETWORKS["edr"], ports_per_system=20, switch_ports=36)
    with pytest.raises(UsageError, match="a switch has 36"):
        Design(network=NETWORKS["edr"], ports_per_system=4, switch_ports=36, ports_used=40)
    with pytest.raises(UsageError, match="ports_per_system=0"):
        Design(network=NETWORKS["edr"], ports_per_system=0, switch_ports=36)


def test_an_oversubscribed_leaf_has_fewer_links_up():
    """5/4 as on Stampede: 20 systems and 16 links up, so four fifths reach the other half."""
    design = Design(
        network=NETWORKS["omni-path"],
        ports_per_system=1,
        switch_ports=48,
        systems_per_leaf=20,
        oversubscription=1.25,
    )
    tree = fat_tree(320, design)
    leaves, spines = tree.levels
    assert (leaves.switches, leaves.ports_used, leaves.links_up) == (16, 36, 256)
    assert (spines.switches, spines.ports_used) == (8, 32)
    assert tree.taper == 1.25
    assert tree.bisection_bytes_per_s == pytest.approx(320 * 2 * 12.5e9 / 2 / 1.25)
    assert fat_tree(20, design).taper == 1, "one switch has no links up"


def test_without_a_number_as_many_systems_as_fit_with_their_links_up():
    design = Design(
        network=NETWORKS["edr"], ports_per_system=4, switch_ports=36, oversubscription=2
    )
    assert (design.per_leaf, design.leaf_links, design.leaf_ports) == (6, 12, 36)
    assert FIGURE_8.per_leaf == 4
    with pytest.raises(UsageError, match=r"oversubscription=0.5.*from 1"):
        Design(network=NETWORKS["edr"], ports_per_system=4, switch_ports=36, oversubscription=0.5)


@given(
    systems=st.integers(1, 3000),
    ports=st.sampled_from([1, 2, 4, 8]),
    switch=st.sampled_from([32, 36, 40, 48, 64]),
)
def test_every_level_carries_what_the_one_below_sends(systems: int, ports: int, switch: int):
    design = Design(network=NETWORKS["ndr"], ports_per_system=ports, switch_ports=switch)
    if systems > design.most_systems(3):
        with pytest.raises(UsageError):
            fat_tree(systems, design)
        return
    tree = fat_tree(systems, design)
    assert all(0 < x.ports_used <= switch for x in tree.levels)
    for lower, upper in zip(tree.levels, tree.levels[1:], strict=False):
        assert lower.links_up >= systems * ports
        assert lower.links_up <= upper.switches * switch
    if len(tree.levels) > 1:
        assert tree.levels[0].switches * design.per_leaf >= systems
        assert systems > design.most_systems(len(tree.levels) - 1)
