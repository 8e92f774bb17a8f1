"""Time in operators and between them within a step on the host, less the profiler's overhead.

Recording events takes time, which is subtracted: the difference between the inside of a step in
profiled windows and in the measured windows between them, divided by the number of recorded events,
and at most what recording can cost. What is left of the difference is due to the machine and
scales both parts alike. Half of the overhead of an outermost operator falls inside it and half
outside; that of a nested operator falls inside, and that of a scope between operators unless it is
in one.

Outlier windows are left out on both sides, by the test of the warning `outliers`: a hiccup belongs
to no operator and no gap. The wait for communication (transfers.py) is in neither.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from cubemesh.measure.attribution.categories import COMMUNICATION, category_of
from cubemesh.measure.attribution.timeline import Interval, length, outside, union
from cubemesh.measure.timing.step_timestamps import StampedWindow
from cubemesh.schema.profile import Profile, ProfileEvent
from cubemesh.statistics import mean, median, outliers

MOST_RECORDING_S = 5e-6
"""Limit on the overhead of one event, which is 1 to 3 µs; a larger difference is due to the machine
and scales both parts."""
FAR = 0.05
"""Outliers within this fraction of the median are used."""


def inside_steps(
    windows: Sequence[StampedWindow], profiled: Sequence[tuple[StampedWindow, Profile]]
) -> tuple[float, float]:
    """Seconds in a measured step (in operators, between them)."""
    bare_s = mean(_usual([_inside_s(window) for window in windows]))
    recorded_s = [_inside_s(window) for window, _ in profiled]
    usual = [pair for pair, near in zip(profiled, _near(recorded_s), strict=True) if near]
    busy, idle, events_in, events_out = 0.0, 0.0, 0.0, 0.0
    for window, profile in usual:
        share = 1 / (len(usual) * len(window.stamps))
        operators = union((e.start_s, e.end_s) for e in profile.events if _computes(e))
        inside = _inside(window)
        gaps_s = length(outside(inside, operators))
        busy += share * (length(inside) - gaps_s)
        idle += share * gaps_s
        within, between = _recorded(profile, operators, inside)
        events_in, events_out = events_in + share * within, events_out + share * between
    slower_s = busy + idle - bare_s
    events = max(events_in + events_out, 1.0)
    each_s = min(max(slower_s / events, 0.0), MOST_RECORDING_S)
    busy, idle = busy - events_in * each_s, max(0.0, idle - events_out * each_s)
    scale = bare_s / (busy + idle) if busy + idle > 0 else 0.0
    return busy * scale, idle * scale


def _inside(window: StampedWindow) -> list[Interval]:
    """The inside of its steps, without the wait for communication."""
    waits = union((t.waited, t.ended) for t in window.transfers)
    return outside([(s.step, s.done) for s in window.stamps], waits)


def _inside_s(window: StampedWindow) -> float:
    return length(_inside(window)) / len(window.stamps)


def _computes(event: ProfileEvent) -> bool:
    """Whether it is an operator of the network: communication has operators too, which last until
    the other ranks answer."""
    return event.kind == "operator" and category_of(event.name) != COMMUNICATION


def _usual(values: Sequence[float]) -> list[float]:
    return [value for value, near in zip(values, _near(values), strict=True) if near]


def _near(values: Sequence[float]) -> list[bool]:
    """Whether each value is no outlier."""
    middle, far = median(values), set(outliers(values))
    return [i not in far or abs(v / middle - 1) <= FAR for i, v in enumerate(values)]


def _recorded(
    profile: Profile, operators: Sequence[Interval], steps: Sequence[Interval]
) -> tuple[float, float]:
    """Number of recorded events (inside operators, between them) in `steps`."""
    within = union(steps)
    found = [e for e in profile.events if e.kind in ("operator", "scope")]
    found = [e for e in found if _holds(within, e.start_s)]
    outermost = sum(1 for start, _ in operators if _holds(within, start))
    inside = sum(1 for e in found if _holds(operators, e.start_s)) - outermost
    return inside + outermost / 2, len(found) - inside - outermost / 2


def _holds(intervals: Sequence[Interval], time: float) -> bool:
    at = bisect_right(intervals, (time, math.inf)) - 1
    return at >= 0 and intervals[at][0] <= time < intervals[at][1]
