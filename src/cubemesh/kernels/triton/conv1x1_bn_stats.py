"""A 1×1 convolution on a GPU that takes the sums of the batch normalisation after it as it goes.

`product_kernels.py` computes it; its gradients are PyTorch's own. Which tiles the product is cut
into, and whether that is faster than to let the normalisation take its sums itself, is found by
trying on arrays of the run's shapes. The backward pass is the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused.batch_norm import FusedNorm
from cubemesh.frameworks.pytorch.fused.side_stream import Beside, convolve
from cubemesh.kernels.cuda_events import time_ms
from cubemesh.kernels.triton.launch_config import for_the_rest

if TYPE_CHECKING:  # it imports Triton
    from cubemesh.kernels.triton.batch_norm_op import Kernels

T = TypeVar("T")
NARROW = (torch.bfloat16, torch.float16)
TILE_COPIES = (9, 0)
"""The first compute capability with units that copy tiles by descriptor."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a product is cut into tiles, and over how many programs for each multiprocessor they
    are spread."""

    rows: int
    cols: int
    depth: int
    stages: int
    warps: int
    share: int

    def __str__(self) -> str:
        return (
            f"{self.rows}×{self.cols}×{self.depth}, {self.stages} stages, {self.warps} warps, "
            f"{self.share} a multiprocessor"
        )


TILINGS = (
    Tiling(rows=128, cols=64, depth=64, stages=3, warps=4, share=2),
    Tiling(rows=128, cols=64, depth=64, stages=4, warps=4, share=2),
    Tiling(rows=128, cols=64, depth=64, stages=4, warps=4, share=4),
)
"""Those of some sixty that came first for ResNet-50's shapes on an H200 (benchmarks/LOG.md)."""


class SummedConv(nn.Module):
    """conv(x), and the sums that `kernels` need to normalise it; `conv` keeps its arrays."""

    def __init__(
        self, conv: nn.Conv2d, norm: nn.BatchNorm2d, kernels: Kernels, tiling: Tiling
    ) -> None:
        super().__init__()
        self.conv, self.kernels, self.tiling = conv, kernels, tiling
        self._norm = (norm,)  # in a tuple: it is no layer of this one

    def forward(
        self, x: Tensor, weight: Tensor | None = None, beside: Beside | None = None
    ) -> Tensor:
        """(batch, channels, height, width) → (batch, filters, height, width), with `weight` in
        place of its own if one is given; the gradient of the weight is computed `beside`."""
        weight = self.conv.weight if weight is None else weight
        like = (len(x), self.conv.out_channels, *x.shape[2:])
        if like != tuple(self.kernels.shape):  # then the normalisation takes its own sums too
            return convolve(x, weight, self.conv, beside)
        return convolve(x, weight, self.conv, beside, self.product)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """The forward pass alone, of arrays of one 16-bit type; adds to the sums."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        from cubemesh.kernels.triton.matmul import convolution_kernel

        tiling, depth, channels = self.tiling, self.conv.in_channels, self.conv.out_channels
        y = torch.empty(
            self.kernels.shape,
            dtype=x.dtype,
            device=x.device,
            memory_format=torch.channels_last,
        )
        rows = y.numel() // channels
        tiles, slices = math.ceil(rows / tiling.rows), channels // tiling.cols
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        parts = min(tiles, max(1, tiling.share * processors // slices))
        by = TensorDescriptor.from_tensor
        convolution_kernel[(parts * slices,)](
            by(_as_matrix(x), [tiling.rows, tiling.depth]),
            by(weight.reshape(channels, depth), [tiling.cols, tiling.depth]),
            by(_as_matrix(y), [tiling.rows, tiling.cols]),
            self._norm[0].running_mean, self.kernels.sums, rows, channels, tiles, parts, depth,
            block_rows=tiling.rows, block_cols=tiling.cols, block_depth=tiling.depth,
            even=rows % tiling.rows == 0, bands=tiling.warps,
            num_warps=tiling.warps, num_stages=tiling.stages,
        )  # fmt: skip
        return y

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"takes sums, {self.tiling}"


def takes(conv: nn.Module) -> bool:
    """Whether a layer is a product of matrices that the kernel could compute on this GPU."""
    return (
        isinstance(conv, nn.Conv2d)
        and conv.kernel_size == (1, 1)
        and conv.stride == (1, 1)
        and conv.padding == (0, 0)
        and conv.groups == 1
        and conv.bias is None
        and any(True for _ in _tilings(conv))
        and torch.version.hip is None
        and torch.cuda.get_device_capability(conv.weight.device) >= TILE_COPIES
        and find_spec("triton.tools.tensor_descriptor") is not None  # since Triton 3.4
    )


def choose(conv: nn.Conv2d, op: FusedNorm, own: Kernels, x: Tensor) -> SummedConv | None:
    """In place of `conv`, for inputs like `x`, where that makes both forward passes together
    faster than PyTorch's convolution with `own`, the kernels of the normalisation `op` that take
    the sums themselves; None elsewhere. Running statistics of `op` hold anything after it."""
    from triton.runtime.errors import OutOfResources

    if x.dtype not in NARROW or not x.is_contiguous(memory_format=torch.channels_last):
        return None
    x = torch.randn_like(x)
    weight = conv.weight.detach().to(x.dtype)
    y = torch.conv2d(x, weight)
    residual = torch.randn_like(y) if op.adds else None
    made = own.forward_calls(y, residual, op.norm)
    apart_ms = time_ms(lambda: torch.conv2d(x, weight)) + time_ms(made.run)
    products = {}
    for tiling in _tilings(conv):
        one = SummedConv(conv, op.norm, own.after_sums(own.plans[0][-1]), tiling)
        with suppress(OutOfResources):  # this GPU has less shared memory
            products[tiling] = time_ms(lambda one=one: one.product(x, weight))  # type: ignore[misc]
    if not products:
        return None
    rests = {}
    for launch in for_the_rest(y.shape[1]):
        calls = own.after_sums(launch).forward_calls(y, residual, op.norm)
        rests[launch] = time_ms(calls.run)
    tiling, launch = _least(products), _least(rests)
    if products[tiling] + rests[launch] >= apart_ms:
        return None
    return SummedConv(conv, op.norm, own.after_sums(launch), tiling)


def _tilings(conv: nn.Conv2d) -> Iterator[Tiling]:
    """Those that divide the product of a layer."""
    for tiling in TILINGS:
        if not conv.out_channels % tiling.cols and not conv.in_channels % tiling.depth:
            yield tiling


def _least(times: dict[T, float]) -> T:
    return min(times, key=lambda one: times[one])


def _as_matrix(image: Tensor) -> Tensor:
    """(batch, channels, height, width) in channels-last → the same memory as (rows, channels)."""
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])
