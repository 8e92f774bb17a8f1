"""Where does a measured step spend its time?

    step = compute + exposed communication + input stall + launch gaps
           + straggler wait + host + other

Every part but `other` is measured by itself; `other` is what the measured step has left, and says
how far the rest can be believed. Two kinds of programs are told apart by what the profiler saw:

- *One that computes on the host* (a CPU): the host's stamps give the wait for batches (input
  stall), the hand-over and the loop (host). Inside the step the profiler's operators are the
  computing, and what lies between them the launch gaps, each less what recording cost
  (`inside.py`).
- *One that runs ahead of a device* (a GPU): the device's timeline in each measured window
  (`timeline.py`). While it works, that is compute, or where nothing computes exposed communication
  or a copy (host). While it idles, the next piece of work says why: from its launch to its begin
  that is a launch gap, before its launch it is what the host was doing then.

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
    play,
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
OTHER = "other"
PARTS = (COMPUTE, COMMUNICATION, INPUT, GAPS, STRAGGLER, HOST, OTHER)
_REASONS = {"feed": INPUT, "place": HOST, "loop": HOST, "step": GAPS, "wait": OTHER}
"""What the host does while the device idles → the part that this time is."""
MOST_LAUNCHES = 200_000
"""Of all windows that are played; windows are left out evenly where there would be more."""


def on_host(
    windows: Sequence[StampedWindow],
    profiled: Sequence[tuple[StampedWindow, Profile]],
    waited: Waited | None = None,
) -> tuple[Part, ...]:
    """The parts of a step that is computed by the host itself. Each profiled window follows the
    measured one of the same place; `waited` is what a step waits for other ranks."""
    steps = sum(len(w.stamps) for w in windows)
    stamps = [s for w in windows for s in w.stamps]
    feed = math.fsum(s.place - s.feed for s in stamps) / steps
    place = math.fsum(s.step - s.place for s in stamps) / steps
    loop = math.fsum(_loop_s(w) for w in windows) / steps
    compute, gaps = inside_steps(windows, profiled)
    return _with_other(
        mean_step_s(windows),
        (
            Part(
                name=COMPUTE,
                seconds=compute,
                method="time in which an operator ran inside profiled steps, less recording",
            ),
            Part(name=INPUT, seconds=feed, method="stamps around the taking of a batch"),
            Part(
                name=GAPS,
                seconds=gaps,
                method="time between operators inside profiled steps, less recording",
            ),
            Part(
                name=HOST,
                seconds=place + loop,
                method="stamps around the hand-over of a batch, and between steps",
            ),
            *_waits(waited),
        ),
    )


def _waits(waited: Waited | None) -> Iterable[Part]:
    """The parts that only several devices have, by the stamps of their host."""
    if waited is None:
        return
    told = waited.straggling_s is not None
    beyond = "after the last rank came" if told else "the wait for other ranks included"
    method = f"stamps around the wait for the exchange, {beyond}"
    yield Part(name=COMMUNICATION, seconds=waited.exchanging_s, method=method)
    if waited.straggling_s is not None:
        method = "stamps around the wait for the exchange, until the last rank came"
        yield Part(name=STRAGGLER, seconds=waited.straggling_s, method=method)


def _loop_s(window: StampedWindow) -> float:
    """What lies before the first step and between the steps."""
    starts = [s.feed for s in window.stamps]
    ends = [window.start_s, *(s.done for s in window.stamps[:-1])]
    return math.fsum(start - end for start, end in zip(starts, ends, strict=True))


@dataclass(frozen=True, kw_only=True)
class DeviceTime:
    """Seconds of one window by part, and how long the device was at work in it."""

    parts: dict[str, float]
    busy_s: float


def on_device(
    windows: Sequence[StampedWindow], recorded: RecordedSteps
) -> tuple[tuple[Part, ...], float]:
    """The parts of a step that a device computes while the host runs ahead, and the share of the
    time in which the device is at work."""
    played = _evenly(windows, recorded)
    steps = sum(len(w.stamps) for w in played)
    times = [device_time(w, play(w, recorded, i)) for i, w in enumerate(played)]
    seconds = {
        name: math.fsum(t.parts.get(name, 0.0) for t in times) / steps
        for name in PARTS
        if name != OTHER and any(name in t.parts for t in times)
    }
    played_on = "played on the stamps of the measured windows"
    methods = {
        COMPUTE: f"kernels of profiled steps, {played_on}",
        COMMUNICATION: f"communication while nothing computed, {played_on}",
        STRAGGLER: f"communication kernels that waited for the last rank, {played_on}",
        INPUT: f"device idle while the host waited for a batch, {played_on}",
        GAPS: f"device idle while the host queued a step, or between launch and begin, {played_on}",
        HOST: f"device idle, or only copying, at the hand-over of a batch and between steps, "
        f"{played_on}",
    }
    parts = (Part(name=n, seconds=s, method=methods[n]) for n, s in seconds.items())
    busy = math.fsum(t.busy_s for t in times) / math.fsum(w.elapsed_s for w in played)
    return _with_other(mean_step_s(windows), tuple(parts)), busy


def device_time(window: StampedWindow, work: Sequence[DeviceWork]) -> DeviceTime:
    """The time of a window by part, from what the device did in it and when the host stamped."""
    compute = union((b.start_s, b.end_s) for b in work if b.use == "compute")
    talking = union((b.start_s, b.end_s) for b in work if b.use == "communication")
    waiting = union((b.start_s, b.end_s) for b in work if b.use == "wait")
    copying = union((b.start_s, b.end_s) for b in work if b.use == "copy")
    at_work = union([*compute, *talking])
    parts = {
        COMPUTE: length(compute),
        INPUT: 0.0,
        GAPS: 0.0,
        HOST: length(outside(outside(copying, at_work), waiting)),
    }
    if talking:
        parts[COMMUNICATION] = length(outside(talking, compute))
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
    """What the host did between two times, as the parts that an idle device makes of it."""
    at = max(0, bisect_right(edges, start, key=lambda edge: edge[0]) - 1)
    while start < end:
        until = min(end, edges[at + 1][0]) if at + 1 < len(edges) else end
        if until > start:
            yield _REASONS[edges[at][1]], until - start
            start = until
        at += 1


def mean_step_s(windows: Sequence[StampedWindow]) -> float:
    """The mean over windows of a step's time, as `step_s.mean` has it."""
    return math.fsum(w.elapsed_s / len(w.stamps) for w in windows) / len(windows)


def _with_other(step_s: float, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    known = math.fsum(part.seconds for part in parts)
    left = Part(name=OTHER, seconds=step_s - known, method="the mean step less all other parts")
    ordered = sorted(parts, key=lambda part: PARTS.index(part.name))
    return (*ordered, left)


def _evenly(windows: Sequence[StampedWindow], recorded: RecordedSteps) -> Sequence[StampedWindow]:
    launches = sum(map(len, recorded.steps)) / len(recorded.steps)
    total = launches * sum(len(w.stamps) for w in windows)
    return windows[:: max(1, math.ceil(total / MOST_LAUNCHES))]
