"""Workspace memory that cuBLAS and cuDNN allocate during a step.

cuBLAS keeps a workspace for each thread that calls it, and PyTorch calls from two: the backward
pass has a thread of its own. cuDNN's convolutions allocate theirs while they run. Which algorithm
it will select is unknown beforehand, but each has a workspace of a known form:

    tensor cores, nchw   input, weight and result once more, in the layout they compute in;
                         images of fewer than 8 channels padded to 8. 1×1 at stride 1: none
    tensor cores, nhwc   none
    FFT (forward)        2 F (C·K + N·C),         F = S · (S / 2 + 1) complex numbers of 8 bytes,
    FFT (data gradient)  F (C·K + t·N·(C + K))    S the next power of two (in tiles of 32: t = 2)
    Winograd F(4×4, 3×3) (weight gradient)        36 · 4 bytes · (N·T·(C + K) + C·K), T tiles

with N the batch, C and K channels in and out; the last three are for full fp32 at stride 1. (FFT:
Mathieu et al. 2014; Winograd: Lavin and Gray 2016; the transforms of data, result and weights are
what is stored.) Which of them is selected when, and the other constants, were fitted to the
workspaces of 196 convolutions of five networks on an H200 with cuDNN as PyTorch 2.11 brings it
(benchmarks/LOG.md); another GPU selects differently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cubemesh.networks.layers import Convolution, Shape
from cubemesh.schema.spec import Layout, Precision

CUBLAS_BYTES = 32 * 2**20
"""For each calling thread, since Hopper; PyTorch keeps 8 MiB before (CUDABlas.cpp)."""
CUBLASLT_BYTES = 2**20
_FLOAT = 4
_COMPLEX = 8
_LEAST_CHANNELS = 8


@dataclass(frozen=True, kw_only=True)
class Workspaces:
    """Bytes that a convolution allocates while it computes its result, and each gradient."""

    forward: int = 0
    data_gradient: int = 0
    weight_gradient: int = 0


def library_bytes(training: bool) -> int:
    """Permanent workspaces of matrix products."""
    return CUBLAS_BYTES * (2 if training else 1) + CUBLASLT_BYTES


def convolution_workspaces(
    layer: Convolution,
    given: Shape,
    result: Shape,
    batch: int,
    precision: Precision,
    layout: Layout,
) -> Workspaces:
    """Of `layer` from images `given` to `result` (channels, height, width), `batch` of them."""
    if layer.groups > 1 or precision == "fp64":
        return Workspaces()
    if precision != "fp32":
        return _transposed(layer, given, result, batch, 4 if precision == "tf32" else 2, layout)
    if layer.stride != (1, 1) or layer.kernel[0] != layer.kernel[1] or layer.kernel == (1, 1):
        return Workspaces()
    if layer.dilation != (1, 1):  # neither algorithm has gaps between cells
        return Workspaces()
    return Workspaces(
        forward=_fft_forward(layer, given, batch),
        data_gradient=_fft_data_gradient(layer, given, batch),
        weight_gradient=_weight_gradient(layer, given, result, batch),
    )


def _transposed(
    layer: Convolution, given: Shape, result: Shape, batch: int, width: int, layout: Layout
) -> Workspaces:
    if layout == "nhwc" or (layer.kernel == (1, 1) and layer.stride == (1, 1)):
        return Workspaces()
    padded = max(given[0], _LEAST_CHANNELS) * math.prod(given[1:])
    weight = layer.filters * given[0] * math.prod(layer.kernel)
    size = (batch * (padded + math.prod(result)) + weight) * width
    return Workspaces(forward=size, data_gradient=size, weight_gradient=size)


def _transform_bytes(side: int) -> int:
    """Of one image's half-plane of frequencies."""
    return side * (side // 2 + 1) * _COMPLEX


def _fft_forward(layer: Convolution, given: Shape, batch: int) -> int:
    channels, side = given[0], max(given[1:])
    least = 128 if layer.kernel == (3, 3) else 64
    pays = 24 * batch >= layer.filters  # the transformed weights are used for that many images
    if not pays or min(channels, layer.filters) < least or not 8 < side <= 62:
        return 0
    own = _transform_bytes(1 << (side - 1).bit_length())
    return 2 * own * (channels * layer.filters + batch * channels)


def _fft_data_gradient(layer: Convolution, given: Shape, batch: int) -> int:
    channels, side = given[0], max(given[1:])
    if channels < 64 or side < 16 or (side == 16 and batch < 128):
        return 0
    tiles = 1 if side <= 30 else 2
    both = tiles * batch * (channels + layer.filters)
    return _transform_bytes(32) * (channels * layer.filters + both)


def _weight_gradient(layer: Convolution, given: Shape, result: Shape, batch: int) -> int:
    channels, filters = given[0], layer.filters
    if channels < 64:
        return 0
    if layer.kernel != (3, 3):
        return int(2.1 * batch * (math.prod(given) + math.prod(result)) * _FLOAT)
    if channels == filters == 64 and max(given[1:]) > 32:
        return int(3.15 * batch * (math.prod(given) + math.prod(result)) * _FLOAT)
    tiles = math.prod(-(-side // 4) for side in result[1:])
    return 36 * _FLOAT * (batch * tiles * (channels + filters) + channels * filters)
