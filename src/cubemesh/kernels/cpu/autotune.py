"""On this CPU and for these shapes, which way to compute a fusion is the fastest?

Each is timed forward and backward on the array the layer is given, as PyTorch's own operations and
as the kernels in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused.batch_norm import FusedNorm
from cubemesh.frameworks.pytorch.fused.conv import PASSES, FusedConv, Pass
from cubemesh.frameworks.pytorch.fused.dropout import FusedDropout, usable
from cubemesh.frameworks.pytorch.fused.pool import FusedPool
from cubemesh.kernels.cpu import conv_batch_norm as conv_norm
from cubemesh.kernels.cpu import cpu_kernels as host_kernels
from cubemesh.kernels.cpu import winograd
from cubemesh.kernels.cpu.conv_batch_norm import ConvNorm
from cubemesh.kernels.cpu.cpu_kernels import HostNorm

TIMES = 3
"""Of each way; the fastest counts."""

Setting = Callable[[], None]
"""Sets an operation to one of its ways."""


class HostTuning:
    """Chooses how operations run, those of the same kind and shape alike."""

    def __init__(self) -> None:
        self._found: dict[object, int] = {}
        self._as_one: dict[object, bool] = {}
        """Whether a convolution and the normalisation after it are faster as one."""
        self._passes: dict[object, frozenset[Pass]] = {}
        """Those of convolutions that run by another algorithm."""
        self.lack = ""
        """Why there are no kernels, where some could have been used."""

    def choose(self, op: nn.Module, x: Tensor, *, fed: bool = False) -> None:
        """Set `op`, which is given arrays like `x`, to its fastest way; `fed` says that x is what
        the network is fed, which needs no gradient. Running statistics hold anything after it."""
        key: tuple[object, ...]
        if isinstance(op, FusedNorm) and self._usable(x):
            key = (FusedNorm, x.shape, op.adds, op.rectifies, min(op.readers, 2))
            kernels = HostNorm(shape=x.shape, adds=op.adds, rectifies=op.rectifies)
            self._choose(
                key, _ways(op, kernels), lambda: _norm_passes(op, op, x, x if op.adds else None)
            )
        elif isinstance(op, FusedPool) and op.usable and self._usable(x):
            key = (FusedPool, x.shape, str(op.pool), op.rectifies)
            self._choose(key, _ways(op, True), lambda: _passes(op, x, []))
        elif isinstance(op, FusedDropout) and usable(x) and self._compiled(host_kernels):
            key = (FusedDropout, x.shape, op.own.p)
            self._choose(key, _ways(op, True), lambda: _passes(op, x, []))
        elif isinstance(op, FusedConv) and x.dtype == torch.float32 and not narrow():
            key = (FusedConv, x.shape, x.stride(), str(op.conv), op.rectifies)
            own = list(op.conv.parameters())
            if op.rectifies:
                self._choose(key, _ways(op, True), lambda: _passes(op, x, own, fed))
            if op.other is not None and self._able(op.other, x):
                if key not in self._passes:
                    self._passes[key] = faster_passes(op, x, fed)
                op.by_other = self._passes[key]

    def joined(self, conv: nn.Module, norm: nn.Module, x: Tensor) -> ConvNorm | None:
        """A convolution of arrays like `x` and the normalisation that alone reads what it makes as
        one operation, where that is faster than the two as `choose` has set them."""
        wanted = isinstance(norm, FusedNorm) and conv_norm.takes(conv, x) and not narrow()
        if not wanted or not self._compiled(conv_norm):
            return None
        assert isinstance(conv, FusedConv)
        assert isinstance(norm, FusedNorm)
        both = ConvNorm(conv, norm, x.shape)
        key = (x.shape, str(conv.conv), norm.adds, norm.rectifies, min(norm.readers, 2))
        if key not in self._as_one:
            self._as_one[key] = faster_as_one(both, x)
        return both if self._as_one[key] else None

    def _able(self, algorithm: ModuleType, x: Tensor) -> bool:
        """Whether an algorithm for convolutions can take x."""
        if algorithm is winograd:
            return host_kernels.usable(x) and self._compiled(winograd)
        return x.is_contiguous(memory_format=torch.channels_last)

    def _usable(self, x: Tensor) -> bool:
        """Whether kernels can take x; they are compiled when some first could."""
        return host_kernels.usable(x) and self._compiled(host_kernels)

    def _compiled(self, kernels: ModuleType) -> bool:
        if not self.lack:
            try:
                kernels.library()
            except OSError as error:
                self.lack = str(error)
        return not self.lack

    def _choose(self, key: object, ways: Sequence[Setting], run: Callable[[], None]) -> None:
        if key not in self._found:
            taken_s = fastest_s(ways, run)
            self._found[key] = taken_s.index(min(taken_s))
        ways[self._found[key]]()


def narrow() -> bool:
    """Whether an autocast would compute convolutions in 16 bits."""
    return torch.is_autocast_enabled("cpu")


def fastest_s(ways: Sequence[Setting], run: Callable[[], object]) -> list[float]:
    """Seconds of a run in each way, in turn and the least of `TIMES`, after one that does not
    count. One thread's are of processor time, which others on the machine lengthen less."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(TIMES + 1):
        for way, times in zip(ways, found, strict=True):
            way()
            start = clock()
            run()
            times.append(clock() - start)
    return [min(times[1:]) for times in found]


def faster_passes(op: FusedConv, x: Tensor, fed: bool) -> frozenset[Pass]:
    """Those of a convolution that its other algorithm is faster at."""
    op.by_other = frozenset()
    slope = op.result(x)  # of the right layout
    asked: dict[Pass, tuple[bool, bool, bool]] = {
        "input": (True, False, False),
        "weight": (False, True, op.conv.bias is not None),
    }
    found: list[Pass] = []
    for name in PASSES:
        if name not in op.offered or (name == "input" and fed):
            continue
        ways = [partial(setattr, op, "by_other", frozenset(own)) for own in ((), (name,))]
        if name == "result":
            own_s, other_s = fastest_s(ways, lambda: op.result(x))
        else:
            wanted = asked[name]
            own_s, other_s = fastest_s(ways, partial(op.gradients, slope, x, wanted))
        if other_s < own_s:
            found.append(name)
    return frozenset(found)


def faster_as_one(both: ConvNorm, x: Tensor) -> bool:
    """Whether a convolution with its normalisation is, forward and backward."""
    shape = both.shape
    residual = torch.empty_like(both.conv(x)) if both.norm.adds else None
    ways = [partial(setattr, both, "shape", own) for own in (torch.Size(()), shape)]
    apart_s, as_one_s = fastest_s(ways, lambda: _norm_passes(both, both.norm, x, residual))
    both.shape = shape
    return as_one_s < apart_s


def _ways(op: FusedNorm | FusedPool | FusedConv | FusedDropout, kernels: object) -> list[Setting]:
    """PyTorch's own operations, and `kernels`."""
    own = None if isinstance(op, FusedNorm) else False
    return [partial(setattr, op, "kernels", way) for way in (own, kernels)]


def _norm_passes(op: nn.Module, norm: FusedNorm, x: Tensor, residual: Tensor | None) -> None:
    """Both passes of `op`, which ends in the normalisation `norm`."""
    with torch.enable_grad():
        given = [a.detach().requires_grad_() for a in (x, residual) if a is not None]
        results = op(*given)[:2]
        slope = results[0].detach()
        torch.autograd.grad(results, [*given, *op.parameters()], [slope for _ in results])


def _passes(op: nn.Module, x: Tensor, wanted: Sequence[Tensor], fed: bool = False) -> None:
    with torch.enable_grad():
        given = x.detach().requires_grad_(not fed)
        result = op(given)
        slope = result.detach()  # of the right layout, and made already
        torch.autograd.grad(result, [*([] if fed else [given]), *wanted], slope)
