"""Trees: order of a broadcast, and the double binary tree."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.machines.topology import Topology, broadcast_steps, double_tree
from cubemesh.machines.topology.trees import step


def test_the_far_half_is_sent_to_first(tree: Topology):
    """Document 002, figure 11: GPU 0 to GPU 2, then 0 to 1 and 2 to 3, at full bandwidth."""
    first, second = broadcast_steps(tree)
    assert first.transfers == (("gpu0", "gpu2"),)
    assert second.transfers == (("gpu0", "gpu1"), ("gpu2", "gpu3"))
    assert second.slowest_bytes_per_s == first.slowest_bytes_per_s
    wrong = step(tree, [("gpu0", "gpu2"), ("gpu1", "gpu3")])
    assert second.slowest_bytes_per_s == pytest.approx(2 * wrong.slowest_bytes_per_s)


@pytest.mark.parametrize("gpus", [None, [0], [1, 2], [7, 0, 4], range(6)])
def test_every_gpu_receives_once(dgx1_v100: Topology, gpus):
    steps = broadcast_steps(dgx1_v100, gpus)
    have = {dgx1_v100.named(gpus)[0]}
    for one in steps:
        assert {sender for sender, _ in one.transfers} <= have
        receivers = [receiver for _, receiver in one.transfers]
        assert not have & set(receivers)
        have |= set(receivers)
    assert have == set(dgx1_v100.named(gpus))
    assert len(steps) == math.ceil(math.log2(len(have)))


def test_another_root(dgx1_v100: Topology):
    assert broadcast_steps(dgx1_v100, root=5)[0].transfers[0][0] == "gpu5"
    with pytest.raises(UsageError, match="not among"):
        broadcast_steps(dgx1_v100, [0, 1], root=5)


@given(ranks=st.integers(1, 300))
def test_the_inner_ranks_of_one_tree_are_leaves_of_the_other(ranks: int):
    trees = double_tree(ranks)
    inner = []
    for parents in trees:
        assert sum(p is None for p in parents) == 1
        children = [0] * ranks
        for rank, parent in enumerate(parents):
            height, at = 0, rank
            while (above := parents[at]) is not None:
                at, height = above, height + 1
                assert height <= math.ceil(math.log2(ranks)) + 1
            if parent is not None:
                children[parent] += 1
        assert max(children) <= 2
        inner.append({rank for rank, count in enumerate(children) if count})
    assert len(inner[0] & inner[1]) <= 1  # an odd number's one tree begins where the other ends


def test_a_tree_needs_a_rank():
    with pytest.raises(UsageError, match="0 were given"):
        double_tree(0)
