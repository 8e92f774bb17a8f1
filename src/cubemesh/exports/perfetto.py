"""Perfetto trace of runs: phases, windows, warnings and telemetry on a time axis.

A run is a process of the trace; its ranks have tracks of phases and of windows, its telemetry
counters. Times are Unix time in nanoseconds, so runs that followed each other do so in the trace.
The exact seconds of a window are annotations of its slice. A single run that has a trace of the
profiler (`trace=true`) is written as that trace, in Chrome's JSON.

The format is Perfetto's own: protocol buffers of TracePacket with TrackDescriptor and TrackEvent
(protos/perfetto/trace/trace_packet.proto, docs/reference/synthetic-track-event.md). Field numbers
below are theirs.
"""

from __future__ import annotations

import datetime
import math
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from cubemesh.exports.contents import ExportedRuns
from cubemesh.exports.labels import run_label
from cubemesh.schema import RunRecord, Series
from cubemesh.training.tensorboard import encode_field, encode_varint

TRACE = "trace"
"""Name of the profiler's trace among the artifacts of a run."""
_OVERLAP_NS = 1000
"""Neighbours may overlap by this much, from rounding; the later one is shortened."""
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_BYTES = 3
_UNITS = {
    "_percent": "%",
    "_watts": "W",
    "_joules": "J",
    "_mhz": "MHz",
    "_celsius": "°C",
    "_bytes_per_s": "B/s",
}
"""End of a series' name → its unit; bytes have a unit of Perfetto's own."""
Value = str | int | float | bool


@dataclass(frozen=True)
class _Slice:
    """A named interval, with annotations."""

    name: str
    start_ns: int
    end_ns: int
    notes: Mapping[str, Value]


@dataclass
class _Trace:
    """The packets of a trace, as they are added."""

    packets: list[bytes] = field(default_factory=list)
    tracks: int = 0

    def add_process(self, name: str) -> int:
        """A process; the id of its track."""
        uuid = self.tracks = self.tracks + 1
        process = _number(1, uuid) + _text(6, name)
        self._describe(_number(1, uuid) + encode_field(3, process))
        return uuid

    def add_track(self, parent: int, name: str, counter: bytes | None = None) -> int:
        """A track of slices, or of a counter with this descriptor; its id."""
        uuid = self.tracks = self.tracks + 1
        described = _number(1, uuid) + _text(2, name) + _number(5, parent)
        self._describe(described + (b"" if counter is None else encode_field(8, counter)))
        return uuid

    def add_event(
        self,
        track: int,
        kind: int,
        at_ns: int,
        *,
        name: str = "",
        notes: Mapping[str, Value] | None = None,
        value: float | None = None,
    ) -> None:
        """An event of a track: begin or end of a slice, an instant, or a counter's value."""
        event = _number(9, kind) + _number(11, track)
        event += _text(23, name) if name else b""
        for key, note in (notes or {}).items():
            event += encode_field(4, _annotation(key, note))
        if value is not None:
            event += _double(44, value)
        self._packet(_number(8, at_ns) + encode_field(11, event))

    def add_slices(self, parent: int, name: str, slices: Iterable[_Slice]) -> None:
        """Slices in order of their start; those that overlap get tracks of their own."""
        lanes: list[tuple[int, int]] = []
        for one in sorted(slices, key=lambda s: (s.start_ns, s.end_ns)):
            free = (n for n, (_, end) in enumerate(lanes) if one.start_ns >= end - _OVERLAP_NS)
            lane = next(free, None)
            if lane is None:
                lane = len(lanes)
                title = f"{name} ({lane + 1})" if lane else name
                lanes.append((self.add_track(parent, title), 0))
            track, busy_until = lanes[lane]
            start = max(one.start_ns, busy_until)
            end = max(one.end_ns, start)
            self.add_event(track, _BEGIN, start, name=one.name, notes=one.notes)
            self.add_event(track, _END, end)
            lanes[lane] = track, end

    def _describe(self, descriptor: bytes) -> None:
        self._packet(encode_field(60, descriptor))

    def _packet(self, content: bytes) -> None:
        self.packets.append(encode_field(1, _number(10, 1) + content))


def write(runs: ExportedRuns, file: BinaryIO) -> None:
    """Write a trace of all runs, or the profiler's trace of a single one that has it."""
    if len(runs.records) == 1:
        saved = runs.open_artifact(runs.records[0], TRACE)
        if saved is not None:
            with saved:
                shutil.copyfileobj(saved, file)
            return
    trace = _Trace()
    for record in runs.records:
        _add_run(trace, record, runs.series(record.run_id))
    file.write(b"".join(trace.packets))


def _add_run(trace: _Trace, record: RunRecord, series: Sequence[Series]) -> None:
    started = datetime.datetime.fromisoformat(record.started_utc)
    since = started - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    zero_ns = (since // datetime.timedelta(microseconds=1)) * 1000

    def at(seconds: float) -> int:
        return zero_ns + round(seconds * 1e9)

    process = trace.add_process(f"{run_label(record)} [{record.run_id}]")
    outcome = record.outcome
    whole: dict[str, Value] = {"outcome": outcome.status.value, "message": outcome.message}
    for name, figure in record.figures.items():
        whole[f"{name} ({figure.unit})" if figure.unit else name] = figure.value
    run = _Slice("run", at(0.0), at(record.elapsed_s), whole)
    trace.add_slices(process, "run", [run])
    for rank in sorted({p.rank for p in record.phases} | {w.rank for w in record.windows}):
        phases = (
            _Slice(
                phase.name,
                at(phase.start_s),
                at(phase.start_s + phase.elapsed_s),
                {"start_s": phase.start_s, "elapsed_s": phase.elapsed_s}
                | ({} if phase.cached is None else {"cached": phase.cached}),
            )
            for phase in record.phases
            if phase.rank == rank
        )
        trace.add_slices(process, f"phases of rank {rank}", phases)
        windows = (
            _Slice(
                window.phase,
                at(window.start_s),
                at(window.start_s + window.elapsed_s),
                {
                    "start_s": window.start_s,
                    "elapsed_s": window.elapsed_s,
                    "steps": window.steps,
                    "samples": window.samples,
                    "marks": ",".join(window.marks),
                },
            )
            for window in record.windows
            if window.rank == rank
        )
        trace.add_slices(process, f"windows of rank {rank}", windows)
    if record.warnings:
        track = trace.add_track(process, "warnings")
        for warning in record.warnings:
            notes = {"cause": warning.cause, "remedy": warning.remedy}
            end = at(record.elapsed_s)
            trace.add_event(track, _INSTANT, end, name=warning.code, notes=notes)
    for one in series:
        title = f"{one.name} of {one.device}, rank {one.rank}"
        track = trace.add_track(process, title, b"".join(_unit(one.name)))
        for seconds, value in zip(one.times_s, one.values, strict=True):
            if math.isfinite(value):
                trace.add_event(track, _COUNTER, at(seconds), value=value)


def _unit(name: str) -> Iterator[bytes]:
    """The fields of a counter's descriptor that have its unit."""
    if name.endswith("_bytes"):
        yield _number(3, _BYTES)
    for end, unit in _UNITS.items():
        if name.endswith(end):
            yield _text(6, unit)


def _annotation(name: str, value: Value) -> bytes:
    named = _text(10, name)
    if isinstance(value, bool):
        return named + _number(2, value)
    if isinstance(value, int):
        return named + _number(4, value)
    return named + (_double(5, value) if isinstance(value, float) else _text(6, value))


def _number(number: int, value: int) -> bytes:
    """A varint field; `value` is 0 or more."""
    return encode_varint(number << 3) + encode_varint(value)


def _double(number: int, value: float) -> bytes:
    return encode_varint(number << 3 | 1) + struct.pack("<d", value)


def _text(number: int, value: str) -> bytes:
    return encode_field(number, value.encode("utf-8", "backslashreplace"))
