"""Winograd convolution on a CPU: 3×3, stride 1, in a quarter of the multiplications.

F(4×4, 3×3) (Lavin & Gray 2016, arXiv 1509.09308) by the kernels of `winograd.cpp`, for all three
passes: result, input gradient, weight gradient. fp32, channels-last, channels in multiples of 16.
oneDNN has the algorithm for Arm only, and PyTorch does not request it.

The transforms cost digits: for normally distributed values the relative error (norms) is 8e-7 with
64 channels and 2e-6 with 512, twice a direct convolution's in fp32. Input gradients have twice,
weight gradients four times the error of direct ones.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from cubemesh.kernels.cpu.compiler import declared_library
from cubemesh.kernels.cpu.cpu_kernels import LANES
from cubemesh.kernels.fused.batch_norm import channels_last

SOURCE = Path(__file__).with_name("winograd.cpp")
TAPS = 3
"""Of a kernel, in each direction."""

_P, _I = ctypes.c_void_p, ctypes.c_int
_ARGUMENTS = {
    "winograd_floats": [_P, _I, _I],
    "winograd_convolve": [*[_P] * 7, _I, _I, _I],
    "winograd_weight_gradient": [*[_P] * 7, _I],
}
_Longs = ctypes.Array[ctypes.c_long]
Pair = tuple[int, int]


@cache
def library() -> ctypes.CDLL:
    """The kernels, compiled for this CPU. OSError where that is impossible."""
    return declared_library(SOURCE, _ARGUMENTS, winograd_floats=ctypes.c_long)


def supports(conv: nn.Conv2d) -> frozenset[str]:
    """The supported passes of a layer: all or none."""
    able = (
        conv.kernel_size == (TAPS, TAPS)
        and conv.stride == conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and max(conv.padding) < TAPS
        and conv.in_channels % LANES == conv.out_channels % LANES == 0
    )
    return frozenset({"result", "input", "weight"} if able else ())


def convolve(x: Tensor, conv: nn.Conv2d, *, relu: bool = False) -> Tensor:
    """(batch, channels, height, width) → (batch, filters, out_height, out_width), with an
    optional ReLU."""
    weight, bias, padding = conv.weight, conv.bias, _padding(conv)
    filters, inputs, down, across = weight.stride()
    size = (x.shape[2] + 2 * padding[0] - TAPS + 1, x.shape[3] + 2 * padding[1] - TAPS + 1)
    return _convolve(
        x, weight, (filters, inputs, down, across), bias, (weight.shape[0], *size), padding,
        flipped=False, relu=relu,
    )  # fmt: skip


def input_gradient(grad_output: Tensor, conv: nn.Conv2d, size: Pair) -> Tensor:
    """The gradient of an input of `size`, (batch, channels, height, width), from the result's: its
    convolution with the flipped weights."""
    weight, padding = conv.weight, _padding(conv)
    filters, inputs, down, across = weight.stride()
    around = (TAPS - 1 - padding[0], TAPS - 1 - padding[1])
    return _convolve(
        grad_output, weight, (inputs, filters, down, across), None, (weight.shape[1], *size),
        around, flipped=True, relu=False,
    )  # fmt: skip


def weight_gradient(
    x: Tensor, grad_output: Tensor, conv: nn.Conv2d
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the weights, in their layout, and of the bias."""
    assert x.dtype == grad_output.dtype == torch.float32
    x, grad_output = channels_last(x), channels_last(grad_output)
    dweight = torch.empty_like(conv.weight)
    dbias = None if conv.bias is None else torch.empty_like(conv.bias)
    sizes = _sizes(x, tuple(grad_output.shape[1:]), _padding(conv))
    threads = torch.get_num_threads()
    work = _workspace(sizes, gradient=True, threads=threads)
    library().winograd_weight_gradient(
        sizes, x.data_ptr(), grad_output.data_ptr(), dweight.data_ptr(), _longs(dweight.stride()),
        None if dbias is None else dbias.data_ptr(), work.data_ptr(), threads,
    )  # fmt: skip
    return dweight, dbias


def _padding(conv: nn.Conv2d) -> Pair:
    assert not isinstance(conv.padding, str)
    return conv.padding[0], conv.padding[1]


def _convolve(
    x: Tensor,
    weight: Tensor,
    strides: tuple[int, ...],
    bias: Tensor | None,
    shape: tuple[int, ...],
    padding: Pair,
    *,
    flipped: bool,
    relu: bool,
) -> Tensor:
    """`shape` is that of one sample of the result."""
    assert x.dtype == weight.dtype == torch.float32
    x = channels_last(x)
    y = torch.empty((len(x), *shape), memory_format=torch.channels_last)
    sizes = _sizes(x, shape, padding)
    threads = torch.get_num_threads()
    work = _workspace(sizes, gradient=False, threads=threads)
    library().winograd_convolve(
        sizes, x.data_ptr(), weight.data_ptr(), _longs(strides),
        None if bias is None else bias.data_ptr(), y.data_ptr(), work.data_ptr(),
        flipped, relu, threads,
    )  # fmt: skip
    return y


def _sizes(x: Tensor, shape: tuple[int, ...], padding: Pair) -> _Longs:
    """`Sizes` of winograd.cpp."""
    batch, channels, height, width = x.shape
    filters, out_height, out_width = shape
    return _longs(
        (batch, height, width, channels, out_height, out_width, filters, padding[0], padding[1])
    )


def _workspace(sizes: _Longs, *, gradient: bool, threads: int) -> Tensor:
    """A new array for each call, so that threads may call concurrently."""
    return torch.empty(library().winograd_floats(sizes, gradient, threads))


def _longs(values: tuple[int, ...]) -> _Longs:
    return (ctypes.c_long * len(values))(*values)
