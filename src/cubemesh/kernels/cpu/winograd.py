"""Convolutions of 3×3 with a stride of 1 in a quarter of the multiplications, on a CPU.

Winograd's algorithm F(4×4, 3×3) (Lavin & Gray 2016, arXiv 1509.09308) by the kernels of
`winograd.cpp`, for all three passes: the result, the gradient of the input, and that of the
weights. They take float32 in channels-last, channels in multiples of 16. oneDNN has the algorithm
for Arm only, and PyTorch never asks it for it.

The transforms cost digits. Of normally distributed values a result of 64 channels errs by 8e-7, as
norms, of 512 by 2e-6: twice a direct convolution's error in float32. Gradients of inputs err twice,
those of weights four times as much as direct ones.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused.batch_norm import as_rows
from cubemesh.kernels.cpu.compiler import declared_library
from cubemesh.kernels.cpu.cpu_kernels import LANES

SOURCE = Path(__file__).with_name("winograd.cpp")
TAPS = 3
"""Of a kernel, each way."""

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
    """The kernels, compiled for this CPU. OSError where that is not possible."""
    found = declared_library(SOURCE, _ARGUMENTS)
    found.winograd_floats.restype = ctypes.c_long
    return found


def takes(conv: nn.Conv2d) -> frozenset[str]:
    """The passes of a layer that it can do: all or none."""
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


def convolve(x: Tensor, conv: nn.Conv2d, *, rectifies: bool = False) -> Tensor:
    """(batch, channels, height, width) → (batch, filters, out_height, out_width), rectified at
    will."""
    weight, bias, padding = conv.weight, conv.bias, _padding(conv)
    filters, inputs, down, across = weight.stride()
    size = (x.shape[2] + 2 * padding[0] - TAPS + 1, x.shape[3] + 2 * padding[1] - TAPS + 1)
    return _convolve(
        x, weight, (filters, inputs, down, across), bias, (weight.shape[0], *size), padding,
        turned=False, rectifies=rectifies,
    )  # fmt: skip


def input_gradient(slope: Tensor, conv: nn.Conv2d, size: Pair) -> Tensor:
    """The gradient of an input of `size`, (batch, channels, height, width), from the result's: its
    convolution with the weights turned round."""
    weight, padding = conv.weight, _padding(conv)
    filters, inputs, down, across = weight.stride()
    around = (TAPS - 1 - padding[0], TAPS - 1 - padding[1])
    return _convolve(
        slope, weight, (inputs, filters, down, across), None, (weight.shape[1], *size), around,
        turned=True, rectifies=False,
    )  # fmt: skip


def weight_gradient(x: Tensor, slope: Tensor, conv: nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    """The gradients of the weights, which lie as the weights do, and of the bias."""
    assert x.dtype == slope.dtype == torch.float32
    x, slope = as_rows(x), as_rows(slope)
    dweight = torch.empty_like(conv.weight)
    dbias = None if conv.bias is None else torch.empty_like(conv.bias)
    sizes = _sizes(x, tuple(slope.shape[1:]), _padding(conv))
    threads = torch.get_num_threads()
    work = _workspace(sizes, gradient=True, threads=threads)
    library().winograd_weight_gradient(
        sizes, x.data_ptr(), slope.data_ptr(), dweight.data_ptr(), _longs(dweight.stride()),
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
    turned: bool,
    rectifies: bool,
) -> Tensor:
    """`shape` is that of a sample of the result."""
    assert x.dtype == weight.dtype == torch.float32
    x = as_rows(x)
    y = torch.empty((len(x), *shape), memory_format=torch.channels_last)
    sizes = _sizes(x, shape, padding)
    threads = torch.get_num_threads()
    work = _workspace(sizes, gradient=False, threads=threads)
    library().winograd_convolve(
        sizes, x.data_ptr(), weight.data_ptr(), _longs(strides),
        None if bias is None else bias.data_ptr(), y.data_ptr(), work.data_ptr(),
        turned, rectifies, threads,
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
    """An array of its own for each call, so that threads may call at once."""
    return torch.empty(library().winograd_floats(sizes, gradient, threads))


def _longs(values: tuple[int, ...]) -> _Longs:
    return (ctypes.c_long * len(values))(*values)
