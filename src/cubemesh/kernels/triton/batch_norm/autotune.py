"""Autotuner of fused batch normalization: the fastest launches, timed on arrays of the real shape.

No rule predicts the fastest: an array may or may not fit into the registers of the whole GPU, a
slice at a time; a slice of few channels makes short reads, one of many needs many programs. So all
launches that fit are timed on arrays of the shape, each pass by itself, and compared with PyTorch's
own operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from cubemesh.kernels.cuda_events import both_passes_ms, time_ms
from cubemesh.kernels.fused.batch_norm import FusedBatchNorm, SavedForBackward
from cubemesh.kernels.triton.batch_norm.launch import (
    Call,
    Launch,
    PassCalls,
    Plan,
    TritonBatchNorm,
    rows_and_channels,
)
from cubemesh.kernels.triton.compilation import compiling_in_threads

ONE_LAUNCH = ((8192, 8), (8192, 4), (2048, 4))
"""(values that a program holds in registers, warps): candidates for one launch."""
REDUCE = ((4096, 8), (2048, 4))
"""(values of a tile, warps): candidates for the first of two launches."""
REDUCE_PROGRAMS = (2, 4, 8)
"""Its programs per multiprocessor."""
APPLY = ((4096, 8), (2048, 4))
"""(values of a tile, warps): candidates for the second, one tile per program."""

Piece = Literal["pytorch", "one-launch", "reduce", "apply"]
"""Of a pass: PyTorch's operations, one launch, the first of two, the second."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The time of a piece of a pass."""

    piece: Piece
    launch: Launch | None
    ms: float


def fastest_kernels(op: FusedBatchNorm, x: Tensor) -> TritonBatchNorm | None:
    """The fastest kernels for `op` on arrays like `x`; None where PyTorch's own operations, both
    passes together, are as fast. Overwrites `x` and the running statistics of `op`."""
    forward, backward = time_candidates(op, x)
    best = fastest_plan(forward), fastest_plan(backward)
    pytorch_ms = sum(t.ms for t in (*forward, *backward) if t.piece == "pytorch")
    if best[0] is None or best[1] is None or best[0][1] + best[1][1] >= pytorch_ms:
        return None
    return make_kernels(op, x, best[0][0], best[1][0])


def fastest_plan(timings: Sequence[Timing]) -> tuple[Plan, float] | None:
    """The fastest plan of a pass, and its milliseconds; None where no candidate fits."""
    least = {}
    for one in sorted(timings, key=lambda t: -t.ms):
        least[one.piece] = one
    found = []
    plans: tuple[tuple[Piece, ...], ...] = (("one-launch",), ("reduce", "apply"))
    for pieces in plans:
        if all(piece in least for piece in pieces):
            found.append([least[piece] for piece in pieces])
    if not found:
        return None
    best = min(found, key=lambda plan: sum(t.ms for t in plan))
    return tuple(t.launch for t in best if t.launch is not None), sum(t.ms for t in best)


def time_candidates(op: FusedBatchNorm, x: Tensor) -> tuple[list[Timing], list[Timing]]:
    """(forward, backward): milliseconds of each launch that fits and of PyTorch's own operations,
    on random values in arrays like `x`."""
    x.normal_()
    residual, gradients = example_inputs(op, x)
    own = FusedBatchNorm(op.norm, add=op.add, relu=op.relu, readers=1)
    leaf = x.detach().requires_grad_()
    wanted = [leaf, op.norm.weight, op.norm.bias]
    times = both_passes_ms(lambda: own(leaf, residual)[0], wanted, gradients)
    timings = tuple([Timing(piece="pytorch", launch=None, ms=ms)] for ms in times)
    inputs = op, x, residual, gradients, saved_for_backward(op, x, residual)
    with compiling_in_threads():
        for *_, call in candidate_calls(*inputs):  # lazily: each has its own result arrays
            call.compile()
    for which, piece, call in candidate_calls(*inputs):
        if call.fits(x.device):
            timings[which].append(Timing(piece=piece, launch=call.launch, ms=time_ms(call.run)))
    return timings[0], timings[1]


def candidate_calls(
    op: FusedBatchNorm,
    x: Tensor,
    residual: Tensor | None,
    gradients: tuple[Tensor, ...],
    saved: SavedForBackward,
) -> Iterator[tuple[int, Piece, Call]]:
    """(pass, piece, its call) of each candidate, on given arrays."""
    default = default_plan(x)
    affine = (op.norm.weight.detach(), op.norm.bias.detach())

    def pass_calls(which: int, plan: Plan) -> PassCalls:
        if which == 0:
            return make_kernels(op, x, plan, default).forward_calls(x, residual, op.norm)
        return make_kernels(op, x, default, plan).backward_calls(gradients, x, affine, saved)

    for which in (0, 1):
        for piece, plan in candidate_plans(x, which):
            yield which, piece, pass_calls(which, plan).calls[1 if piece == "apply" else 0]


def candidate_plans(x: Tensor, which: int) -> Iterator[tuple[Piece, Plan]]:
    """The candidates for the forward pass (0) or the backward pass (1): of two launches each
    piece varies while the other has its default."""
    rows, channels = rows_and_channels(x)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    first, second = default_plan(x)
    for launch in one_launch_candidates(rows, channels, processors, arrays=which + 1):
        yield "one-launch", (launch,)
    for launch in reduce_candidates(rows, channels, processors):
        yield "reduce", (launch, second)
    for launch in apply_candidates(channels):
        yield "apply", (first, launch)


def one_launch_candidates(
    rows: int, channels: int, processors: int, arrays: int
) -> Iterator[Launch]:
    """For one launch on a GPU of `processors` multiprocessors, where a program holds as many values
    of each of `arrays` arrays."""
    for cols in _widths(channels, (32, 64, 128)):
        for values, warps in ONE_LAUNCH:
            launch = Launch(block_rows=values // cols // arrays, block_cols=cols, warps=warps)
            if launch.block_rows < 2 * rows and launch.parts(rows) <= 2 * processors:
                yield launch


def reduce_candidates(rows: int, channels: int, processors: int) -> Iterator[Launch]:
    """For the first of two launches."""
    for cols in _widths(channels, (64, 128, 256)):
        for values, warps in REDUCE:
            whole = Launch(block_rows=values // cols, block_cols=cols, warps=warps)
            parts = {max(1, n * processors * cols // channels) for n in REDUCE_PROGRAMS}
            for tiles in sorted({math.ceil(whole.parts(rows) / most) for most in parts}):
                yield replace(whole, tiles=tiles)


def apply_candidates(channels: int) -> Iterator[Launch]:
    """For the second of two launches."""
    for cols in _widths(channels, (64, 128, 256)):
        for values, warps in APPLY:
            yield Launch(block_rows=values // cols, block_cols=cols, warps=warps)


def _widths(channels: int, wanted: Sequence[int]) -> list[int]:
    """The divisors of `channels` among `wanted`; else the largest power of 2 that divides it."""
    return [w for w in wanted if channels % w == 0] or [math.gcd(channels, wanted[0])]


def example_inputs(op: FusedBatchNorm, x: Tensor) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """A residual, where one is added, and the gradients of one or two readers."""
    residual = torch.randn_like(x) if op.add else None
    return residual, tuple(torch.randn_like(x) for _ in range(min(op.readers, 2)))


def saved_for_backward(op: FusedBatchNorm, x: Tensor, residual: Tensor | None) -> SavedForBackward:
    """What a forward pass saves."""
    default = default_plan(x)
    return make_kernels(op, x, default, default).forward(x, residual, op.norm)[1]


def make_kernels(op: FusedBatchNorm, x: Tensor, forward: Plan, backward: Plan) -> TritonBatchNorm:
    """The kernels of `op` for arrays like `x`, by given plans."""
    return TritonBatchNorm(x.shape, x.device, (forward, backward), add=op.add, relu=op.relu)


def default_plan(x: Tensor) -> Plan:
    """Two launches of small tiles, which fit on any GPU."""
    rows, channels = rows_and_channels(x)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    *_, first = reduce_candidates(rows, channels, processors)
    *_, second = apply_candidates(channels)
    return first, second
