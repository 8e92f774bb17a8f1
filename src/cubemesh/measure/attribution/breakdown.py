"""Breakdown of the step time by category, by layer and by runtime call.

    category, layer   on a device: the durations of its kernels and copies
                      on the host: the self time of operators (duration less nested operators), by
                      the nearest enclosing name that a rule knows
    runtime call      the durations of the host's calls into the device's runtime

Durations are added up, so concurrent work counts twice, and the sum over the categories is the sum
over the profiler's own events. Everything is divided by the number of recorded steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from cubemesh.measure.attribution.categories import OPTIMIZER, UNNAMED, call_of, category_of
from cubemesh.schema.profile import Profile, ProfileEvent
from cubemesh.schema.record import Breakdown, Figure, TimeRow

NO_LAYER = "(no layer)"
UPDATE = "(update)"
MOST_OPERATORS = 50
LONGEST_NAME = 80
"""Characters of the name of an operator; those of kernels have hundreds."""
Timed = tuple[ProfileEvent, float, str | None, bool]
"""An event, its self time in seconds, its category, and whether it is outermost."""


def by_category(profiles: Sequence[Profile], steps: int) -> Breakdown:
    """Seconds per step by category; `steps` is the number of recorded steps."""
    found = [t for profile in profiles for t in work(profile)]
    rows = _rows(found, steps, lambda timed: timed[2] or UNNAMED)
    return Breakdown(name="category", rows=rows, method=_what(profiles))


def by_layer(profiles: Sequence[Profile], steps: int) -> Breakdown:
    """Seconds per step by layer, forward and backward. The loss belongs to no layer."""
    found = [t for profile in profiles for t in work(profile)]
    rows = _rows(found, steps, lambda t: UPDATE if t[0].update else t[0].layer or NO_LAYER)
    method = f"{_what(profiles)}, forward and backward, recorded with layers annotated"
    return Breakdown(name="layer", rows=rows, method=method)


def by_operator(profiles: Sequence[Profile], steps: int) -> Breakdown:
    """Seconds per step by the name of the operator, or of the kernel or copy, the longest
    `MOST_OPERATORS`."""
    found = [
        (event, own_s, None, True) for profile in profiles for event, own_s, _, _ in work(profile)
    ]
    rows = _rows(found, steps, lambda timed: timed[0].name[:LONGEST_NAME])
    return Breakdown(name="operator", rows=rows[:MOST_OPERATORS], method=_what(profiles))


def by_runtime_call(profiles: Sequence[Profile], steps: int) -> Breakdown | None:
    """Seconds of the host per step by kind of runtime call; None without calls."""
    calls = [e for profile in profiles for e in profile.events if e.kind == "runtime"]
    if not calls:
        return None
    timed: list[Timed] = [(call, call.duration_s, call_of(call.name), True) for call in calls]
    rows = _rows(timed, steps, lambda t: t[2] or "other")
    method = "durations of the host's calls into the device's runtime, under the profiler"
    return Breakdown(name="runtime call", rows=rows, method=method)


def occupancy(profiles: Sequence[Profile]) -> Figure | None:
    """Mean occupancy of the device's warps in percent, weighted by kernel duration; None where the
    profiler does not report it."""
    known = [
        e for p in profiles for e in p.events if e.kind == "kernel" and e.occupancy is not None
    ]
    seconds = math.fsum(e.duration_s for e in known)
    if not seconds:
        return None
    weighted = math.fsum(e.duration_s * (e.occupancy or 0.0) for e in known)
    return Figure(
        value=100 * weighted / seconds,
        unit="%",
        n=len(known),
        method="the profiler's estimate for each kernel, weighted by its duration",
    )


def work(profile: Profile) -> Iterator[Timed]:
    """Every event that computes or copies, with its self time and category."""
    on_device = profile.on_device
    if on_device:
        for event in on_device:
            yield event, event.duration_s, category_of(event.name), True
        return
    for lane in {e.lane for e in profile.events}:
        hosts = (e for e in profile.events if e.lane == lane and e.kind in ("operator", "scope"))
        yield from own_times(hosts)


def own_times(events: Iterable[ProfileEvent]) -> Iterator[Timed]:
    """Operators of one host thread with their self time. An operator that no rule knows has the
    category of the enclosing one."""
    stack: list[_Open] = []
    for event in sorted(events, key=lambda e: (e.start_s, -e.duration_s)):
        while stack and stack[-1].event.end_s <= event.start_s:
            yield from stack.pop().closed()
        if event.kind == "scope":
            continue
        own = OPTIMIZER if event.update else category_of(event.name)
        if stack:
            stack[-1].inside_s += event.duration_s
            own = own if own is not None else stack[-1].category
        stack.append(_Open(event, own, outermost=not stack))
    while stack:
        yield from stack.pop().closed()


class _Open:
    """An operator that has not ended yet."""

    def __init__(self, event: ProfileEvent, category: str | None, *, outermost: bool) -> None:
        self.event, self.category, self.outermost = event, category, outermost
        self.inside_s = 0.0

    def closed(self) -> Iterator[Timed]:
        own_s = max(0.0, self.event.duration_s - self.inside_s)
        yield self.event, own_s, self.category, self.outermost


def _rows(found: Iterable[Timed], steps: int, key: Callable[[Timed], str]) -> tuple[TimeRow, ...]:
    seconds: dict[str, list[float]] = {}
    calls: dict[str, int] = {}
    for timed in found:
        name = key(timed)
        seconds.setdefault(name, []).append(timed[1])
        calls[name] = calls.get(name, 0) + timed[3]
    rows = [
        TimeRow(name=name, seconds=math.fsum(times) / steps, calls=calls[name] / steps)
        for name, times in seconds.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _what(profiles: Sequence[Profile]) -> str:
    if any(profile.on_device for profile in profiles):
        return "durations of the device's kernels and copies"
    return "own times of the framework's operators"
