"""Which part of a bucket each rank averages, and the mean itself; what needs no GPU of it. Two GPUs
that fetch from one another are in test_gpu_several.py."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch.distributed.group import TorchGroup
from cubemesh.frameworks.pytorch.distributed.p2p_all_reduce import ALIGNED, average_into, parts

kinds = st.sampled_from([torch.float64, torch.float32, torch.bfloat16])


@given(st.integers(1, 10**9), st.integers(1, 72))
def test_every_number_is_in_one_part(numbers, ranks):
    found = parts(numbers, ranks)
    assert len(found) == ranks
    assert found[0].start == 0
    assert found[-1].stop == numbers
    assert all(one.stop == other.start for one, other in itertools.pairwise(found))


@given(st.integers(1, 10**9), st.integers(1, 72))
def test_parts_are_equal_and_aligned(numbers, ranks):
    found = parts(numbers, ranks)
    sizes = [part.stop - part.start for part in found]
    assert sizes == sorted(sizes, reverse=True), "who is last has least"
    assert max(sizes) <= -(-numbers // ranks) + ALIGNED
    assert all(part.start % ALIGNED == 0 for part in found if part.stop > part.start)


@given(st.integers(0, 3000), st.integers(1, 7), kinds)
def test_a_mean_is_that_of_all_ranks(numbers, others, kind):
    torch.manual_seed(numbers)
    mine, arrived = torch.randn(numbers).to(kind), torch.randn(others, numbers).to(kind)
    wanted = torch.cat([mine[None], arrived]).double().mean(0)
    average_into(mine, arrived)
    error = 4 * others * torch.finfo(kind).eps
    torch.testing.assert_close(mine.double(), wanted, rtol=error, atol=error)


def test_ranks_on_a_cpu_are_refused():
    group = TorchGroup.__new__(TorchGroup)
    group._device, group._link = torch.device("cpu"), "auto"
    with pytest.raises(Unsupported, match="sync=all-reduce"):
        group.peer_memory()


def test_a_link_that_is_not_used_is_refused():
    group = TorchGroup.__new__(TorchGroup)
    group._device, group._link = torch.device("cuda:0"), "network"
    with pytest.raises(Unsupported, match="link=network"):
        group.peer_memory()
