"""Which kernels make a fused batch normalisation fastest, by trying them on arrays of its shape?

There is no rule worth trusting: an array may fit into the registers of the whole GPU, a slice at a
time, or not; a slice of few channels makes short reads, one of many needs many programs. So the
launches that fit are tried on arrays of the very shape, forward and backward by themselves, and
held against PyTorch's own operations. Those that tie are all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cubemesh.frameworks.pytorch.fused.batch_norm import FusedNorm
from cubemesh.kernels.cuda_events import both_passes_ms, time_ms
from cubemesh.kernels.triton.batch_norm_op import Kernels, Made
from cubemesh.kernels.triton.launch_config import (
    Call,
    Launch,
    Plan,
    as_size,
    for_sums,
    for_the_rest,
    together,
)

Piece = Literal["own", "whole", "sums", "rest"]
"""Of a pass: PyTorch's operations, one launch, the first of two, the second."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What a piece of a pass took."""

    piece: Piece
    launch: Launch | None
    ms: float


def choose(op: FusedNorm, x: Tensor) -> Kernels | None:
    """The fastest kernels for `op` on arrays like `x`; None where PyTorch's own operations, both
    passes together, take no longer. `x` is overwritten, and the running statistics of `op`."""
    forward, backward = measure(op, x)
    best = fastest(forward), fastest(backward)
    own_ms = sum(t.ms for t in (*forward, *backward) if t.piece == "own")
    if best[0] is None or best[1] is None or best[0][1] + best[1][1] >= own_ms:
        return None
    return kernels(op, x, best[0][0], best[1][0])


def fastest(tried: Sequence[Tried]) -> tuple[Plan, float] | None:
    """The plan of a pass that took the least, and its milliseconds; None where nothing fits."""
    least = {}
    for one in sorted(tried, key=lambda t: -t.ms):
        least[one.piece] = one
    plans = [[least[p] for p in pieces if p in least] for pieces in (("whole",), ("sums", "rest"))]
    whole = [p for p, n in zip(plans, (1, 2), strict=True) if len(p) == n]
    if not whole:
        return None
    best = min(whole, key=lambda p: sum(t.ms for t in p))
    return tuple(t.launch for t in best if t.launch is not None), sum(t.ms for t in best)


def measure(op: FusedNorm, x: Tensor) -> tuple[list[Tried], list[Tried]]:
    """(forward, backward): milliseconds of each launch that fits and of PyTorch's own operations,
    on random values in arrays like `x`."""
    x.normal_()
    residual, slopes = others(op, x)
    own = FusedNorm(op.norm, adds=op.adds, rectifies=op.rectifies, readers=1)
    given = x.detach().requires_grad_()
    wanted = [given, op.norm.weight, op.norm.bias]
    times = both_passes_ms(lambda: own(given, residual)[0], wanted, slopes)
    tried = tuple([Tried(piece="own", launch=None, ms=ms)] for ms in times)
    for which, piece, call in calls(op, x, residual, slopes):
        if call.fits(x.device):
            tried[which].append(Tried(piece=piece, launch=call.launch, ms=time_ms(call.run)))
    return tried[0], tried[1]


def calls(
    op: FusedNorm, x: Tensor, residual: Tensor | None, slopes: tuple[Tensor, ...]
) -> Iterator[tuple[int, Piece, Call]]:
    """(pass, piece, its call) of each launch worth trying, on given arrays."""
    safe = safest(x)
    kept = kernels(op, x, safe, safe).forward(x, residual, op.norm)[1]
    norm = (op.norm.weight.detach(), op.norm.bias.detach())

    def made(which: int, plan: Plan) -> Made:
        if which == 0:
            return kernels(op, x, plan, safe).forward_calls(x, residual, op.norm)
        return kernels(op, x, safe, plan).backward_calls(slopes, x, norm, kept)

    for which in (0, 1):
        for piece, plan in plans(x, which):
            yield which, piece, made(which, plan).calls[1 if piece == "rest" else 0]


def plans(x: Tensor, which: int) -> Iterator[tuple[Piece, Plan]]:
    """Those worth trying for the forward pass (0) or the backward pass (1): of two launches each
    piece by itself, beside the safest other."""
    rows, channels = as_size(x)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    first, second = safest(x)
    for launch in together(rows, channels, processors, arrays=which + 1):
        yield "whole", (launch,)
    for launch in for_sums(rows, channels, processors):
        yield "sums", (launch, second)
    for launch in for_the_rest(channels):
        yield "rest", (first, launch)


def others(op: FusedNorm, x: Tensor) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """A residual, where one is added, and the gradients of one reader or two."""
    residual = torch.randn_like(x) if op.adds else None
    return residual, tuple(torch.randn_like(x) for _ in range(min(op.readers, 2)))


def kernels(op: FusedNorm, x: Tensor, forward: Plan, backward: Plan) -> Kernels:
    """Those of `op` for arrays like `x`, by given plans."""
    both = (forward, backward)
    return Kernels(x.shape, x.device, both, adds=op.adds, rectifies=op.rectifies)


def safest(x: Tensor) -> Plan:
    """Two launches of small tiles, which fit anywhere."""
    rows, channels = as_size(x)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    *_, first = for_sums(rows, channels, processors)
    *_, second = for_the_rest(channels)
    return first, second
