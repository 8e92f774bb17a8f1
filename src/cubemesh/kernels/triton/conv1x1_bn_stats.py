"""1×1 convolution on a GPU that also computes the sums of the batch normalization after it.

The kernel is `conv1x1_bn_stats_kernel.py`; gradients are PyTorch's own. Its tiling, and whether it
is faster than a batch normalization that computes its own sums, is measured on arrays of the run's
shapes. The backward pass is the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeVar

import torch
from torch import Tensor, nn

from cubemesh.kernels.cuda_events import time_ms
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.kernels.fused.side_stream import SideStream, convolve
from cubemesh.kernels.triton.batch_norm.autotune import apply_candidates
from cubemesh.kernels.triton.batch_norm.launch import TritonBatchNorm

T = TypeVar("T")
LOW_PRECISION = (torch.bfloat16, torch.float16)
TENSOR_DESCRIPTORS = (9, 0)
"""The first compute capability that copies tiles by tensor descriptor (TMA)."""


@dataclass(frozen=True, kw_only=True)
class MatmulTiling:
    """Tile sizes of the product, and its programs per multiprocessor."""

    rows: int
    cols: int
    depth: int
    stages: int
    warps: int
    programs: int
    """Per multiprocessor."""

    def __str__(self) -> str:
        return (
            f"{self.rows}×{self.cols}×{self.depth}, {self.stages} stages, {self.warps} warps, "
            f"{self.programs} per multiprocessor"
        )


TILINGS = (
    MatmulTiling(rows=128, cols=64, depth=64, stages=3, warps=4, programs=2),
    MatmulTiling(rows=128, cols=64, depth=64, stages=4, warps=4, programs=2),
    MatmulTiling(rows=128, cols=64, depth=64, stages=4, warps=4, programs=4),
)
"""The fastest of some sixty for ResNet-50's shapes on an H200 (benchmarks/LOG.md)."""


class Conv1x1WithStats(nn.Module):
    """conv(x), and the sums that `kernels` need to normalize it; `conv` owns the weight."""

    def __init__(
        self, conv: nn.Conv2d, norm: nn.BatchNorm2d, kernels: TritonBatchNorm, tiling: MatmulTiling
    ) -> None:
        super().__init__()
        self.conv, self.kernels, self.tiling = conv, kernels, tiling
        self._norm = (norm,)  # in a tuple: not a submodule

    def forward(
        self, x: Tensor, weight: Tensor | None = None, side_stream: SideStream | None = None
    ) -> Tensor:
        """(batch, channels, height, width) → (batch, filters, height, width), with `weight` in
        place of its own if given; the gradient of the weight is computed on `side_stream`."""
        weight = self.conv.weight if weight is None else weight
        like = (len(x), self.conv.out_channels, *x.shape[2:])
        if like != tuple(self.kernels.shape):  # then the normalization computes its own sums too
            return convolve(x, weight, self.conv, side_stream)
        return convolve(x, weight, self.conv, side_stream, self.product)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """The forward pass, of arrays of one 16-bit type; adds to the sums."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        from cubemesh.kernels.triton.conv1x1_bn_stats_kernel import conv1x1_bn_stats_kernel

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
        parts = min(tiles, max(1, tiling.programs * processors // slices))
        by = TensorDescriptor.from_tensor
        conv1x1_bn_stats_kernel[(parts * slices,)](
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
        return f"computes sums, {self.tiling}"


def supports(conv: nn.Module) -> bool:
    """Whether the kernel can compute a layer on this GPU."""
    return (
        isinstance(conv, nn.Conv2d)
        and conv.kernel_size == (1, 1)
        and conv.stride == (1, 1)
        and conv.padding == (0, 0)
        and conv.groups == 1
        and conv.bias is None
        and any(True for _ in _tilings(conv))
        and torch.version.hip is None
        and torch.cuda.get_device_capability(conv.weight.device) >= TENSOR_DESCRIPTORS
        and find_spec("triton.tools.tensor_descriptor") is not None  # since Triton 3.4
    )


def faster_with_stats(
    conv: nn.Conv2d, op: FusedBatchNorm, own: TritonBatchNorm, x: Tensor
) -> Conv1x1WithStats | None:
    """The replacement of `conv` for inputs like `x`, if convolution and normalization are faster
    forward than PyTorch's convolution with `own`, the kernels of the normalization `op` that
    compute the sums themselves; else None. Running statistics of `op` are undefined afterwards."""
    from triton.runtime.errors import OutOfResources

    if x.dtype not in LOW_PRECISION or not x.is_contiguous(memory_format=torch.channels_last):
        return None
    x = torch.randn_like(x)
    weight = conv.weight.detach().to(x.dtype)
    y = torch.conv2d(x, weight)
    residual = torch.randn_like(y) if op.add else None
    separate = own.forward_calls(y, residual, op.norm)
    separate_ms = time_ms(lambda: torch.conv2d(x, weight)) + time_ms(separate.run)
    products = {}
    for tiling in _tilings(conv):
        one = Conv1x1WithStats(conv, op.norm, own.after_conv_stats(own.plans[0][-1]), tiling)
        with suppress(OutOfResources):  # less shared memory on this GPU
            products[tiling] = time_ms(lambda one=one: one.product(x, weight))  # type: ignore[misc]
    if not products:
        return None
    rests = {}
    for launch in apply_candidates(y.shape[1]):
        calls = own.after_conv_stats(launch).forward_calls(y, residual, op.norm)
        rests[launch] = time_ms(calls.run)
    tiling, launch = _fastest(products), _fastest(rests)
    if products[tiling] + rests[launch] >= separate_ms:
        return None
    return Conv1x1WithStats(conv, op.norm, own.after_conv_stats(launch), tiling)


def _tilings(conv: nn.Conv2d) -> Iterator[MatmulTiling]:
    """Those that divide a layer's product."""
    for tiling in TILINGS:
        if not conv.out_channels % tiling.cols and not conv.in_channels % tiling.depth:
            yield tiling


def _fastest(times: dict[T, float]) -> T:
    return min(times, key=lambda one: times[one])


def _as_matrix(image: Tensor) -> Tensor:
    """(batch, channels, height, width) in channels-last → the same memory as (rows, channels)."""
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])
