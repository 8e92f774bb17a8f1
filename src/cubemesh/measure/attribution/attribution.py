"""Attribution: the measured step time, broken down into parts.

    step = compute + exposed communication + input stall + launch gaps
           + straggler wait + host + CPU contention + input contention + unattributed

Every part but `unattributed` is measured by itself; that is the rest of the measured step and shows
how far the attribution can be trusted. There are two methods, chosen by what the profiler saw:

- *A program that computes on the host* (a CPU): the host's timestamps give the wait for batches
  (input stall), placing them and the loop (host). Within the step the CPU time of the thread and
  the profiler's operators give compute, and the time between them launch gaps
  (`operator_gaps.py`).
- *A program that runs ahead of a device* (a GPU): the device's timeline in each measured window
  (`timeline.py`). While the device works, that is compute, or where nothing computes exposed
  communication or a copy (host). While it idles, the next piece of work gives the cause: from its
  launch to its begin a launch gap, before its launch what the host was doing then.

In both, the time in which the host's thread was ready to run and had no processor (run-queue delay)
is contention instead: with other programs, or with the threads that prepare batches
(`contention.py`).

docs/attribution.md has the reasons and the limits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cubemesh.measure.attribution.contention import divided, total
from cubemesh.measure.attribution.operator_gaps import (
    delayed_inside_s,
    inside_steps,
    lost_to_workers_s,
    stolen_s,
)
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
CPU_CONTENTION = "cpu_contention"
INPUT_CONTENTION = "input_contention"
UNATTRIBUTED = "unattributed"
PARTS = (
    *(COMPUTE, COMMUNICATION, INPUT, GAPS, STRAGGLER, HOST),
    *(CPU_CONTENTION, INPUT_CONTENTION, UNATTRIBUTED),
)
_REASONS = {"feed": INPUT, "place": HOST, "loop": HOST, "step": GAPS, "wait": UNATTRIBUTED}
"""What the host does while the device idles → the part to which that time belongs."""
_STRETCHES = ("loop", "feed", "place", "step")
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
    between = [_between_steps(w) for w in windows]
    feed, place_and_loop, delayed = (
        math.fsum(times) / steps for times in zip(*between, strict=True)
    )
    compute, gaps = inside_steps(windows, profiled)
    workers = min(compute, math.fsum(map(lost_to_workers_s, windows)) / steps)
    delayed += workers + math.fsum(map(delayed_inside_s, windows)) / steps
    delayed += math.fsum(w.delayed_after_s for w in windows) / steps
    stolen = math.fsum(map(stolen_s, windows)) / steps
    contention = _contention(windows, delayed, stolen)
    less = ", less profiler overhead and run-queue delay, at the CPU time of measured steps"
    return _with_rest(
        mean_step_s(windows),
        (
            Part(
                name=COMPUTE,
                seconds=compute - workers + contention.runtime_s,
                method=f"time in operators inside profiled steps{less}",
            ),
            Part(name=INPUT, seconds=feed, method="timestamps around taking a batch from the feed"),
            Part(
                name=GAPS,
                seconds=gaps,
                method=f"time between operators inside profiled steps{less}",
            ),
            Part(
                name=HOST,
                seconds=place_and_loop,
                method="timestamps around placing a batch, and between steps",
            ),
            *contention.parts,
            *_waits(waited),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Contention:
    """Seconds per step in which the host's thread was ready to run and had no processor."""

    parts: tuple[Part, ...]
    runtime_s: float
    """While other threads of the framework ran, which is no loss to others."""


def _contention(windows: Sequence[StampedWindow], delayed_s: float, stolen_s: float) -> Contention:
    """A delay per step, divided by what ran meanwhile; no parts where that was not read."""
    found = [w.competition for w in windows if w.competition is not None]
    if not found:
        return Contention(parts=(), runtime_s=delayed_s)
    competition = total(found)
    neighbours, fed, runtime = divided(delayed_s, competition)
    method = "run-queue delay of the step's threads in the measured windows"
    parts = [
        Part(
            name=CPU_CONTENTION,
            seconds=neighbours + stolen_s,
            method=f"{method}, in proportion to the CPU time of other programs; and time stolen by "
            "a hypervisor",
        )
    ]
    if competition.input_s > 0:
        share = f"{method}, in proportion to the CPU time of threads that prepare batches"
        parts.append(Part(name=INPUT_CONTENTION, seconds=fed, method=share))
    return Contention(parts=tuple(parts), runtime_s=runtime)


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


def _between_steps(window: StampedWindow) -> tuple[float, float, float]:
    """Seconds of a window (taking batches, placing them and the loop, run-queue delay) outside the
    steps. The delay is taken from each in proportion to its time."""
    feed = host = delayed = 0.0
    ends = [window.start_s, *(s.done for s in window.stamps[:-1])]
    for stamp, end in zip(window.stamps, ends, strict=True):
        whole = stamp.step - end
        running = 1 - min(1.0, stamp.delayed_before_s / whole) if whole > 0 else 0.0
        feed += running * (stamp.place - stamp.feed)
        host += running * (whole - (stamp.place - stamp.feed))
        delayed += (1 - running) * whole
    return feed, host, delayed


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
    contention = _contention(sampled, seconds.pop(CPU_CONTENTION, 0.0), 0.0)
    seconds[GAPS] += contention.runtime_s
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
    parts = [Part(name=n, seconds=s, method=methods[n]) for n, s in seconds.items()]
    busy = math.fsum(t.busy_s for t in times) / math.fsum(w.elapsed_s for w in sampled)
    return _with_rest(mean_step_s(windows), (*parts, *contention.parts)), busy


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
    host = _Host(window)
    free = window.start_s
    for piece in work:
        if piece.start_s > free:
            launched = min(max(piece.launched_s, free), piece.start_s)
            for part, seconds in host.did(free, launched):
                parts[part] = parts.get(part, 0.0) + seconds
            parts[GAPS] += piece.start_s - launched
        free = max(free, piece.end_s)
    queued = window.stamps[-1].done
    for part, seconds in host.did(free, max(free, queued)):
        parts[part] = parts.get(part, 0.0) + seconds
    return DeviceTime(parts=parts, busy_s=busy_s)


class _Host:
    """What the host did in a window, and how much of each step its thread was delayed."""

    def __init__(self, window: StampedWindow) -> None:
        self._edges = list(boundaries(window))
        ends = [window.start_s, *(s.done for s in window.stamps[:-1])]
        self._delayed = [
            min(1.0, (s.delayed_before_s + s.delayed_s) / (s.done - end)) if s.done > end else 0.0
            for s, end in zip(window.stamps, ends, strict=True)
        ]
        """Fraction of the time from the end of the step before to the end of each."""

    def did(self, start: float, end: float) -> Iterable[tuple[str, float]]:
        """The parts to which an idle device's time between two times belongs. All contention is
        called CPU contention."""
        edges = self._edges
        at = max(0, bisect_right(edges, start, key=lambda edge: edge[0]) - 1)
        while start < end:
            until = min(end, edges[at + 1][0]) if at + 1 < len(edges) else end
            if until > start:
                delayed = self._delayed_at(at)
                yield _REASONS[edges[at][1]], (until - start) * (1 - delayed)
                if delayed:
                    yield CPU_CONTENTION, (until - start) * delayed
                start = until
            at += 1

    def _delayed_at(self, edge: int) -> float:
        """An edge's own step: `loop`, `feed`, `place` and `step` of each, then `wait`."""
        step = edge // len(_STRETCHES)
        return self._delayed[step] if step < len(self._delayed) else 0.0


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
