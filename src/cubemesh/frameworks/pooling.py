"""Geometry of windows over an image: of poolings at its far edges, for frameworks without
`ceil_mode`, and of the padding `SAME`.

`shape` is the result's (channels, height, width), `sizes` the input's (height, width).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cubemesh.networks.layers import AveragePool, Convolution, MaxPool, Shape


def far_padding(
    layer: MaxPool | AveragePool, shape: Shape, sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """(before, after) of height and width. The padding at the far edge follows from the
    result's `shape`: longer than `layer.padding` in `ceil_mode`, shorter where the last pixels are
    left out."""
    return [
        (padding, max(0, (windows - 1) * stride + kernel - padding - size))
        for size, windows, kernel, stride, padding in _axes(layer, shape, sizes)
    ]


def window_cells(layer: AveragePool, shape: Shape, sizes: Sequence[int]) -> NDArray[np.int64]:
    """Cells of each window on the image and `layer.padding`, (height, width)."""
    along = []
    for size, windows, kernel, stride, padding in _axes(layer, shape, sizes):
        first = np.arange(windows) * stride - padding
        along.append(np.minimum(first + kernel, size + padding) - first)
    return np.outer(*along)


def window_shares(
    layer: AveragePool, shape: Shape, sizes: Sequence[int]
) -> NDArray[np.float64] | None:
    """Cells of a full window divided by `window_cells`; None where every window is full."""
    cells, full = window_cells(layer, shape, sizes), layer.kernel[0] * layer.kernel[1]
    return None if (cells == full).all() else full / cells


def pads_as_same(layer: Convolution) -> bool:
    """Whether the padding `SAME` of TensorFlow and Keras pads the cells that `layer` does."""
    return layer.stride == (1, 1) and layer.reach == tuple(2 * p + 1 for p in layer.padding)


def _axes(
    layer: MaxPool | AveragePool, shape: Shape, sizes: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    return zip(sizes, shape[1:], layer.kernel, layer.stride, layer.padding, strict=True)
