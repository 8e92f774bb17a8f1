"""How arrays are divided among programs: every value exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from cubemesh.kernels.triton.batch_norm.autotune import (
    apply_candidates,
    one_launch_candidates,
    reduce_candidates,
)
from cubemesh.kernels.triton.batch_norm.launch import Call, Launch

ROWS = st.integers(1, 10**7)
CHANNELS = st.integers(1, 128).map((16).__mul__)


@given(ROWS, CHANNELS, st.integers(1, 200))
def test_every_row_and_channel_is_in_one_program(rows, channels, processors):
    found = [
        *one_launch_candidates(rows, channels, processors, 1),
        *reduce_candidates(rows, channels, processors),
        *apply_candidates(channels),
    ]
    assert found
    for launch in found:
        assert channels % launch.block_cols == 0
        parts, part_rows = launch.parts(rows), launch.block_rows * launch.tiles
        assert (parts - 1) * part_rows < rows <= parts * part_rows
        for block in (launch.block_rows, launch.block_cols):
            assert block & (block - 1) == 0, "Triton takes powers of two"


class Compiled:
    """A compiled kernel, as Triton describes it."""

    def __init__(self, n_regs, n_spills=0, shared=0):
        self.n_regs, self.n_spills = n_regs, n_spills
        self.metadata = type("Metadata", (), {"shared": shared})

    def _init_handles(self):
        """Nothing to load."""


class Gpu:
    """The properties of an H200 that matter here."""

    multi_processor_count = 132
    max_threads_per_multi_processor = 2048
    shared_memory_per_multiprocessor = 228 * 1024


@pytest.mark.parametrize(
    ("barrier", "compiled", "fits"),
    [
        (True, Compiled(40), True),  # 12 programs of 128 threads on each: 1,188 at 0.75 of them
        (True, Compiled(64), False),  # 8: 792
        (True, Compiled(40, shared=64 * 1024), False),  # 3
        (True, Compiled(40, n_spills=8), False),
        (False, Compiled(64), True),  # no barrier
        (False, Compiled(64, n_spills=8), False),
    ],
)
def test_with_a_barrier_all_parts_fit_on_the_gpu(barrier, compiled, fits, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Gpu)
    kernel = type("Kernel", (), {"warmup": lambda self, *args, **options: compiled})()
    launch = Launch(block_rows=64, block_cols=32, warps=4)
    call = Call(
        kernel=kernel, launch=launch, size=(64 * 1000, 64), arguments=(), flags={}, barrier=barrier
    )
    assert call.fits(torch.device("cpu")) is fits


@given(ROWS, CHANNELS, st.integers(1, 200))
def test_sums_take_a_few_programs_for_each_multiprocessor(rows, channels, processors):
    for launch in reduce_candidates(rows, channels, processors):
        programs = launch.parts(rows) * channels // launch.block_cols
        assert programs <= 8 * processors + channels // launch.block_cols
