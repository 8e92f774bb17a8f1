"""What did the device do in a window that nobody profiled?

The host's times of that window are known from its stamps; how long each kernel runs, and at which
point of a step the host launches it, is known from steps that were profiled. Played together they
give the device's timeline without the profiler's slowing the host:

    launched   where in its stretch of the step (feed, place, step, loop) the profile saw the call,
               in proportion, in the stretch as the stamps have it
    begins     when launched, `latency_s` later, and not before what precedes it on its stream has
               ended, `turnaround_s` later
    lasts      as long as in the profile

Both delays are medians over the profile: of kernels that found the device idle, and of those that
found their stream at work.

Streams wait for one another where several devices exchange: communication begins when all is done
that was launched before it, and what is launched first after the step has turned to wait for the
exchange begins when that is over. No other waiting of streams is played.
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
"""`wait` is a communication kernel before the last rank has come."""


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
    """Of communication: for how much of it the last rank had not come."""
    joins: bool = False
    """Whether it waits for all communication before it: the first after the step turned to wait for
    an exchange."""


@dataclass(frozen=True, kw_only=True)
class RecordedSteps:
    """What the profiled steps launched, and how the device takes up its work."""

    steps: tuple[tuple[Launch, ...], ...]
    latency_s: float
    """From a call on the host to the begin of its kernel on an idle stream."""
    turnaround_s: float
    """From the end of one kernel to the begin of the next that waits behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """The device at work."""

    launched_s: float
    start_s: float
    end_s: float
    use: Use


def record(
    windows: Sequence[tuple[StampedWindow, Profile]],
    arrivals: Sequence[Sequence[float] | None] | None = None,
) -> RecordedSteps:
    """What can be played of profiled windows; ValueError where they hold no work of a device.
    `arrivals` are, of each window, when the last rank began each communication kernel; None where
    that is not known."""
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


def play(window: StampedWindow, recorded: RecordedSteps, first: int = 0) -> tuple[DeviceWork, ...]:
    """The device's work in `window`, by its begin. Step i does what recorded step `first` + i did,
    going round."""
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
    """The device's streams, and until when each has work."""

    def __init__(self, recorded: RecordedSteps) -> None:
        self._recorded = recorded
        self._free: dict[int, float] = {}
        self._computed = self._communicated = -math.inf
        self.found: list[DeviceWork] = []

    def launch(self, launch: Launch, at: float) -> None:
        """One more piece of work, launched at that time, after all that were before it."""
        talks = launch.use == "communication"
        start = at + self._recorded.latency_s
        if launch.lane in self._free:
            start = max(start, self._free[launch.lane] + self._recorded.turnaround_s)
        if talks:
            start = max(start, self._computed)
        elif launch.joins:
            start = max(start, self._communicated)
        end = self._free[launch.lane] = start + launch.duration_s
        if talks:
            self._communicated = max(self._communicated, end)
        else:
            self._computed = max(self._computed, end)
        if launch.wait_s:
            self._add(at, start, start + launch.wait_s, "wait")
        self._add(at, start + launch.wait_s, end, launch.use)

    def _add(self, launched_s: float, start_s: float, end_s: float, use: Use) -> None:
        self.found.append(DeviceWork(launched_s=launched_s, start_s=start_s, end_s=end_s, use=use))


def use_of(event: ProfileEvent) -> Use:
    """What a kernel or copy serves. Copies within the device are part of computing."""
    if category_of(event.name) == COMMUNICATION:
        return "communication"
    to_or_from_host = any(way in event.name for way in ("HtoD", "DtoH"))
    return "copy" if event.kind == "copy" and to_or_from_host else "compute"


def talking(profile: Profile) -> list[ProfileEvent]:
    """Its communication kernels, in the order they began."""
    found = [e for e in profile.on_device if use_of(e) == "communication"]
    return sorted(found, key=lambda e: e.start_s)


def _waits(work: Sequence[ProfileEvent], last: Sequence[float] | None) -> dict[int, float]:
    """For how long each communication kernel of `work`, which is sorted, waited for the last rank,
    by its place in it; `last` is when that one began each."""
    if last is None:
        return {}
    talks = [i for i, event in enumerate(work) if use_of(event) == "communication"]
    return {
        i: min(max(arrived - work[i].start_s, 0.0), work[i].duration_s)
        for i, arrived in zip(talks, last, strict=True)
    }


def _called(event: ProfileEvent, called: Mapping[int, ProfileEvent]) -> float:
    """When the host launched it; its own begin, where no call is known."""
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
    for place, (called, event) in enumerate(work):
        at = max(0, bisect_right(times, called) - 1)
        begin, stretch = edges[at]
        end = times[at + 1] if at + 1 < len(times) else window.end_s
        fraction = (called - begin) / (end - begin) if end > begin else 0.0
        launch = Launch(
            stretch="loop" if stretch == "wait" else stretch,  # type: ignore[arg-type]
            fraction=min(max(fraction, 0.0), 1.0),
            duration_s=event.duration_s,
            lane=event.lane,
            use=use_of(event),
            wait_s=waits.get(place, 0.0),
        )
        index = max(0, bisect_right(feeds, called) - 1)
        steps[index].append((called, launch))
    turned = sorted(t.waited for t in window.transfers)
    for launches in steps:
        launches.sort(key=lambda pair: pair[0])
        yield tuple(_joined(launches, turned))


def _joined(launches: Sequence[tuple[float, Launch]], turned: Sequence[float]) -> Iterator[Launch]:
    """The launches of a step, those marked that come first after the step `turned` to wait."""
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
    """Add what the device's work of one profile tells of both delays. What is launched on an idle
    stream while another works may wait for that one: it tells nothing of the way to the device."""
    last_end: dict[int, float] = {}
    for event in work:
        call = called.get(event.launch) if event.launch else None
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


def outside(intervals: Iterable[Interval], taken: Sequence[Interval]) -> list[Interval]:
    """The part of `intervals` outside `taken`, which is a union."""
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
    """Total seconds of disjoint intervals."""
    return math.fsum(end - start for start, end in intervals)
