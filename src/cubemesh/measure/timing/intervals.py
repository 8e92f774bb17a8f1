"""Stretches of time as sorted, disjoint (start, end) pairs: their union, length, difference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The time covered by any of them; empty ones are left out."""
    found: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def outside(intervals: Iterable[Interval], taken: Sequence[Interval]) -> list[Interval]:
    """What of `intervals` is in none of `taken`, which is a union."""
    found: list[Interval] = []
    at = 0
    for start, end in union(intervals):
        while at < len(taken) and taken[at][1] <= start:
            at += 1
        index = at
        while start < end:
            if index == len(taken) or taken[index][0] >= end:
                found.append((start, end))
                break
            if taken[index][0] > start:
                found.append((start, taken[index][0]))
            start = taken[index][1]
            index += 1
    return found


def length(intervals: Iterable[Interval]) -> float:
    """Seconds of disjoint stretches together."""
    return math.fsum(end - start for start, end in intervals)
