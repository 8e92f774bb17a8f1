"""Bisection of single systems."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.machines.topology import Topology, bisection


def test_the_cube_mesh_is_narrowest_between_its_faces(dgx1_v100: Topology):
    """Six links of 25 GB/s join the two meshed halves: 2 + 2 + 1 + 1."""
    found = bisection(dgx1_v100)
    assert found.bandwidth_bytes_per_s == 150e9
    assert found.half == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert found.exact


def test_a_tree_is_narrowest_at_the_top(tree: Topology):
    found = bisection(tree)
    assert found.half == ("gpu0", "gpu1")
    assert found.bandwidth_bytes_per_s == pytest.approx(15.754e9, rel=1e-4)


def test_switches_carry_half_of_all(switched):
    assert bisection(switched(8, 18)).bandwidth_bytes_per_s == 4 * 450e9
    many = bisection(switched(16, 6))
    assert many.bandwidth_bytes_per_s == 8 * 150e9
    assert not many.exact


def test_pcie_counts_where_nvlink_does_not_join_all(dgx1_v100: Topology, meshed):
    pair = meshed(4, [(0, 1, 2), (2, 3, 2)])
    assert bisection(pair).half == ("gpu0", "gpu1")
    assert bisection(pair).bandwidth_bytes_per_s == pytest.approx(2 * 15.754e9, rel=1e-4)
    assert bisection(dgx1_v100, [0, 1, 2]).bandwidth_bytes_per_s == 50e9
    with pytest.raises(UsageError, match="2 GPUs or more"):
        bisection(dgx1_v100, [0])
