"""Autotuner for a GPU: the fastest way to compute each layer and fusion, for its shapes.

Each is timed on arrays of the shapes it receives. Kernels and replacements are applied after all
have been timed; until then each receives what PyTorch's own operations compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from cubemesh.kernels.cuda_events import both_passes_ms
from cubemesh.kernels.fused.additive_attention import MOST_VALUES, FusedAttentionScores
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.kernels.fused.conv_relu import FusedConvRelu, Method
from cubemesh.kernels.fused.pool import FusedAveragePool, FusedMaxPool
from cubemesh.kernels.fused.space_to_depth_conv import SpaceToDepthConv, can_fold
from cubemesh.kernels.triton import conv1x1_bn_stats
from cubemesh.kernels.triton.batch_norm import autotune as batch_norm_autotune
from cubemesh.kernels.triton.batch_norm.launch import SUMS, TritonBatchNorm
from cubemesh.kernels.triton.conv1x1_bn_stats import Conv1x1WithStats, MatmulTiling

CHANNELS = 16
"""The kernels need channels in multiples of this."""


class GpuAutotuner:
    """Chooses how operations run; those of the same kind and shape run alike, also in other
    networks of this process."""

    _kernels_of_shape: ClassVar[dict[object, TritonBatchNorm | None]] = {}
    _convs_of_shape: ClassVar[dict[object, tuple[TritonBatchNorm, MatmulTiling] | None]] = {}
    _methods_of_shape: ClassVar[dict[object, tuple[Method, bool]]] = {}

    def __init__(self, operations: list[nn.Module], producers: Mapping[int, int]) -> None:
        """`producers`: number of an operation → of the one whose result only it reads."""
        self._operations, self._producers = operations, producers
        self._conv_inputs: dict[int, Tensor] = {}
        """Number of a convolution that could compute sums → an array like its input."""
        self._replacements: dict[int, nn.Module] = {}
        self._kernels: dict[int, TritonBatchNorm | None] = {}
        """Those of each batch normalization."""

    def choose(self, number: int, given: Sequence[Tensor], *, network_input: bool) -> None:
        """Choose the fastest way for an operation that receives arrays like these; `network_input`:
        they are the network's own input. Running statistics are undefined afterwards."""
        op, x = self._operations[number], given[0]
        if isinstance(op, FusedBatchNorm) and usable(x):
            self._choose_batch_norm(number, op, x)
        elif isinstance(op, FusedMaxPool | FusedAveragePool) and usable(x) and op.usable:
            op.kernels = _faster(partial(_run, op, True, x), partial(_run, op, False, x), x)
        elif isinstance(op, FusedAttentionScores) and op.usable(*given):
            fused, own = (partial(_run, op, kernels, *given) for kernels in (True, False))
            op.kernels = _faster(fused, own, *given, op.product.weight)
        elif isinstance(op, FusedConvRelu) and channels_last_floats(x):
            self._choose_conv_relu(op, x, network_input)
        elif isinstance(op, nn.Conv2d) and network_input:
            size = (x.shape[2], x.shape[3])
            if can_fold(op, size) and x.is_contiguous(memory_format=torch.channels_last):
                folded = SpaceToDepthConv(op, size)
                if _faster(partial(folded, x), partial(op, x), op.weight):
                    self._replacements[number] = folded
        elif number in self._producers.values() and conv1x1_bn_stats.supports(op):
            self._conv_inputs[number] = torch.empty_like(x, device="meta")

    def _choose_conv_relu(self, op: FusedConvRelu, x: Tensor, network_input: bool) -> None:
        conv, size = op.conv, (x.shape[2], x.shape[3])
        key = (x.device, x.shape, x.dtype, network_input, repr(conv), repr(op.pool))
        folded = SpaceToDepthConv(conv, size) if network_input and can_fold(conv, size) else None
        if key not in self._methods_of_shape:
            wanted = [*conv.parameters(), *([] if network_input else [x])]
            found: dict[tuple[Method, bool], float] = {}
            for method in op.methods:
                for folds in (False, True) if folded and method != "cudnn" else (False,):
                    op.method, op.folded = method, folded if folds else None
                    found[method, folds] = _milliseconds(partial(op, x), *wanted)
            self._methods_of_shape[key] = min(found, key=lambda way: found[way])
        op.method, folds = self._methods_of_shape[key]
        op.folded = folded if folds else None

    def _choose_batch_norm(self, number: int, op: FusedBatchNorm, x: Tensor) -> None:
        key = (x.device, x.shape, x.dtype, op.add, op.relu, min(op.readers, 2))
        if key not in self._kernels_of_shape:
            found = batch_norm_autotune.fastest_kernels(op, torch.empty_like(x))
            self._kernels_of_shape[key] = found
        own = self._kernels_of_shape[key]
        self._kernels[number] = None if own is None else own.copy()
        producer = self._producers.get(number, -1)
        if own is None or producer not in self._conv_inputs:
            return
        conv, like = self._operations[producer], self._conv_inputs[producer]
        assert isinstance(conv, nn.Conv2d)
        both = (like.shape, *key)
        if both not in self._convs_of_shape:
            given = torch.empty_like(like, device=x.device)
            with_stats = conv1x1_bn_stats.faster_with_stats(conv, op, own, given)
            self._convs_of_shape[both] = (
                None if with_stats is None else (with_stats.kernels, with_stats.tiling)
            )
        chosen = self._convs_of_shape[both]
        if chosen is not None:
            self._kernels[number] = kernels = chosen[0].copy()
            self._replacements[producer] = Conv1x1WithStats(conv, op.norm, kernels, chosen[1])

    def finish(self) -> Tensor | None:
        """Apply all choices. Returns the sums of all kernels in one array, to be zeroed before each
        forward pass; None where no kernel is used."""
        for number, op in self._replacements.items():
            self._operations[number] = op
        for number, own in self._kernels.items():
            norm = self._operations[number]
            assert isinstance(norm, FusedBatchNorm)
            norm.kernels = own
        kernels = [one for one in self._kernels.values() if one is not None]
        if not kernels:
            return None
        widths = [SUMS * one.shape[1] for one in kernels]
        sums = torch.zeros(sum(widths), device=kernels[0].sums.device)
        for one, part in zip(kernels, torch.split(sums, widths), strict=True):
            one.sums, one.zeroes_sums = part.view(SUMS, -1), False
        return sums


def usable(x: Tensor) -> bool:
    """Whether the kernels accept an array: channels-last, of 16- or 32-bit floats."""
    return channels_last_floats(x) and x.shape[1] % CHANNELS == 0


def channels_last_floats(x: Tensor) -> bool:
    """The same for any number of channels."""
    return (
        x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() < MOST_VALUES
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    )


def _run(
    op: FusedMaxPool | FusedAveragePool | FusedAttentionScores, kernels: bool, *given: Tensor
) -> Tensor:
    op.kernels = kernels
    return op(*given)  # type: ignore[no-any-return]


def _faster(one: Callable[[], Tensor], other: Callable[[], Tensor], *wanted: Tensor) -> bool:
    """Whether `one` is faster than `other`, forward and backward, for the gradients of `wanted`."""
    return _milliseconds(one, *wanted) < _milliseconds(other, *wanted)


def _milliseconds(run: Callable[[], Tensor], *wanted: Tensor) -> float:
    """Of both passes, for the gradients of `wanted`; infinity where the memory does not suffice, or
    a library does not support the operation."""
    required = [array.requires_grad for array in wanted]
    for array in wanted:
        array.requires_grad_()
    try:
        return sum(both_passes_ms(run, wanted))
    except RuntimeError:
        return math.inf
    finally:
        for array, before in zip(wanted, required, strict=True):
            array.requires_grad_(before)
