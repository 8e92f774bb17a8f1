"""Attribution: the measured step time, broken down into parts.

    step = compute + exposed communication + input stall + launch gaps
           + straggler wait + host + unattributed

Every part but `unattributed` is measured by itself; that is the rest of the measured step and shows
how far the attribution can be trusted. There are two methods, chosen by what the profiler saw:

- *A program that computes on the host* (a CPU): the host's timestamps give the wait for batches
  (input stall), placing them and the loop (host). Within the step the profiler's operators are
  compute and the time between them launch gaps, both less the profiler's overhead
  (`operator_gaps.py`).
- *A program that runs ahead of a device* (a GPU): the device's timeline in each measured window
  (`timeline.py`). While the device works, that is compute, or where nothing computes exposed
  communication or a copy (host). While it idles, the next piece of work gives the cause: from its
  launch to its begin a launch gap, before its launch what the host was doing then.

docs/attribution.md has the reasons and the limits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cubemesh.measure.attribution.operator_gaps import inside_steps
from cubemesh.measure.attribution.timeline import (
    DeviceWork,
    RecordedSteps,
    length,
    outside,
    simulate,
    union,
)
from cubemesh.measure.attribution.transfers import Waited
from cubemesh.measure.timing.step_timestamps import StampedWindow, boundaries
from cubemesh.schema.profile import Profile
from cubemesh.schema.record import Part

COMPUTE = "compute"
COMMUNICATION = "exposed_communication"
INPUT = "input_stall"
GAPS = "launch_gaps"
STRAGGLER = "straggler_wait"
HOST = "host"
UNATTRIBUTED = "unattributed"
PARTS = (COMPUTE, COMMUNICATION, INPUT, GAPS, STRAGGLER, HOST, UNATTRIBUTED)
_REASONS = {"feed": INPUT, "place": HOST, "loop": HOST, "step": GAPS, "wait": UNATTRIBUTED}
"""What the host does while the device idles → the part to which that time belongs."""
MOST_LAUNCHES = 200_000
"""Limit over all simulated windows; above it, windows are left out evenly."""


def on_host(
    windows: Sequence[StampedWindow],
    profiled: Sequence[tuple[StampedWindow, Profile]],
    waited: Waited | None = None,
) -> tuple[Part, ...]:
    """Parts of a step that is computed by the host. Each profiled window follows the measured one
    with the same index; `waited` is the time that a step waits for other ranks."""
    steps = sum(len(w.stamps) for w in windows)
    stamps = [s for w in windows for s in w.stamps]
    feed = math.fsum(s.place - s.feed for s in stamps) / steps
    place = math.fsum(s.step - s.place for s in stamps) / steps
    loop = math.fsum(_loop_s(w) for w in windows) / steps
    compute, gaps = inside_steps(windows, profiled)
    return _with_rest(
        mean_step_s(windows),
        (
            Part(
                name=COMPUTE,
                seconds=compute,
                method="time in operators inside profiled steps, less profiler overhead",
            ),
            Part(name=INPUT, seconds=feed, method="timestamps around taking a batch from the feed"),
            Part(
                name=GAPS,
                seconds=gaps,
                method="time between operators inside profiled steps, less profiler overhead",
            ),
            Part(
                name=HOST,
                seconds=place + loop,
                method="timestamps around placing a batch, and between steps",
            ),
            *_waits(waited),
        ),
    )


def _waits(waited: Waited | None) -> Iterable[Part]:
    """Parts that exist only on several devices, from timestamps."""
    if waited is None:
        return
    separate = waited.straggling_s is not None
    extent = "after the last rank arrived" if separate else "including the wait for other ranks"
    method = f"timestamps around the wait for communication, {extent}"
    yield Part(name=COMMUNICATION, seconds=waited.exchanging_s, method=method)
    if waited.straggling_s is not None:
        method = "timestamps around the wait for communication, until the last rank arrived"
        yield Part(name=STRAGGLER, seconds=waited.straggling_s, method=method)


def _loop_s(window: StampedWindow) -> float:
    """Time before the first step and between the steps."""
    starts = [s.feed for s in window.stamps]
    ends = [window.start_s, *(s.done for s in window.stamps[:-1])]
    return math.fsum(start - end for start, end in zip(starts, ends, strict=True))


@dataclass(frozen=True, kw_only=True)
class DeviceTime:
    """Seconds of one window by part, and the time in which the device was busy."""

    parts: dict[str, float]
    busy_s: float


def on_device(
    windows: Sequence[StampedWindow], recorded: RecordedSteps
) -> tuple[tuple[Part, ...], float]:
    """Parts of a step that a device computes while the host runs ahead, and the fraction of the
    time in which the device is busy."""
    sampled = _evenly(windows, recorded)
    steps = sum(len(w.stamps) for w in sampled)
    times = [device_time(w, simulate(w, recorded, i)) for i, w in enumerate(sampled)]
    seconds = {
        name: math.fsum(t.parts.get(name, 0.0) for t in times) / steps
        for name in PARTS
        if name != UNATTRIBUTED and any(name in t.parts for t in times)
    }
    simulated_on = "simulated on the timestamps of the measured windows"
    methods = {
        COMPUTE: f"kernels of profiled steps, {simulated_on}",
        COMMUNICATION: f"communication without concurrent compute, {simulated_on}",
        STRAGGLER: f"communication kernels waiting for the last rank, {simulated_on}",
        INPUT: f"device idle while the host waited for a batch, {simulated_on}",
        GAPS: f"device idle while the host queued a step, or between launch and begin, "
        f"{simulated_on}",
        HOST: f"device idle, or only copying, while a batch was placed and between steps, "
        f"{simulated_on}",
    }
    parts = (Part(name=n, seconds=s, method=methods[n]) for n, s in seconds.items())
    busy = math.fsum(t.busy_s for t in times) / math.fsum(w.elapsed_s for w in sampled)
    return _with_rest(mean_step_s(windows), tuple(parts)), busy


def device_time(window: StampedWindow, work: Sequence[DeviceWork]) -> DeviceTime:
    """Time of a window by part, from the device's work in it and the host's timestamps."""
    compute = union((b.start_s, b.end_s) for b in work if b.use == "compute")
    communicating = union((b.start_s, b.end_s) for b in work if b.use == "communication")
    waiting = union((b.start_s, b.end_s) for b in work if b.use == "wait")
    copying = union((b.start_s, b.end_s) for b in work if b.use == "copy")
    at_work = union([*compute, *communicating])
    parts = {
        COMPUTE: length(compute),
        INPUT: 0.0,
        GAPS: 0.0,
        HOST: length(outside(outside(copying, at_work), waiting)),
    }
    if communicating:
        parts[COMMUNICATION] = length(outside(communicating, compute))
    if waiting:
        parts[STRAGGLER] = length(outside(waiting, at_work))
    busy_s = length(union([*at_work, *waiting, *copying]))
    edges = list(boundaries(window))
    free = window.start_s
    for piece in work:
        if piece.start_s > free:
            launched = min(max(piece.launched_s, free), piece.start_s)
            for part, seconds in _host_did(edges, free, launched):
                parts[part] = parts.get(part, 0.0) + seconds
            parts[GAPS] += piece.start_s - launched
        free = max(free, piece.end_s)
    queued = window.stamps[-1].done
    for part, seconds in _host_did(edges, free, max(free, queued)):
        parts[part] = parts.get(part, 0.0) + seconds
    return DeviceTime(parts=parts, busy_s=busy_s)


def _host_did(
    edges: Sequence[tuple[float, str]], start: float, end: float
) -> Iterable[tuple[str, float]]:
    """The parts to which an idle device's time between two times belongs, by what the host did."""
    at = max(0, bisect_right(edges, start, key=lambda edge: edge[0]) - 1)
    while start < end:
        until = min(end, edges[at + 1][0]) if at + 1 < len(edges) else end
        if until > start:
            yield _REASONS[edges[at][1]], until - start
            start = until
        at += 1


def mean_step_s(windows: Sequence[StampedWindow]) -> float:
    """Mean over windows of the step time."""
    return math.fsum(w.elapsed_s / len(w.stamps) for w in windows) / len(windows)


def _with_rest(step_s: float, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    known = math.fsum(part.seconds for part in parts)
    left = Part(
        name=UNATTRIBUTED, seconds=step_s - known, method="the mean step less all other parts"
    )
    ordered = sorted(parts, key=lambda part: PARTS.index(part.name))
    return (*ordered, left)


def _evenly(windows: Sequence[StampedWindow], recorded: RecordedSteps) -> Sequence[StampedWindow]:
    launches = sum(map(len, recorded.steps)) / len(recorded.steps)
    total = launches * sum(len(w.stamps) for w in windows)
    return windows[:: max(1, math.ceil(total / MOST_LAUNCHES))]
