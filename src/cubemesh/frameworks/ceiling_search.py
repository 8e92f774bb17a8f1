"""Ceiling search: the size and shape at which an elementary operation is fastest.

The size doubles until the rate grows by less than a few percent; the fastest size is used. A matrix
product is then tried in shapes that are not square, if a call is short enough: a device computes
tiles, and is fully used only when the tiles fill its processors a whole number of times. The shapes
are those found fastest on known devices (stas00/ml-engineering, maximum achievable matmul FLOPS)
and some that fill 132 and 108 processors with tiles of 128 × 256.

Calls are timed in groups of some milliseconds, so that synchronization is negligible, for a tenth
of a second. The fastest group counts, the one that other processes slowed least. A GPU then runs a
few more groups of the result, each after a rest: at its power limit it slows down within some
hundredths of a second (an H200 from 806 to 720 TFLOP/s in bf16), and recovers within a quarter of a
second. The sustained rate over seconds is measured last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from cubemesh.frameworks.contract.program import CeilingProgram, Unsupported
from cubemesh.schema.work import Ceiling

Shape = tuple[int, int, int]
"""Rows, columns and the inner length of a matrix product: (m × k) · (k × n)."""
C = TypeVar("C", bound=CeilingProgram)

CONVOLUTIONS = ((64, 56), (128, 28), (256, 14), (512, 7))
"""(channels, height and width) of the 3 × 3 convolutions tried: those of ResNet-50."""
CONVOLUTION = (256, 14)
"""Of a convolution whose batch size is given."""
COPY_SIZES = (1 << 28, 1 << 31)
"""Bytes of the first and the last copy tried: larger than nearly all caches."""
LINK_SIZES = (1 << 26, 1 << 29)
"""Bytes of the first and the last copy between host and device."""
SHAPES: tuple[Shape, ...] = (
    *((2048, 2048, 13312), (1024, 15360, 4096)),  # found on H100 and H200, on GH200
    *((1792, 16128, 3072), (4096, 9728, 2048), (12288, 18432, 1024)),  # B200, GB200, B300
    *((1024, 10240, 5120), (2048, 5120, 6144)),  # A100 as SXM and as PCIe card
    *((8448, 8192, 8192), (4224, 8192, 8192), (4224, 4096, 16384)),  # whole waves of 132
    *((6912, 8192, 8192), (3456, 8192, 8192)),  # and of 108
)

GROWTH = 1.05
"""A rate that grows by less than this factor has stopped growing."""
COPY_GROWTH = 1.01
_TRIAL_S = 0.1
"""Time for each size, with at least three groups."""
_GROUP_S = 0.005
REST_S = 0.25
"""Idle time of a GPU before a group, to recover from its power limit."""
_LONGEST_CALL_S = 0.1
"""No larger size is tried after a call this long."""


@dataclass(frozen=True)
class Trial:
    """The rate of an operation over the first fraction of a second."""

    rate_per_s: float
    """Work per second of the fastest group of calls."""
    call_s: float
    """Seconds of a call in that group."""
    groups: int


def fastest(
    make: Callable[[int], C],
    first: int,
    last: int,
    is_out_of_memory: Callable[[BaseException], bool],
    growth: float = GROWTH,
) -> C:
    """The operation at the size, doubled from `first` to `last` at most, where its rate stops
    growing; running out of memory ends the search."""
    best = make(first)
    trial = try_out(best)
    size, rate = first, trial.rate_per_s
    while size < last and trial.call_s < _LONGEST_CALL_S:
        size *= 2
        try:
            larger = make(size)
            trial = try_out(larger)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            break
        grew = trial.rate_per_s >= growth * rate
        if trial.rate_per_s > rate:
            best, rate = larger, trial.rate_per_s
        if not grew:
            break
    return best


def fastest_product(
    make: Callable[[Shape], C],
    sides: tuple[int, int],
    is_out_of_memory: Callable[[BaseException], bool],
    shapes: Iterable[Shape] = SHAPES,
) -> C:
    """The fastest matrix product: squares from the first to the last of `sides`, then those of
    `shapes` whose call is short enough. A shape that runs out of memory is skipped."""
    best = fastest(lambda side: make((side, side, side)), *sides, is_out_of_memory)
    rate = try_out(best).rate_per_s
    for m, n, k in shapes:
        if 2.0 * m * n * k / rate > _LONGEST_CALL_S:
            continue
        try:
            other = make((m, n, k))
            other_rate = try_out(other).rate_per_s
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            continue
        if other_rate > rate:
            best, rate = other, other_rate
    return best


def convolution_flops(batch: int, channels: int, side: int) -> float:
    """Operations of a 3 × 3 convolution with padding, from as many channels to as many, counted
    directly whatever the algorithm."""
    return 2.0 * batch * side * side * channels * channels * 9


def try_out(program: CeilingProgram, rest_s: float = 0.0) -> Trial:
    """Call `program` in groups for a tenth of a second; with a rest before each, in four groups."""
    program.call()
    program.synchronize()
    once_s = _group_s(program, 1)
    if once_s <= 0:
        raise RuntimeError("the program's clock did not advance over a call")
    calls = max(1, round(_GROUP_S / once_s))
    groups: list[float] = []
    while len(groups) < 4 if rest_s else len(groups) < 3 or sum(groups) < _TRIAL_S:
        time.sleep(rest_s)
        groups.append(_group_s(program, calls))
    best_s = min(groups) / calls
    return Trial(rate_per_s=program.work_per_call / best_s, call_s=best_s, groups=len(groups))


def _group_s(program: CeilingProgram, calls: int) -> float:
    start = program.clock()
    for _ in range(calls):
        program.call()
    program.synchronize()
    return program.clock() - start


def shape_of(work: Ceiling) -> Shape | None:
    """The shape set for a matrix product; None where it is to be searched."""
    if work.shape is not None:
        return work.shape
    return None if work.size is None else (work.size, work.size, work.size)


def shape_words(shape: Shape) -> str:
    """`2,048 × 2,048 × 13,312`: m × n × k."""
    return " × ".join(f"{length:,}" for length in shape)


def check_operation(work: Ceiling, offered: Iterable[str], framework: str) -> None:
    """`Unsupported` where `framework` does not measure the operation of `work`."""
    known = sorted(offered)
    if work.operation not in known:
        raise Unsupported(
            f"{framework} does not measure {work.operation} here; it measures {', '.join(known)}. "
            "pytorch on a GPU measures copies between host and device."
        )


def build_operation(
    work: Ceiling,
    product: Callable[[Shape], C],
    copy: Callable[[int], C],
    sides: tuple[int, int],
    is_out_of_memory: Callable[[BaseException], bool],
) -> C:
    """The product or copy of `work`, at its shape or size or else at the fastest."""
    if work.operation == "copy":
        if work.size is not None:
            return copy(work.size)
        return fastest(copy, *COPY_SIZES, is_out_of_memory, COPY_GROWTH)
    shape = shape_of(work)
    return product(shape) if shape else fastest_product(product, sides, is_out_of_memory)
