"""Pooling windows at the far edges, compared with PyTorch's pooling of an image of ones."""

import numpy as np
import pytest

from cubemesh.frameworks.pooling import far_padding, window_cells, window_shares
from cubemesh.networks.layers import AveragePool

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("size", [6, 7, 8])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_windows_are_those_of_pytorch(size, padding, ceil_mode):
    sizes, around = (size, size + 1), (padding, padding)
    layer = AveragePool(kernel=(3, 3), stride=(2, 2), padding=around, ceil_mode=ceil_mode)
    ones = torch.ones(1, 1, *sizes)
    pooling = torch.nn.AvgPool2d(3, 2, padding, ceil_mode)
    theirs = pooling(ones)[0, 0].numpy()
    shape = (1, *theirs.shape)
    padded = np.pad(ones[0, 0].numpy(), far_padding(layer, shape, sizes))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))[::2, ::2]
    assert windows.shape[:2] == theirs.shape
    sums = windows.sum((2, 3))
    np.testing.assert_allclose(sums / window_cells(layer, shape, sizes), theirs, rtol=1e-6)
    shares = window_shares(layer, shape, sizes)
    np.testing.assert_allclose(sums / 9 * (1.0 if shares is None else shares), theirs, rtol=1e-6)
