"""At which size is an elementary operation fastest? A search every framework's ceiling uses.

The size doubles until the rate grows by less than 5 %; the fastest size is kept. Each size is
called until a tenth of a second is full, and its fastest call counts, which other processes slowed
least.
"""

from __future__ import annotations

from collections.abc import Callable

from cubemesh.frameworks.base import CeilingProgram

COPY_SIZES = (1 << 28, 1 << 31)
"""Bytes of the first and the last copy tried: beyond nearly all caches, for it is memory that is
asked about."""

_GROWTH = 1.05
_TRIAL_S = 0.1
"""Each size is called for this long, three calls at least."""
_LONGEST_CALL_S = 0.1
"""No larger size is tried after a call this long."""


def fastest(
    make: Callable[[int], CeilingProgram],
    first: int,
    last: int,
    is_out_of_memory: Callable[[BaseException], bool],
) -> CeilingProgram:
    """The operation at the size, doubled from `first` to `last` at most, where its rate stops
    growing; a size that memory is refused for ends the search."""
    best = make(first)
    rate, call_s = _trial(best)
    size = first
    while size < last and call_s < _LONGEST_CALL_S:
        size *= 2
        try:
            larger = make(size)
            larger_rate, call_s = _trial(larger)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            break
        grew = larger_rate >= _GROWTH * rate
        if larger_rate > rate:
            best, rate = larger, larger_rate
        if not grew:
            break
    return best


def _trial(program: CeilingProgram) -> tuple[float, float]:
    """(work per second, seconds) of the fastest call."""
    program.call()
    program.synchronize()
    calls: list[float] = []
    while len(calls) < 3 or sum(calls) < _TRIAL_S:
        start = program.clock()
        program.call()
        program.synchronize()
        calls.append(program.clock() - start)
    return program.work_per_call / min(calls), min(calls)
