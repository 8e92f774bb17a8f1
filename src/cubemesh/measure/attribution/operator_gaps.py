"""Time in operators and between them within a step on the host, from profiled steps.

    measured steps   CPU time of the thread inside the step
    profiled steps   wall time in operators, and between them; CPU time; run-queue delay; events

Run-queue delay and stolen time are subtracted from the profiled wall time. Recording events takes
CPU time, which is subtracted too: the CPU time of a profiled step less that of a measured one,
divided by the number of recorded events, and at most what recording can cost. What is left of that
difference is due to another speed of the processor, and is taken from both parts in proportion to
their time. So both parts follow from CPU clocks and from the profile, not from the wall
time of the measured step, and their sum with all other parts may miss that.

Half of the overhead of an outermost operator falls inside it and half outside; that of a nested
operator falls inside, and that of a scope between operators unless it is in one.

Outliers among the profiled windows are left out, by the test of the warning `outliers`. The wait
for communication (transfers.py) is in neither part. Without CPU times the step's thread counts as
running all the time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from cubemesh.measure.attribution.categories import COMMUNICATION, category_of
from cubemesh.measure.attribution.timeline import Interval, length, outside, union
from cubemesh.measure.timing.step_timestamps import StampedWindow
from cubemesh.schema.profile import Profile, ProfileEvent
from cubemesh.statistics import median, outliers

MOST_RECORDING_S = 5e-6
"""Limit on the overhead of one event, which is 1 to 3 µs; a larger difference is due to the machine
and scales both parts."""
FAR = 0.05
"""Outliers within this fraction of the median are used."""


def inside_steps(
    windows: Sequence[StampedWindow], profiled: Sequence[tuple[StampedWindow, Profile]]
) -> tuple[float, float]:
    """Seconds in a measured step (in operators, between them) without run-queue delay."""
    steps = sum(len(window.stamps) for window in windows)
    ran_s = math.fsum(ran_inside_s(window) for window in windows) / steps
    recorded_s = [ran_inside_s(window) / len(window.stamps) for window, _ in profiled]
    usual = [pair for pair, near in zip(profiled, _near(recorded_s), strict=True) if near]
    busy, idle, recorded, lost, events_in, events_out = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for window, profile in usual:
        share = 1 / (len(usual) * len(window.stamps))
        operators = union((e.start_s, e.end_s) for e in profile.events if _computes(e))
        inside = _inside(window)
        gaps_s = length(outside(inside, operators))
        busy += share * (length(inside) - gaps_s)
        idle += share * gaps_s
        recorded += share * ran_inside_s(window)
        lost += share * (delayed_inside_s(window) + stolen_s(window))
        within, between = _recorded(profile, operators, inside)
        events_in, events_out = events_in + share * within, events_out + share * between
    events = max(events_in + events_out, 1.0)
    each_s = min(max((recorded - ran_s) / events, 0.0), MOST_RECORDING_S)
    running = max(0.0, 1 - lost / (busy + idle)) if busy + idle > 0 else 0.0
    busy = max(0.0, busy * running - events_in * each_s)
    idle = max(0.0, idle * running - events_out * each_s)
    faster_s = recorded - (events_in + events_out) * each_s - ran_s
    scale = max(0.0, 1 - faster_s / (busy + idle)) if busy + idle > 0 else 0.0
    return busy * scale, idle * scale


def ran_inside_s(window: StampedWindow) -> float:
    """CPU time of the thread inside the steps of a window, without the wait for communication."""
    known = [stamp.ran_s for stamp in window.stamps if stamp.ran_s is not None]
    return math.fsum(known) if known else length(_inside(window))


def delayed_inside_s(window: StampedWindow) -> float:
    """Run-queue delay inside the steps of a window. A part of it in proportion to the wait for
    communication is left out, and counts as that."""
    whole_s = math.fsum(stamp.done - stamp.step for stamp in window.stamps)
    if whole_s <= 0:
        return 0.0
    delayed_s = math.fsum(stamp.delayed_s for stamp in window.stamps)
    return delayed_s * length(_inside(window)) / whole_s


def stolen_s(window: StampedWindow) -> float:
    """Time stolen by a hypervisor inside the steps of a window: at most the time in which the
    thread neither ran nor was on a run queue, because an idle processor is stolen from too."""
    found = window.competition
    if found is None:
        return 0.0
    blocked_s = length(_inside(window)) - ran_inside_s(window) - delayed_inside_s(window)
    return min(found.stolen_s * _share_inside(window), max(0.0, blocked_s))


def lost_to_workers_s(window: StampedWindow) -> float:
    """What the steps of a window lost to delays of their other compute threads."""
    found = window.competition
    return 0.0 if found is None else found.workers_s * _share_inside(window)


def _share_inside(window: StampedWindow) -> float:
    return length(_inside(window)) / window.elapsed_s if window.elapsed_s > 0 else 0.0


def _inside(window: StampedWindow) -> list[Interval]:
    """The inside of its steps, without the wait for communication."""
    waits = union((t.waited, t.ended) for t in window.transfers)
    return outside([(s.step, s.done) for s in window.stamps], waits)


def _computes(event: ProfileEvent) -> bool:
    """Whether it is an operator of the network: communication has operators too, which last until
    the other ranks answer."""
    return event.kind == "operator" and category_of(event.name) != COMMUNICATION


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
