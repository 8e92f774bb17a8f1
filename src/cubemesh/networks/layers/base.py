"""What all layer types have: initializers, parameters, shapes of images and of sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from cubemesh.errors import UsageError

Shape = tuple[int, ...]
Pair = tuple[int, int]
ActivationFunction = Literal[
    "silu",
    "quick-gelu",
    "mish",
    "hard-sigmoid",
    "hard-swish",
    "relu6",
    "leaky-relu",
    "squared-relu",
]


@dataclass(frozen=True, kw_only=True)
class Initializer:
    """How values are first drawn.

    `he_normal` is N(0, scale² · 2 / fan), He et al. 2015, fan in or out; `glorot_uniform` is
    U(± scale · sqrt(6 / (fan_in + fan_out))), Glorot and Bengio 2010; `normal` is N(mean, scale²).
    `networks/weights.py` draws them.
    """

    kind: Literal["zeros", "ones", "normal", "he_normal", "glorot_uniform"]
    scale: float = 1.0
    fan: Literal["in", "out"] = "in"
    mean: float = 0.0
    """Of `normal`."""


ZEROS = Initializer(kind="zeros")
ONES = Initializer(kind="ones")
HE_IN = Initializer(kind="he_normal")
HE_OUT = Initializer(kind="he_normal", fan="out")
GLOROT = Initializer(kind="glorot_uniform")
SMALL_NORMAL = Initializer(kind="normal", scale=0.02)
"""N(0, 0.02²), as the transformers of 2018 and after start embeddings."""


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """Shape and first values of one array a layer owns."""

    shape: Shape
    initializer: Initializer


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Base of all layer types. `category` is how a time breakdown sorts it."""

    category: ClassVar[str] = "elementwise"

    def output_shape(self, *inputs: Shape) -> Shape:
        """Shape of one sample's result; UsageError when the inputs do not fit."""
        return inputs[0]

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """What training adapts, by role ("weight", "bias")."""
        return {}

    def state(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """What a forward pass in training updates without a gradient, by role."""
        return {}


def weight_and_bias(
    shape: Shape, initializer: Initializer, bias: bool = True
) -> dict[str, ParameterSpec]:
    """`weight` of `shape` and, if wanted, `bias`: a zero for each of its first axis."""
    own = {"weight": ParameterSpec(shape=shape, initializer=initializer)}
    if bias:
        own["bias"] = ParameterSpec(shape=shape[:1], initializer=ZEROS)
    return own


def image_shape(layer: Layer, shape: Shape) -> tuple[int, int, int]:
    """(channels, height, width); UsageError for another shape."""
    if len(shape) != 3:
        raise UsageError(
            f"{type(layer).__name__} needs (channels, height, width), was given {shape}."
        )
    return shape[0], shape[1], shape[2]


def window_positions(
    layer: Layer, size: int, kernel: int, stride: int, padding: int, ceil_mode: bool = False
) -> int:
    """Positions of a window along one axis."""
    room = size + 2 * padding - kernel
    if room < 0:
        raise UsageError(
            f"{type(layer).__name__}: a window of {kernel} does not fit into {size} with padding "
            f"{padding}. Use a larger image_size."
        )
    if not ceil_mode:
        return room // stride + 1
    positions = math.ceil(room / stride) + 1
    # The last window must begin inside the input or its left padding (as Caffe and PyTorch do).
    return positions - 1 if (positions - 1) * stride >= size + padding else positions


def sequence_shape(layer: Layer, shape: Shape) -> tuple[int, int]:
    """(length, features); UsageError for another shape."""
    if len(shape) != 2:
        raise UsageError(f"{type(layer).__name__} needs (length, features), was given {shape}.")
    return shape[0], shape[1]
