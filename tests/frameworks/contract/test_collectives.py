"""What travels in a collective and what must arrive, by numbers that add up exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.frameworks.contract.collectives import Piece, extent, needs_bytes, pieces, span
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.schema import Collective
from cubemesh.schema.collective import COLLECTIVES, ELEMENT_BYTES, PARTED

RANKS = st.integers(2, 9)
NAMES = st.sampled_from(COLLECTIVES)


@given(NAMES, RANKS, st.integers(1, 1 << 20), st.sampled_from(sorted(ELEMENT_BYTES)))
def test_a_size_is_whole_elements_and_equal_for_each_rank(name, ranks, size, kind):
    work = Collective(collective=name, data_type=kind)
    found = extent(work, size, ranks)
    unit = ELEMENT_BYTES[kind] * (ranks if name in PARTED else 1)
    assert found.size_bytes % unit == 0
    assert found.size_bytes == max(unit, size // unit * unit)
    assert max(found.gives, found.gets) * ELEMENT_BYTES[kind] == found.size_bytes
    assert found.count * (ranks if name in PARTED else 1) == max(found.gives, found.gets)
    assert extent(work, found.size_bytes, ranks) == found


@given(NAMES, RANKS, st.integers(1, 4096))
def test_the_expected_pieces_cover_the_result(name, ranks, size):
    work = Collective(collective=name)
    of = extent(work, size, ranks)
    for rank in range(ranks):
        found = pieces(work, of, rank, ranks)
        if name in ("reduce", "gather") and rank:
            assert found == ()
            continue
        covered = [i for p in found for i in range(p.start, p.start + p.length)]
        assert covered == list(range(of.gets))
        assert all(0 <= p.from_start <= of.gives - p.length for p in found)


def test_pieces_equal_those_derived_by_hand():
    def got(name, rank, pair=None):
        work = Collective(collective=name)
        return pieces(work, extent(work, 24, 3), rank, 3, pair)  # 6 floats, 2 for each rank

    def piece(start, length, sources, from_start):
        return Piece(start=start, length=length, sources=sources, from_start=from_start)

    assert got("all-reduce", 2) == (piece(0, 6, (0, 1, 2), 0),)
    assert got("reduce-scatter", 2) == (piece(0, 2, (0, 1, 2), 4),)
    assert got("scatter", 1) == (piece(0, 2, (0,), 2),)
    assert got("all-to-all", 1) == (
        piece(0, 2, (0,), 2),
        piece(2, 2, (1,), 2),
        piece(4, 2, (2,), 2),
    )
    assert got("send-receive", 0) == (piece(0, 6, (2,), 0),)
    assert got("send-receive", 2, (0, 2)) == (piece(0, 6, (0,), 0),)
    assert got("send-receive", 0, (0, 2)) == ()


@given(RANKS, st.sampled_from(sorted(ELEMENT_BYTES)))
def test_sums_are_exact_in_their_type(ranks, kind):
    whole = {"int8": 128, "uint8": 256, "half": 2048, "bfloat16": 256}.get(kind, 2**24)
    drawn = span(Collective(data_type=kind), ranks)
    assert 2 <= drawn <= 256
    assert ranks * (drawn - 1) < whole


def test_a_reduction_that_cannot_be_checked_is_refused_unless_checks_are_off():
    odd = Collective(reduction="avg")
    assert span(odd, 4) > 1
    with pytest.raises(Unsupported, match="3 devices"):
        span(odd, 3)
    with pytest.raises(Unsupported, match="200 devices"):
        span(Collective(data_type="bfloat16"), 200)
    assert span(Collective(reduction="avg", checks=0), 3) == 2


def test_memory_of_the_arrays():
    work = Collective(collective="all-gather")
    of = extent(work, 8 << 20, 4)
    assert needs_bytes(work, of, on_cpu=False) == (2 << 20) + (8 << 20)
    assert needs_bytes(work, of, on_cpu=True) == 20 << 20
