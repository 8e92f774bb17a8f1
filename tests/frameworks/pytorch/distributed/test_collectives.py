"""Wrong elements are counted one by one; what a library does not offer is said."""

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from cubemesh.frameworks.contract.collectives import extent
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch.distributed.collectives import (
    TYPES,
    TorchCollective,
    build_collective,
)
from cubemesh.schema import Collective
from cubemesh.schema.collective import COLLECTIVES


@pytest.fixture(autouse=True)
def one_rank():
    """A group of one: what is sent arrives, unless a test spoils it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def program(size=4096, **fields):
    work = Collective(**fields)
    found = TorchCollective(work, "cpu", extent(work, size, 1))
    found.lay_out(extent(work, size, 1), found.places[-1])
    found.fill(1)
    found.call()
    return found


@pytest.mark.parametrize("kind", sorted(TYPES))
@pytest.mark.parametrize("name", [n for n in COLLECTIVES if n != "send-receive"])
def test_results_are_correct(name, kind):
    assert program(collective=name, data_type=kind).wrong(1) == 0


def test_each_wrong_element_is_counted(monkeypatch):
    monkeypatch.setattr(
        "cubemesh.frameworks.pytorch.distributed.collectives.CHUNK", 100
    )  # several, and a rest
    spoilt = program(collective="all-gather")
    spoilt._got[[0, 7, 512, 1023]] += 1
    assert spoilt.wrong(1) == 4
    spoilt._got[3] = float("nan")
    assert spoilt.wrong(1) == 5


def test_a_result_of_another_repetition_or_place_is_wrong():
    found = program()
    assert found.wrong(2) > 900, "of 1,024; some numbers are alike by chance"
    found._got.copy_(found._got.roll(1))
    assert found.wrong(1) > 900


def test_a_result_that_was_not_received_is_wrong():
    found = program(collective="broadcast")
    found._got.zero_()
    assert found.wrong(1) > 900


def test_elements_of_two_ranks_differ():
    found = program()
    own, other = (found._numbers(0, 1000, rank, 1) for rank in (0, 1))
    assert int((own != other).sum()) > 900
    assert torch.equal(found._numbers(500, 10, 1, 1), other[500:510]), "whatever the chunk"
    assert int(own.min()) == 0
    assert int(own.max()) == 255


def test_small_sizes_use_successive_offsets():
    work = Collective()
    moving = TorchCollective(work, "cpu", extent(work, 4096, 1))
    moving.lay_out(extent(work, 1024, 1), True)
    starts = []
    for _ in range(5):
        starts.append(moving._next)
        moving.call()
    assert starts == [0, 1, 2, 3, 0]


def test_an_operation_that_the_library_refuses_is_unsupported(monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("Cannot use ReduceOp.AVG with Gloo\nand more")

    monkeypatch.setattr(dist, "all_reduce", refuse)
    work = Collective(reduction="avg")
    words = r"does not support all-reduce \(avg, float\) here: Cannot use ReduceOp.AVG with Gloo\."
    with pytest.raises(Unsupported, match=words):
        build_collective(work, "cpu", 1, extent(work, 64, 1))
