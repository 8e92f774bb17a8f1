"""Schema of events: what ranks and hosts may report, and how much of it.

A rank runs a framework's code and a host is another machine, so neither is trusted: `parse_event`
checks the types and required fields of each line, and its size and nesting. What passes can be
assembled into a record; what does not is refused, and the record warns of it (`Refusals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cubemesh.schema.collective import LinkRate, SweepPoint
from cubemesh.schema.first_steps_trace import COUNTERS, RankTrace, Sketch
from cubemesh.schema.machine import Unknown
from cubemesh.schema.outcome import Outcome
from cubemesh.schema.record import Breakdown, Curve, Figure, Part, Phase, ScoredSamples, Window
from cubemesh.schema.serialization import from_plain
from cubemesh.schema.series import Series
from cubemesh.schema.warning import WARNINGS, Warning, warn
from cubemesh.training.scored_samples import MAX_SAMPLES
from cubemesh.untrusted import clean, parse_json, quoted

MOST_EVENT_BYTES = 16 << 20
"""Most bytes of an event: a curve with a point a step is the largest."""
MOST_EVENTS = 5_000_000
"""Most events of a rank, beyond heartbeats and its outcome."""
MOST_BYTES = 1 << 30
"""Most bytes of a rank's events, beyond the same."""
LEAST_S = 1e-12
"""Shortest time of steps or of an operation."""
MOST = 1e18
"""Largest time, count or size."""
MOST_DEVICES = 4096
"""Most devices of one rank."""

Event = dict[str, Any]
"""An event that fits the schema."""


@dataclass(frozen=True, kw_only=True)
class _Alive:
    pass


@dataclass(frozen=True, kw_only=True)
class _Named:
    """A library of collectives, or a phase that begins."""

    name: str


@dataclass(frozen=True, kw_only=True)
class _Artifact:
    name: str
    file: str


@dataclass(frozen=True, kw_only=True)
class _NamedFigure:
    name: str
    figure: Figure


@dataclass(frozen=True, kw_only=True)
class _Link:
    interface: str
    transport: str


@dataclass(frozen=True, kw_only=True)
class _Rank:
    host: str
    device: str
    threads: int
    processors: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    private_cache_bytes: int | None = None
    shared_cache_bytes: int | None = None
    clock_offset_s: float = 0.0
    device_name: str = ""
    device_uuid: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Loss:
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class _Progress:
    phase: str
    steps: int
    step_s: float | None
    fraction: float | None
    note: str = ""


RESULTS: Mapping[str, type[Any]] = {
    "phase": Phase,
    "window": Window,
    "curve": Curve,
    "part": Part,
    "breakdown": Breakdown,
    "replica": RankTrace,
    "point": SweepPoint,
    "link_rate": LinkRate,
    "warning": Warning,
    "unmeasured": Unknown,
    "series": Series,
    "scored_samples": ScoredSamples,
    "outcome": Outcome,
}
"""Events with one field, of the event's own name."""
OTHERS: Mapping[str, type[Any]] = {
    "alive": _Alive,
    "enter": _Named,
    "library": _Named,
    "artifact": _Artifact,
    "figure": _NamedFigure,
    "link": _Link,
    "loss": _Loss,
    "rank": _Rank,
    "progress": _Progress,
}
"""Events with fields of their own."""
MEASURED = frozenset(
    {"phase", "window", "part", "breakdown", "point", "link_rate", "rank", "progress"}
)
"""Events whose numbers are times, counts and sizes, so at most `MOST`. A loss or a figure may be
infinite or not a number."""


def _sketches(trace: RankTrace) -> Iterator[Sketch]:
    yield from trace.weights
    yield from trace.outputs
    yield from trace.own_gradients
    yield from trace.gradients
    yield from trace.final_weights


SOUND: Mapping[str, Callable[[Any], bool]] = {
    "window": lambda w: (
        min(w.elapsed_s, w.steps, w.samples) >= 0
        and (w.waited_s is None or w.waited_s >= 0)
        and (w.phase == "evaluate" or (w.elapsed_s >= LEAST_S and w.steps > 0 < w.samples))
    ),
    "point": lambda p: p.size_bytes > 0 and bool(p.seconds) and min(p.seconds) >= LEAST_S,
    "link_rate": lambda r: r.value >= LEAST_S and r.n > 0,
    "series": lambda s: len(s.times_s) == len(s.values),
    "warning": lambda w: w.code in WARNINGS,
    "replica": lambda t: all(len(sketch.sums) == COUNTERS for sketch in _sketches(t)),
    "curve": lambda c: len(c.x) == len(c.y),
    "scored_samples": lambda s: (
        0 < s.count <= MAX_SAMPLES and len(s.right) == 4 * (((s.count + 7) // 8 + 2) // 3)
    ),
    "rank": lambda r: len(r.devices) <= MOST_DEVICES,
}
"""What else must hold of an event."""
OF_RANK = frozenset({"phase", "window", "series"})
"""Events with the number of their rank."""


def parse_event(line: bytes, rank: int | None = None) -> Event:
    """The event in a line of JSON, of this rank. ValueError with the reason where it is not of the
    schema."""
    if len(line) > MOST_EVENT_BYTES:
        raise ValueError(f"an event is larger than {MOST_EVENT_BYTES >> 20} MiB")
    event = parse_json(line)
    if not isinstance(event, dict):
        raise ValueError("a line is not a table of JSON")
    name, fields = event.get("event"), {k: v for k, v in event.items() if k not in ("event", "t")}
    kind = (RESULTS.get(name) or OTHERS.get(name)) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"there is no event {quoted(name)}")
    assert isinstance(name, str)
    if not isinstance(event.get("t"), float | int):
        raise ValueError(f"{name}: t is {quoted(event.get('t'))}, not a time")
    if name in MEASURED and not _limited(fields):
        raise ValueError(f"{name}: a number is beyond {MOST:g}, or not one")
    if name in RESULTS:
        if set(fields) != {name}:
            raise ValueError(f"{name}: its fields are {quoted(sorted(fields))}")
        result = from_plain(kind, fields[name])
    else:
        result = from_plain(kind, fields)
    if name in SOUND and not SOUND[name](result):
        raise ValueError(f"{name}: its values contradict each other, or are not positive")
    if rank is not None and name in OF_RANK and result.rank != rank:
        raise ValueError(f"{name}: it is of rank {result.rank}")
    return event


def _limited(value: Any) -> bool:
    if isinstance(value, float | int):
        return abs(value) <= MOST  # false for NaN
    if isinstance(value, dict):
        return all(map(_limited, value.values()))
    return not isinstance(value, list) or all(map(_limited, value))


@dataclass
class Refusals:
    """Events of one rank that were refused."""

    count: int = 0
    first: str = ""
    """Why the first was."""

    def add(self, reason: str) -> None:
        """One more."""
        self.first = self.first or clean(reason, 300)
        self.count += 1

    def warning(self, whose: str) -> Warning | None:
        """The warning about them; `whose` names the rank. None where there are none."""
        if not self.count:
            return None
        events = "1 event" if self.count == 1 else f"{self.count:,} events"
        return warn(
            "event-refused",
            f"{events} of {whose} could not be used: {self.first}.",
            "What they reported is missing here. Check that the host runs this cubemesh, and that "
            "its disk is not full.",
        )
