"""Weight initialization, drawn by NumPy and so the same in every framework.

One generator, PCG64 of the seed, runs through the network's parameters in the graph's order; zeros
and ones take nothing from it. Values are drawn in float64 and rounded to float32 once: the rounding
hides what little NumPy's normal distribution owes to a machine's mathematics library. What is drawn
are weights; biases, scales and running statistics start at zero or one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cubemesh.networks.layers import Initializer, ParameterSpec, Shape

_CHUNK = 1 << 20
"""Values drawn at a time: VGG's largest array would take 822 MB more if drawn whole in float64."""


def draw(specs: Mapping[str, ParameterSpec], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Initial value of every array, by name, drawn in the order of `specs`.

    Arrays have the graph's layout: (out, in / groups, height, width) or (out, in). `seed` is 0 or
    more; ValueError otherwise.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    return {name: _draw_one(spec, generator) for name, spec in specs.items()}


def fans(shape: Shape) -> tuple[int, int]:
    """(inputs that feed one output, outputs that one input feeds) of a weight array.

    In a grouped convolution the second counts the filters of all groups, as frameworks do.
    """
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def standard_deviation(initializer: Initializer, shape: Shape) -> float:
    """Of the values `draw` gives an array of `shape`."""
    if initializer.kind == "normal":
        return initializer.scale
    if initializer.kind == "he_normal":
        fan_in, fan_out = fans(shape)
        return initializer.scale * math.sqrt(2 / (fan_in if initializer.fan == "in" else fan_out))
    if initializer.kind == "glorot_uniform":
        return initializer.scale * math.sqrt(2 / sum(fans(shape)))
    return 0.0


def _draw_one(spec: ParameterSpec, generator: np.random.Generator) -> NDArray[np.float32]:
    kind = spec.initializer.kind
    if kind == "zeros":
        return np.zeros(spec.shape, np.float32)
    if kind == "ones":
        return np.ones(spec.shape, np.float32)
    deviation = standard_deviation(spec.initializer, spec.shape)
    values = np.empty(math.prod(spec.shape), np.float32)
    for start in range(0, values.size, _CHUNK):
        part = values[start : start + _CHUNK]
        if kind == "glorot_uniform":
            limit = deviation * math.sqrt(3)  # of a uniform distribution of this deviation
            part[:] = (2 * generator.random(part.size) - 1) * limit
        else:
            part[:] = generator.standard_normal(part.size) * deviation + spec.initializer.mean
    return values.reshape(spec.shape)
