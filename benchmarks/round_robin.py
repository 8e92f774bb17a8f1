"""Comparison of many programs in rounds: in each, every program has a window, in random order.

Cheaper than ab_comparison.py where one program is compared with many, since each is built once and
that one is measured once per round. A round is one observation of each ratio: step time of the
other program over that of the first. The ratio is their median, with its bootstrap interval over
the rounds. It holds for these processes only; differences between processes, which may be percents,
are not in it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from ab_comparison import Comparison, Side
from cubemesh.statistics import bootstrap_interval, mad, median

SETTLING_STEPS = 2
"""Of each, before the first round."""


def settle(side: Side) -> None:
    """What comes before a side's first round: compiling, for one."""
    _window_s(side, SETTLING_STEPS)


def in_rounds(sides: Mapping[str, Side], rounds: int, steps: int) -> dict[str, list[float]]:
    """Name → seconds of a step by its side's own clock, in each round, of `steps` steps."""
    order = random.Random(0)
    names = list(sides)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            found[name].append(_window_s(sides[name], steps))
    return found


def ratio(first: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """How many times as fast the first is, with its 95 % interval, from the seconds of both in each
    round. ValueError for a single round."""
    if len(first) < 2:
        raise ValueError("two rounds are needed at least; give --rounds 2 or more")
    ratios = [b / a for a, b in zip(first, other, strict=True)]
    interval = bootstrap_interval(ratios)
    return median(ratios), interval.low, interval.high


def compared(first: Sequence[float], second: Sequence[float], steps: int) -> Comparison:
    """How the second's throughput stands to the first's, from windows of `steps` steps."""
    value, low, high = ratio(second, first)
    return Comparison(
        pairs=len(first),
        steps_per_window=steps,
        first_step_ms=1e3 * median(first),
        first_step_mad_ms=1e3 * mad(first),
        second_step_ms=1e3 * median(second),
        second_step_mad_ms=1e3 * mad(second),
        ratio=value,
        low=low,
        high=high,
    )


def _window_s(side: Side, steps: int) -> float:
    start = side.clock()
    for _ in range(steps):
        side.step()
    side.synchronize()
    return (side.clock() - start) / steps
