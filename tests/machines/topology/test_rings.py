"""Rings: the counts the documents give, and what must hold of any set of them."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.machines.topology import Topology, find_rings
from cubemesh.machines.topology.rings import RingSet
from cubemesh.machines.topology.routes import capacities


def check(topology: Topology, found: RingSet, gpus: set[str]) -> None:
    """Every ring is Hamiltonian; together they stay within every link, and every GPU's links."""
    used: Counter[tuple[str, str, str]] = Counter()
    for ring in found.rings:
        assert set(ring.order) == gpus
        assert len(ring.order) == len(gpus)
        assert [r.nodes[0] for r in ring.routes] == list(ring.order)
        assert [r.nodes[-1] for r in ring.routes] == [*ring.order[1:], ring.order[0]]
        for way in ring.routes:
            for arc in way.arcs:
                used[arc] += ring.bandwidth_bytes_per_s
    room = capacities(topology)
    assert all(rate <= room[arc] * (1 + 1e-9) for arc, rate in used.items())
    for gpu in gpus:
        links = sum(x.bandwidth_bytes_per_s for x in topology.links_of(gpu))
        assert found.bandwidth_bytes_per_s <= links * (1 + 1e-9)
    assert len(found.rings) <= found.most


@pytest.mark.parametrize(
    ("count", "rings", "gb_per_s"), [(2, 1, 25), (3, 2, 50), (4, 4, 100), (8, 6, 150)]
)
def test_rings_of_the_dgx1_v100(dgx1_v100: Topology, count: int, rings: int, gb_per_s: int):
    """GPUs 0…n−1: 1, 4 and 6 directed rings of 2, 4 and 8."""
    found = find_rings(dgx1_v100, range(count))
    assert len(found.rings) == rings
    assert found.bandwidth_bytes_per_s == gb_per_s * 1e9
    assert found.reach == "nvlink"
    assert found.complete
    check(dgx1_v100.subset(range(count)), found, {f"gpu{i}" for i in range(count)})


def test_three_bidirectional_rings(dgx1_v100: Topology):
    """Document 002, figure 13: three rings, each of single links, used in both directions."""
    pairs = find_rings(dgx1_v100).pairs
    assert len(pairs) == 3
    links: Counter[frozenset[str]] = Counter()
    for there, back in pairs:
        assert back is not None
        assert back.order[1:] == there.order[:0:-1]
        links.update(
            frozenset(ends) for ends in zip(there.order, (*there.order[1:], "gpu0"), strict=True)
        )
    assert links == {
        frozenset((x.first, x.second)): x.count for x in dgx1_v100.links if x.kind == "nvlink"
    }


def test_the_p100_has_two(dgx1_p100: Topology):
    found = find_rings(dgx1_p100)
    assert [len(found.pairs), len(found.rings)] == [2, 4]
    assert found.bandwidth_bytes_per_s == 80e9


def test_a_ring_of_a_pcie_tree_is_in_order(tree: Topology):
    """Document 002, figure 12: 0, 1, 2, 3 and back, at the full rate of one link."""
    found = find_rings(tree)
    assert [r.order for r in found.rings] == [("gpu0", "gpu1", "gpu2", "gpu3")]
    assert found.bandwidth_bytes_per_s == pytest.approx(15.754e9, rel=1e-4)
    assert found.reach == "host-bridge"
    check(tree, found, {f"gpu{i}" for i in range(4)})


def test_five_gpus_of_a_dgx1_forward(dgx1_v100: Topology):
    """GPU 4 has one NVLink neighbour among 0…3, which its rings go through twice."""
    found = find_rings(dgx1_v100, range(5))
    assert (found.reach, found.forwards) == ("nvlink", True)
    assert found.bandwidth_bytes_per_s == 2 * 25e9
    check(dgx1_v100.subset(range(5)), found, {f"gpu{i}" for i in range(5)})
    used = Counter(arc for ring in found.rings for way in ring.routes for arc in way.arcs)
    assert used["gpu0", "gpu4", "nvlink"] == used["gpu4", "gpu0", "nvlink"] == 2
    assert not find_rings(dgx1_v100, range(6)).forwards
    assert find_rings(dgx1_v100, [0, 5]).reach == "system"


@pytest.mark.parametrize(("count", "links"), [(2, 18), (7, 6), (8, 18), (16, 12)])
def test_switches_give_a_ring_for_every_link(switched, count: int, links: int):
    found = find_rings(switched(count, links))
    assert len(found.rings) == links
    assert found.bandwidth_bytes_per_s == links * 25e9


def test_one_gpu_needs_no_ring_and_none_is_an_error(dgx1_v100: Topology):
    alone = find_rings(dgx1_v100, [3])
    assert (alone.rings, alone.reach, alone.bandwidth_bytes_per_s) == ((), None, 0)
    with pytest.raises(UsageError, match="0 devices"):
        find_rings(dgx1_v100, [])


PAIRS = [(a, b) for a in range(6) for b in range(a + 1, 6)]


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(0, 3), min_size=15, max_size=15),
    gpus=st.sets(st.integers(0, 5), min_size=2),
)
def test_rings_are_disjoint_and_hamiltonian_on_any_mesh(meshed, counts, gpus):
    mesh = [(a, b, n) for (a, b), n in zip(PAIRS, counts, strict=True) if n]
    topology = meshed(6, mesh)
    found = find_rings(topology, sorted(gpus))
    assert found.rings
    check(topology.subset(sorted(gpus)), found, {f"gpu{i}" for i in gpus})
