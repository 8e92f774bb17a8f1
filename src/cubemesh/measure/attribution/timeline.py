"""Timeline of the device in measured windows, simulated from profiled steps.

The host's times of a measured window are known from its timestamps; the duration of each kernel and
the point of a step at which the host launches it are known from profiled steps. Together they give
the device's timeline without the slowdown of the host by the profiler:

    launched   at the same fraction of its stretch of the step (feed, place, step, loop) as in the
               profile, with the stretch as timestamped
    begins     `latency_s` after its launch, and `turnaround_s` after its predecessor on the stream
    lasts      as long as in the profile

Both delays are medians over the profile: of kernels that found the device idle, and of those that
found their stream busy.

One call may launch many kernels, as a captured graph does. The host has no part in when the others
begin: they keep their distance from the first one, as in the profile, on all streams of the graph.
What is launched next begins after all of them.

Streams wait for one another where several devices communicate: communication begins after all work
launched before it, and the first work launched after the step waits for communication begins when
that ends. Other waits between streams are not simulated.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cubemesh.measure.attribution.categories import COMMUNICATION, category_of
from cubemesh.measure.timing.step_timestamps import StampedWindow, boundaries
from cubemesh.schema.profile import Profile, ProfileEvent
from cubemesh.statistics import median

Interval = tuple[float, float]
"""(start, end) in seconds."""
Stretch = Literal["feed", "place", "step", "loop"]
Use = Literal["compute", "communication", "copy", "wait"]
"""`wait` is a communication kernel before the last rank has arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel or copy of a step, as the host launches it."""

    stretch: Stretch
    fraction: float
    """How far into the stretch, 0 to 1."""
    duration_s: float
    lane: int
    use: Use
    wait_s: float = 0.0
    """Communication: seconds before the last rank arrived."""
    joins: bool = False
    """Whether it waits for all communication before it: the first work after the step has waited
    for communication."""
    after_s: float | None = None
    """Begins this long after the first kernel of the same call; None for that kernel itself."""


@dataclass(frozen=True, kw_only=True)
class RecordedSteps:
    """Launches of the profiled steps, and the device's delays."""

    steps: tuple[tuple[Launch, ...], ...]
    latency_s: float
    """From a call on the host to the begin of its kernel on an idle stream."""
    turnaround_s: float
    """From the end of a kernel to the begin of the next one queued behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """A busy interval of the device."""

    launched_s: float
    start_s: float
    end_s: float
    use: Use


def record(
    windows: Sequence[tuple[StampedWindow, Profile]],
    arrivals: Sequence[Sequence[float] | None] | None = None,
) -> RecordedSteps:
    """Launches and delays of profiled windows; ValueError where they hold no work of a device.
    `arrivals` has, for each window, the times at which the last rank began each communication
    kernel; None where they are unknown."""
    steps: list[tuple[Launch, ...]] = []
    latencies: list[float] = []
    turnarounds: list[float] = []
    for index, (window, profile) in enumerate(windows):
        called = {e.launch: e for e in profile.events if e.kind == "runtime" and e.launch}
        work = sorted(profile.on_device, key=lambda e: e.start_s)
        last = None if arrivals is None else arrivals[index]
        steps += _by_step(window, [(_called(e, called), e) for e in work], _waits(work, last))
        _delays(work, called, latencies, turnarounds)
    if not any(steps):
        raise ValueError("the profile holds no kernel of a device")
    return RecordedSteps(
        steps=tuple(steps),
        latency_s=median(latencies) if latencies else 0.0,
        turnaround_s=median(turnarounds) if turnarounds else 0.0,
    )


def simulate(
    window: StampedWindow, recorded: RecordedSteps, first: int = 0
) -> tuple[DeviceWork, ...]:
    """Simulate the device's work in `window`, in order of its begin. Step i repeats recorded step
    `first` + i, cyclically."""
    streams = _Streams(recorded)
    ends = [*(s.feed for s in window.stamps[1:]), window.end_s]
    for index, (stamp, next_feed) in enumerate(zip(window.stamps, ends, strict=True)):
        starts = {
            "feed": (stamp.feed, stamp.place),
            "place": (stamp.place, stamp.step),
            "step": (stamp.step, stamp.done),
            "loop": (stamp.done, next_feed),
        }
        for launch in recorded.steps[(first + index) % len(recorded.steps)]:
            begin, end = starts[launch.stretch]
            streams.launch(launch, begin + launch.fraction * (end - begin))
    return tuple(sorted(streams.found, key=lambda busy: busy.start_s))


class _Streams:
    """The device's streams, and until when each is busy."""

    def __init__(self, recorded: RecordedSteps) -> None:
        self._recorded = recorded
        self._free: dict[int, float] = {}
        self._computed = self._communicated = -math.inf
        self._call_start = self._call_end = -math.inf
        """Of the kernels of one call: when the first begins, and when the last ends."""
        self._call_lanes: set[int] = set()
        self.found: list[DeviceWork] = []

    def launch(self, launch: Launch, at: float) -> None:
        """Add a piece of work launched at time `at`, after all previous ones."""
        communicates = launch.use == "communication"
        if launch.after_s is None:
            start = at + self._recorded.latency_s
            if launch.lane in self._free:
                start = max(start, self._free[launch.lane] + self._recorded.turnaround_s)
            if communicates:
                start = max(start, self._computed)
            elif launch.joins:
                start = max(start, self._communicated)
            self._call_start, self._call_end, self._call_lanes = start, start, set()
        else:
            start = self._call_start + launch.after_s
        end = start + launch.duration_s
        self._call_end = max(self._call_end, end)
        self._call_lanes.add(launch.lane)
        self._free.update(dict.fromkeys(self._call_lanes, self._call_end))
        if communicates:
            self._communicated = max(self._communicated, end)
        else:
            self._computed = max(self._computed, end)
        if launch.wait_s:
            self._add(at, start, start + launch.wait_s, "wait")
        self._add(at, start + launch.wait_s, end, launch.use)

    def _add(self, launched_s: float, start_s: float, end_s: float, use: Use) -> None:
        self.found.append(DeviceWork(launched_s=launched_s, start_s=start_s, end_s=end_s, use=use))


def use_of(event: ProfileEvent) -> Use:
    """Use of a kernel or copy. Copies within the device count as compute."""
    if category_of(event.name) == COMMUNICATION:
        return "communication"
    to_or_from_host = any(way in event.name for way in ("HtoD", "DtoH"))
    return "copy" if event.kind == "copy" and to_or_from_host else "compute"


def communication_kernels(profile: Profile) -> list[ProfileEvent]:
    """Communication kernels, in order of their begin."""
    found = [e for e in profile.on_device if use_of(e) == "communication"]
    return sorted(found, key=lambda e: e.start_s)


def _waits(work: Sequence[ProfileEvent], last: Sequence[float] | None) -> dict[int, float]:
    """Seconds that each communication kernel of `work` (sorted) waited for the last rank, by index;
    `last` has the times at which that rank began each."""
    if last is None:
        return {}
    talks = [i for i, event in enumerate(work) if use_of(event) == "communication"]
    return {
        i: min(max(arrived - work[i].start_s, 0.0), work[i].duration_s)
        for i, arrived in zip(talks, last, strict=True)
    }


def _called(event: ProfileEvent, called: Mapping[int, ProfileEvent]) -> float:
    """Time of its launch by the host; its own begin where no call is known."""
    call = called.get(event.launch) if event.launch else None
    return call.start_s if call else event.start_s


def _by_step(
    window: StampedWindow,
    work: Sequence[tuple[float, ProfileEvent]],
    waits: Mapping[int, float],
) -> Iterator[tuple[Launch, ...]]:
    edges = list(boundaries(window))
    times = [time for time, _ in edges]
    feeds = [stamp.feed for stamp in window.stamps]
    steps: list[list[tuple[float, Launch]]] = [[] for _ in feeds]
    starts: dict[int, float] = {}
    for place, (called, event) in enumerate(work):
        at = max(0, bisect_right(times, called) - 1)
        begin, stretch = edges[at]
        end = times[at + 1] if at + 1 < len(times) else window.end_s
        fraction = (called - begin) / (end - begin) if end > begin else 0.0
        first = starts.get(event.launch) if event.launch else None
        if event.launch and first is None:
            starts[event.launch] = event.start_s
        launch = Launch(
            stretch="loop" if stretch == "wait" else stretch,  # type: ignore[arg-type]
            fraction=min(max(fraction, 0.0), 1.0),
            duration_s=event.duration_s,
            lane=event.lane,
            use=use_of(event),
            wait_s=waits.get(place, 0.0),
            after_s=None if first is None else event.start_s - first,
        )
        index = max(0, bisect_right(feeds, called) - 1)
        steps[index].append((called, launch))
    turned = sorted(t.waited for t in window.transfers)
    for launches in steps:
        launches.sort(key=lambda pair: pair[0])  # keeps the order of one call's kernels
        yield tuple(_joined(launches, turned))


def _joined(launches: Sequence[tuple[float, Launch]], turned: Sequence[float]) -> Iterator[Launch]:
    """Launches of a step; the first after each wait for communication (`turned`) is marked."""
    before = -math.inf
    for called, launch in launches:
        if launch.use == "communication":
            yield launch
            continue
        waited = bisect_right(turned, called) > bisect_right(turned, before)
        before = called
        yield replace(launch, joins=True) if waited else launch


def _delays(
    work: Sequence[ProfileEvent],
    called: Mapping[int, ProfileEvent],
    latencies: list[float],
    turnarounds: list[float],
) -> None:
    """Add samples of both delays from one profile. Work launched on an idle stream while another is
    busy may wait for that one, so it is no sample of the launch latency. Of the kernels of one call
    only the first is a sample."""
    last_end: dict[int, float] = {}
    seen: set[int | None] = set()
    for event in work:
        call = called.get(event.launch) if event.launch and event.launch not in seen else None
        seen.add(event.launch)
        before = last_end.get(event.lane, -math.inf)
        if call is not None and call.start_s >= before:
            if call.start_s >= max(last_end.values(), default=-math.inf):
                latencies.append(max(0.0, event.start_s - call.start_s))
        elif call is not None and call.end_s < before:
            turnarounds.append(max(0.0, event.start_s - before))
        last_end[event.lane] = max(before, event.end_s)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, sorted and disjoint; empty ones are left out."""
    found: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def outside(intervals: Iterable[Interval], excluded: Sequence[Interval]) -> list[Interval]:
    """The part of `intervals` outside `excluded`, which is a union."""
    found: list[Interval] = []
    at = 0
    for start, end in union(intervals):
        while at < len(excluded) and excluded[at][1] <= start:
            at += 1
        index = at
        while start < end:
            if index == len(excluded) or excluded[index][0] >= end:
                found.append((start, end))
                break
            if excluded[index][0] > start:
                found.append((start, excluded[index][0]))
            start = excluded[index][1]
            index += 1
    return found


def length(intervals: Iterable[Interval]) -> float:
    """Total seconds of disjoint intervals."""
    return math.fsum(end - start for start, end in intervals)
