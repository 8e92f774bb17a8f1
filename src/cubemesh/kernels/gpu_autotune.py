"""On this GPU and for these shapes, which way to compute a layer or a fusion is the fastest?

Each is timed on arrays of the shapes it is given. Normalisations get their kernels, and layers what
replaces them, when all have been gone through: until then each is given what PyTorch's own
operations make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.fused.additive_attention import TILINGS, FusedScores, Tiling
from cubemesh.frameworks.pytorch.fused.batch_norm import FusedNorm
from cubemesh.frameworks.pytorch.fused.pool import FusedPool
from cubemesh.frameworks.pytorch.fused.space_to_depth_conv import DepthConv, folds
from cubemesh.kernels.cuda_events import both_passes_ms
from cubemesh.kernels.triton import batch_norm_autotune as norm_choice
from cubemesh.kernels.triton import conv1x1_bn_stats as summed_conv
from cubemesh.kernels.triton.batch_norm_op import SUMS, Kernels
from cubemesh.kernels.triton.conv1x1_bn_stats import SummedConv

MOST_VALUES = 2**31
"""Of an array that the kernels can index."""
CHANNELS = 16
"""The kernels take channels in multiples of this."""


class GpuTuning:
    """Chooses how operations run, those of the same kind and shape alike."""

    def __init__(self, operations: list[nn.Module], makers: Mapping[int, int]) -> None:
        """`makers`: number of an operation → of the one that makes its input for it alone."""
        self._operations, self._makers = operations, makers
        self._norms: dict[object, Kernels | None] = {}
        self._summing: dict[object, SummedConv | None] = {}
        self._products: dict[int, Tensor] = {}
        """Number of a convolution that could take sums → an array like its input."""
        self._in_place: dict[int, nn.Module] = {}
        """What replaces an operation."""
        self._kernels: dict[int, Kernels | None] = {}
        """Those of each normalisation."""

    def choose(self, number: int, given: Sequence[Tensor], *, fed: bool) -> None:
        """Set an operation, which is given arrays like these, to its fastest way; `fed` says that
        they are what the network is fed. Running statistics hold anything after it."""
        op, x = self._operations[number], given[0]
        if isinstance(op, FusedNorm) and usable(x):
            self._choose_norm(number, op, x)
        elif isinstance(op, FusedPool) and usable(x) and op.usable:
            op.kernels = _faster(partial(_pooled, op, x, True), partial(_pooled, op, x, False), x)
        elif isinstance(op, FusedScores) and op.usable(*given):
            op.tiling = _fastest_tiling(op, given)
        elif isinstance(op, nn.Conv2d) and fed:
            size = (x.shape[2], x.shape[3])
            if folds(op, size) and x.is_contiguous(memory_format=torch.channels_last):
                folded = DepthConv(op, size)
                if _faster(partial(folded, x), partial(op, x), op.weight):
                    self._in_place[number] = folded
        elif number in self._makers.values() and summed_conv.takes(op):
            self._products[number] = torch.empty_like(x, device="meta")

    def _choose_norm(self, number: int, op: FusedNorm, x: Tensor) -> None:
        key = (x.shape, x.dtype, op.adds, op.rectifies, min(op.readers, 2))
        if key not in self._norms:
            self._norms[key] = norm_choice.choose(op, torch.empty_like(x))
        own = self._norms[key]
        self._kernels[number] = None if own is None else own.another()
        maker = self._makers.get(number, -1)
        if own is None or maker not in self._products:
            return
        conv, like = self._operations[maker], self._products[maker]
        assert isinstance(conv, nn.Conv2d)
        both = (like.shape, *key)
        if both not in self._summing:
            given = torch.empty_like(like, device=x.device)
            self._summing[both] = summed_conv.choose(conv, op, own, given)
        found = self._summing[both]
        if found is not None:
            self._kernels[number] = kernels = found.kernels.another()
            self._in_place[maker] = SummedConv(conv, op.norm, kernels, found.tiling)

    def finish(self) -> Tensor | None:
        """Put in place what replaces layers. The sums of all kernels, which are to be cleared
        before each forward pass; None where there are none."""
        for number, op in self._in_place.items():
            self._operations[number] = op
        for number, own in self._kernels.items():
            norm = self._operations[number]
            assert isinstance(norm, FusedNorm)
            norm.kernels = own
        kernels = [one for one in self._kernels.values() if one is not None]
        if not kernels:
            return None
        widths = [SUMS * one.shape[1] for one in kernels]
        sums = torch.zeros(sum(widths), device=kernels[0].sums.device)
        for one, part in zip(kernels, torch.split(sums, widths), strict=True):
            one.sums, one.clears = part.view(SUMS, -1), False
        return sums


def usable(x: Tensor) -> bool:
    """Whether the kernels can take an array: channels last, of 16- or 32-bit floats."""
    return (
        x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[1] % CHANNELS == 0
        and x.numel() < MOST_VALUES
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    )


def _pooled(op: FusedPool, x: Tensor, kernels: bool) -> Tensor:
    op.kernels = kernels
    return op(x)  # type: ignore[no-any-return]


def _fastest_tiling(op: FusedScores, given: Sequence[Tensor]) -> Tiling | None:
    """The tiling of the fastest kernels; None where PyTorch's own operations are faster."""
    wanted = [*given, op.product.weight]

    def scored(tiling: Tiling | None) -> Tensor:
        op.tiling = tiling
        return op(*given)  # type: ignore[no-any-return]

    ways = (None, *TILINGS)
    times = _times_ms([partial(scored, way) for way in ways], wanted)
    return ways[times.index(min(times))]


def _faster(one: Callable[[], Tensor], other: Callable[[], Tensor], wanted: Tensor) -> bool:
    """Whether `one` takes less than `other`, forward and backward, for the gradient of `wanted`."""
    times = _times_ms([one, other], [wanted])
    return times[0] < times[1]


def _times_ms(ways: Sequence[Callable[[], Tensor]], wanted: Sequence[Tensor]) -> list[float]:
    """What each takes, forward and backward, for the gradients of `wanted`."""
    asked = [array.requires_grad for array in wanted]
    for array in wanted:
        array.requires_grad_()
    times = [sum(both_passes_ms(run, wanted)) for run in ways]
    for array, before in zip(wanted, asked, strict=True):
        array.requires_grad_(before)
    return times
