"""Tilings of convolutions in the layout HWNC: every layer and batch size has one that fits."""

import pytest

torch = pytest.importorskip("torch")

from cubemesh.kernels.triton.hwnc.launch import (
    MOST_SHARED,
    MOST_SPLIT_BYTES,
    Layout,
    Method,
    Projection,
    Tiling,
    split_bytes,
    tilings,
)
from cubemesh.kernels.window import Window

LAYERS = {
    "first": ((115, 115, 64, 16, 4), (112, 112, 64), Window(kernel=(4, 1))),
    "whole window": ((66, 66, 128, 4, 8), (64, 64, 64), Window()),
    "one tap": ((56, 56, 64, 64, 0), (56, 56, 256), Window()),
    "3x3": ((14, 14, 256, 256, 0), (14, 14, 256), Window(kernel=(3, 3), pad=(1, 1))),
    "strided": ((14, 14, 512, 512, 0), (7, 7, 512), Window(kernel=(3, 3), stride=(2, 2))),
    "last": ((1, 1, 2048, 2048, 0), (1, 1, 1024), Window()),
}  # fmt: skip


def layout(height, width, channels, row=0, line_pixels=0):
    return Layout(
        array=torch.empty(1, dtype=torch.float16),
        height=height,
        width=width,
        channels=channels,
        row=row or channels,
        line_pixels=line_pixels,
    )


def fitting(name, batch, projection=None):
    x, y, window = LAYERS[name]
    return tilings(layout(*x), layout(*y), window, batch, projection)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("batch", [1, 2, 7, 16, 24, 32, 64, 100, 200, 256])
def test_every_batch_size_has_tilings(name, batch):
    found = fitting(name, batch)
    assert found
    assert len(set(found)) == len(found)
    _, y, _ = LAYERS[name]
    for tiling in found:
        partial, arrived = split_bytes(layout(*y), batch, tiling)
        assert partial <= MOST_SPLIT_BYTES
        assert bool(partial) == bool(arrived) == (tiling.parts > 1 and tiling.method == 4)
        assert y[2] % tiling.block_c == 0


def test_a_batch_of_one_uses_rows_of_several_pixels():
    assert {tiling.method for tiling in fitting("3x3", 1)} == {Method.PIXELS}
    assert {tiling.parts for tiling in fitting("3x3", 1)} > {1, 4}
    assert Method.TAPS in {tiling.method for tiling in fitting("3x3", 64)}
    assert {tiling.method for tiling in fitting("3x3", 256)} == {Method.TAPS}


def test_the_first_convolution_goes_along_lines():
    assert Method.LINES in {tiling.method for tiling in fitting("first", 256)}
    lines = [t for t in fitting("first", 16) if t.method is Method.LINES]
    assert any(t.block_n == 64 for t in lines)  # four lines of 16 samples
    assert Method.LINES not in {tiling.method for tiling in fitting("first", 1)}


def test_the_weights_of_a_projection_are_held_too():
    projection = Projection(x=layout(112, 112, 512), stride=(2, 2))
    for tiling in fitting("one tap", 256, projection):
        if tiling.method is Method.ROWS:
            held = (tiling.block_n * tiling.stages + tiling.block_c) * (64 + 512) * 2
            assert held * tiling.parts <= MOST_SHARED
    assert fitting("one tap", 1, projection)


def test_numbers_of_a_tiling_are_those_of_the_file():
    for tiling in fitting("first", 64):
        assert Tiling.from_numbers(tiling.as_numbers()) == tiling


def test_offsets_of_32_bits_bound_batches_that_fill_no_tile():
    x, y = layout(224, 224, 64), layout(224, 224, 64)
    window = Window(kernel=(3, 3), pad=(1, 1))
    assert tilings(x, y, window, 1024)
    assert not tilings(x, y, window, 1001)
