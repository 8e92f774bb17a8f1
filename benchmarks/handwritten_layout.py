"""Weights of the networks written by hand, in the layout of TensorFlow and Keras."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def turned(weights: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """`weights` as they lie in TensorFlow, from (out, in, height, width) and (out, in). What was
    flattened channels first is flattened channels last here."""
    found, channels = [], 0
    for array in weights:
        if array.ndim == 4:
            channels = len(array)
            array = array.transpose(2, 3, 1, 0)
        elif array.ndim == 2:
            image = array.reshape(len(array), channels, -1).transpose(2, 1, 0)
            array, channels = image.reshape(array.shape[1], len(array)), len(array)
        found.append(array)
    return found
