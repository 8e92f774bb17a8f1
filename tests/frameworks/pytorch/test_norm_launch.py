"""How arrays are cut into programs: nothing left out, nothing done twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from cubemesh.frameworks.pytorch.norm_launch import (
    for_sums,
    for_the_rest,
    together,
)

ROWS = st.integers(1, 10**7)
CHANNELS = st.integers(1, 128).map((16).__mul__)


@given(ROWS, CHANNELS, st.integers(1, 200))
def test_every_row_and_channel_is_in_one_program(rows, channels, processors):
    found = [
        *together(rows, channels, processors, 1),
        *for_sums(rows, channels, processors),
        *for_the_rest(channels),
    ]
    assert found
    for launch in found:
        assert channels % launch.block_cols == 0
        parts, part_rows = launch.parts(rows), launch.block_rows * launch.tiles
        assert (parts - 1) * part_rows < rows <= parts * part_rows
        for block in (launch.block_rows, launch.block_cols):
            assert block & (block - 1) == 0, "Triton takes powers of two"


@given(ROWS, CHANNELS, st.integers(1, 200), st.integers(1, 2))
def test_what_meets_holds_all_its_rows_and_is_on_the_gpu_at_once(rows, channels, processors, held):
    for launch in together(rows, channels, processors, held):
        assert launch.tiles == 1
        assert launch.parts(rows) <= 2 * processors


@given(ROWS, CHANNELS, st.integers(1, 200))
def test_sums_take_a_few_programs_for_each_multiprocessor(rows, channels, processors):
    for launch in for_sums(rows, channels, processors):
        programs = launch.parts(rows) * channels // launch.block_cols
        assert programs <= 8 * processors + channels // launch.block_cols
