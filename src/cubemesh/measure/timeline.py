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
found their stream at work. Waiting of one stream for another is not played.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cubemesh.measure.categories import COMMUNICATION, category_of
from cubemesh.measure.stamps import StampedWindow, boundaries
from cubemesh.model.profile import Profile, ProfileEvent
from cubemesh.statistics import median

Stretch = Literal["feed", "place", "step", "loop"]
Use = Literal["compute", "communication", "copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel or copy of a step, as the host launches it."""

    stretch: Stretch
    fraction: float
    """How far into the stretch, 0 to 1."""
    duration_s: float
    lane: int
    use: Use


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the profiled steps launched, and how the device takes up its work."""

    steps: tuple[tuple[Launch, ...], ...]
    latency_s: float
    """From a call on the host to the begin of its kernel on an idle stream."""
    turnaround_s: float
    """From the end of one kernel to the begin of the next that waits behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The device at work."""

    launched_s: float
    start_s: float
    end_s: float
    use: Use


def record(windows: Sequence[tuple[StampedWindow, Profile]]) -> Recorded:
    """What can be played of profiled windows; ValueError where they hold no work of a device."""
    steps: list[tuple[Launch, ...]] = []
    latencies: list[float] = []
    turnarounds: list[float] = []
    for window, profile in windows:
        called = {e.launch: e for e in profile.events if e.kind == "runtime" and e.launch}
        work = sorted(profile.on_device, key=lambda e: e.start_s)
        steps += _by_step(window, [(_called(e, called), e) for e in work])
        _delays(work, called, latencies, turnarounds)
    if not any(steps):
        raise ValueError("the profile holds no kernel of a device")
    return Recorded(
        steps=tuple(steps),
        latency_s=median(latencies) if latencies else 0.0,
        turnaround_s=median(turnarounds) if turnarounds else 0.0,
    )


def play(window: StampedWindow, recorded: Recorded, first: int = 0) -> tuple[Busy, ...]:
    """The device's work in `window`, by its begin. Step i does what recorded step `first` + i did,
    going round."""
    free: dict[int, float] = {}
    found = []
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
            launched = begin + launch.fraction * (end - begin)
            start = launched + recorded.latency_s
            if launch.lane in free:
                start = max(start, free[launch.lane] + recorded.turnaround_s)
            free[launch.lane] = start + launch.duration_s
            found.append(
                Busy(
                    launched_s=launched,
                    start_s=start,
                    end_s=free[launch.lane],
                    use=launch.use,
                )
            )
    return tuple(sorted(found, key=lambda busy: busy.start_s))


def use_of(event: ProfileEvent) -> Use:
    """What a kernel or copy serves. Copies within the device are part of computing."""
    if category_of(event.name) == COMMUNICATION:
        return "communication"
    to_or_from_host = any(way in event.name for way in ("HtoD", "DtoH"))
    return "copy" if event.kind == "copy" and to_or_from_host else "compute"


def _called(event: ProfileEvent, called: Mapping[int, ProfileEvent]) -> float:
    """When the host launched it; its own begin, where no call is known."""
    call = called.get(event.launch) if event.launch else None
    return call.start_s if call else event.start_s


def _by_step(
    window: StampedWindow, work: Sequence[tuple[float, ProfileEvent]]
) -> Iterator[tuple[Launch, ...]]:
    edges = list(boundaries(window))
    times = [time for time, _ in edges]
    feeds = [stamp.feed for stamp in window.stamps]
    steps: list[list[tuple[float, Launch]]] = [[] for _ in feeds]
    for called, event in work:
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
        )
        index = max(0, bisect_right(feeds, called) - 1)
        steps[index].append((called, launch))
    for launches in steps:
        launches.sort(key=lambda pair: pair[0])
        yield tuple(launch for _, launch in launches)


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
