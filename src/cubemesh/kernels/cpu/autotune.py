"""Autotuner for a CPU: the fastest way to compute each fusion, for its shapes.

Each is timed forward and backward on the array that the layer receives: PyTorch's own operations
and the kernels, interleaved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn

from cubemesh.kernels.cpu import conv_batch_norm, cpu_kernels, winograd
from cubemesh.kernels.cpu.conv_batch_norm import FusedConvBatchNorm
from cubemesh.kernels.cpu.cpu_kernels import CpuBatchNorm
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.kernels.fused.conv import PASSES, FusedConv, Pass
from cubemesh.kernels.fused.dropout import FusedDropout, usable
from cubemesh.kernels.fused.pool import FusedMaxPool

TIMES = 3
"""Runs of each way; the minimum counts."""

Setting = Callable[[], None]
"""Sets an operation to one of its ways."""


class CpuAutotuner:
    """Chooses how operations run; those of the same kind and shape run alike."""

    def __init__(self) -> None:
        self._found: dict[object, int] = {}
        self._fused: dict[object, bool] = {}
        """Whether a convolution and the batch normalization after it are faster as one."""
        self._passes: dict[object, frozenset[Pass]] = {}
        """Of convolutions, the passes that run by the alternative algorithm."""
        self.unavailable_reason = ""
        """Why kernels are unavailable, where some could have been used."""

    def choose(self, op: nn.Module, x: Tensor, *, network_input: bool = False) -> None:
        """Set `op`, which receives arrays like `x`, to its fastest way; `network_input`: x is the
        network's own input and needs no gradient. Running statistics are undefined afterwards."""
        key: tuple[object, ...]
        if isinstance(op, FusedBatchNorm) and self._usable(x):
            key = (FusedBatchNorm, x.shape, op.add, op.relu, min(op.readers, 2))
            kernels = CpuBatchNorm(shape=x.shape, add=op.add, relu=op.relu)
            self._choose(
                key, _ways(op, kernels), lambda: _norm_passes(op, op, x, x if op.add else None)
            )
        elif isinstance(op, FusedMaxPool) and op.usable and self._usable(x):
            key = (FusedMaxPool, x.shape, str(op.pool), op.relu)
            self._choose(key, _ways(op, True), lambda: _passes(op, x, []))
        elif isinstance(op, FusedDropout) and usable(x) and self._compiled(cpu_kernels):
            key = (FusedDropout, x.shape, op.own.p)
            self._choose(key, _ways(op, True), lambda: _passes(op, x, []))
        elif isinstance(op, FusedConv) and x.dtype == torch.float32 and not autocast_enabled():
            key = (FusedConv, x.shape, x.stride(), str(op.conv), op.relu)
            own = list(op.conv.parameters())
            if op.relu:
                self._choose(key, _ways(op, True), lambda: _passes(op, x, own, network_input))
            if op.algorithm is not None and self._supports(op.algorithm, x):
                if key not in self._passes:
                    self._passes[key] = faster_passes(op, x, network_input)
                op.alternative_passes = self._passes[key]

    def fused_conv_batch_norm(
        self, conv: nn.Module, norm: nn.Module, x: Tensor
    ) -> FusedConvBatchNorm | None:
        """A convolution of arrays like `x` and the batch normalization that is its only reader as
        one operation, if that is faster than the two as set by `choose`; else None."""
        if not (isinstance(conv, FusedConv) and isinstance(norm, FusedBatchNorm)):
            return None
        supported = conv_batch_norm.supports(conv, x) and not autocast_enabled()
        if not supported or not self._compiled(conv_batch_norm):
            return None
        both = FusedConvBatchNorm(conv, norm, x.shape)
        key = (x.shape, str(conv.conv), norm.add, norm.relu, min(norm.readers, 2))
        if key not in self._fused:
            self._fused[key] = fused_is_faster(both, x)
        return both if self._fused[key] else None

    def _supports(self, algorithm: ModuleType, x: Tensor) -> bool:
        """Whether an algorithm for convolutions accepts x."""
        if algorithm is winograd:
            return cpu_kernels.usable(x) and self._compiled(winograd)
        return x.is_contiguous(memory_format=torch.channels_last)

    def _usable(self, x: Tensor) -> bool:
        """Whether the kernels accept x; compiles them when first needed."""
        return cpu_kernels.usable(x) and self._compiled(cpu_kernels)

    def _compiled(self, kernels: ModuleType) -> bool:
        if not self.unavailable_reason:
            try:
                kernels.library()
            except OSError as error:
                self.unavailable_reason = str(error)
        return not self.unavailable_reason

    def _choose(self, key: object, ways: Sequence[Setting], run: Callable[[], None]) -> None:
        if key not in self._found:
            times_s = fastest_s(ways, run)
            self._found[key] = times_s.index(min(times_s))
        ways[self._found[key]]()


def autocast_enabled() -> bool:
    """Whether autocast computes convolutions in 16 bits."""
    return torch.is_autocast_enabled("cpu")


def fastest_s(ways: Sequence[Setting], run: Callable[[], object]) -> list[float]:
    """Seconds of a run in each way, interleaved: the minimum of `TIMES` after one warm-up. With one
    thread it is processor time, which other programs disturb less."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(TIMES + 1):
        for way, times in zip(ways, found, strict=True):
            way()
            start = clock()
            run()
            times.append(clock() - start)
    return [min(times[1:]) for times in found]


def faster_passes(op: FusedConv, x: Tensor, network_input: bool) -> frozenset[Pass]:
    """The passes of a convolution in which its alternative algorithm is faster."""
    op.alternative_passes = frozenset()
    grad_output = op.result(x)  # in the right layout
    wanted_of: dict[Pass, tuple[bool, bool, bool]] = {
        "input": (True, False, False),
        "weight": (False, True, op.conv.bias is not None),
    }
    found: list[Pass] = []
    for name in PASSES:
        if name not in op.supported_passes or (name == "input" and network_input):
            continue
        ways = [partial(setattr, op, "alternative_passes", frozenset(own)) for own in ((), (name,))]
        if name == "result":
            own_s, other_s = fastest_s(ways, lambda: op.result(x))
        else:
            wanted = wanted_of[name]
            own_s, other_s = fastest_s(ways, partial(op.gradients, grad_output, x, wanted))
        if other_s < own_s:
            found.append(name)
    return frozenset(found)


def fused_is_faster(both: FusedConvBatchNorm, x: Tensor) -> bool:
    """Whether a convolution with its normalization is faster as one, forward and backward."""
    shape = both.shape
    residual = torch.empty_like(both.conv(x)) if both.norm.add else None
    ways = [partial(setattr, both, "shape", own) for own in (torch.Size(()), shape)]
    separate_s, fused_s = fastest_s(ways, lambda: _norm_passes(both, both.norm, x, residual))
    both.shape = shape
    return fused_s < separate_s


def _ways(
    op: FusedBatchNorm | FusedMaxPool | FusedConv | FusedDropout, kernels: object
) -> list[Setting]:
    """PyTorch's own operations, and `kernels`."""
    own = None if isinstance(op, FusedBatchNorm) else False
    return [partial(setattr, op, "kernels", way) for way in (own, kernels)]


def _norm_passes(op: nn.Module, norm: FusedBatchNorm, x: Tensor, residual: Tensor | None) -> None:
    """Both passes of `op`, which ends in the batch normalization `norm`."""
    with torch.enable_grad():
        leaves = [a.detach().requires_grad_() for a in (x, residual) if a is not None]
        results = op(*leaves)[:2]
        grad_output = results[0].detach()
        torch.autograd.grad(results, [*leaves, *op.parameters()], [grad_output for _ in results])


def _passes(
    op: nn.Module, x: Tensor, wanted: Sequence[Tensor], network_input: bool = False
) -> None:
    with torch.enable_grad():
        leaves = x.detach().requires_grad_(not network_input)
        result = op(leaves)
        grad_output = result.detach()  # in the right layout, and already there
        torch.autograd.grad(result, [*([] if network_input else [leaves]), *wanted], grad_output)
