"""Image resizing.

Bilinear interpolation with half-pixel centres: output pixel i lies over input position
(i + ½)·n_in/n_out - ½, positions beyond the first and last centre take the edge's value, and the
value there is interpolated between the two nearest pixels, along one axis, then the
other. This is what `align_corners=False` means in PyTorch and `antialias=False` in TensorFlow. No
averaging when an image shrinks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def resize(images: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """`images` (..., h, w) as (..., `height`, `width`). Every result lies between two input pixels,
    so a constant image stays exactly constant and no value leaves the range of the input."""
    if height > images.shape[-2]:  # gathering columns is slow, so do it while the image is small
        return _along(_along(images, width, -1), height, -2)
    return _along(_along(images, height, -2), width, -1)


def _along(images: NDArray[np.float32], size: int, axis: int) -> NDArray[np.float32]:
    """`images` with `axis` brought to `size` pixels."""
    old = images.shape[axis]
    if size == old:
        return images
    position = np.clip((np.arange(size) + 0.5) * (old / size) - 0.5, 0, old - 1)
    below = np.floor(position).astype(np.intp)
    above = np.minimum(below + 1, old - 1)
    share = (position - below).astype(np.float32)
    if axis == -2:
        share = share[:, None]
    low = np.take(images, below, axis=axis)
    result: NDArray[np.float32] = np.take(images, above, axis=axis)
    result -= low
    result *= share
    result += low
    return result
