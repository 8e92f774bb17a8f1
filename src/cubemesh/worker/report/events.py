"""The event file: everything a rank has to say, a JSON object a line, appended as it happens.

One mechanism serves progress, hang detection, crash recovery and the live view. A line is written
with one `write` to a file opened for appending, so what was said before a crash is there, and at
most the last line is torn, or one that a full disk cut short. Times in events are seconds since the
run began (`origin`, a reading of `time.perf_counter()`, which all processes of one Linux host
share).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cubemesh.schema.collective import SweepPoint
from cubemesh.schema.first_steps_trace import Replica
from cubemesh.schema.machine import Unknown
from cubemesh.schema.outcome import Outcome
from cubemesh.schema.record import Breakdown, Curve, Figure, Part, Phase, Window
from cubemesh.schema.serialization import to_plain
from cubemesh.schema.series import Series
from cubemesh.schema.warning import Warning

PROGRESS_EVERY_S = 0.2


@dataclass
class RunningPhase:
    """What is known of a phase before it has ended."""

    cached: bool | None = None
    """Whether what it compiled came from a cache; None where it compiled nothing."""


def events_path(folder: Path, rank: int) -> Path:
    """Where a rank writes its events."""
    return folder / f"events-{rank}.jsonl"


class EventLog:
    """The `Log` of a worker (see measure/telemetry/base.py), written to a rank's event file.

    Events are `{"event": NAME, "t": seconds, NAME: noun as plain data}` with the names phase,
    window, figure (with "name"), curve, part, breakdown, replica, point, warning, unmeasured,
    series, outcome; `rank` (what this rank runs on), `library`, `link` (what it exchanged over),
    `enter` (a phase begins), `artifact` (a file in the run's folder), `progress` and `alive`
    (nothing but that) carry fields of their own.
    """

    def __init__(self, path: Path, rank: int, origin: float) -> None:
        self.rank = rank
        self.origin = origin
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._last_progress = float("-inf")
        self._torn = False

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.origin

    @contextmanager
    def phase(self, name: str) -> Iterator[RunningPhase]:
        """Say that a phase begins, and how long it took, and whether it was cached, if it ends
        well."""
        start, running = self.now(), RunningPhase()
        self._say("enter", name=name)
        yield running
        phase = Phase(
            name=name,
            rank=self.rank,
            start_s=start,
            elapsed_s=self.now() - start,
            cached=running.cached,
        )
        self._noun("phase", phase)

    def window(
        self,
        *,
        phase: str,
        start: float,
        elapsed_s: float,
        steps: int,
        samples: int,
        marks: tuple[str, ...] = (),
    ) -> None:
        """Say that a group of steps has ended."""
        window = Window(
            rank=self.rank,
            phase=phase,
            start_s=start - self.origin,
            elapsed_s=elapsed_s,
            steps=steps,
            samples=samples,
            marks=marks,
        )
        self._noun("window", window)

    def progress(
        self,
        phase: str,
        steps: int,
        step_s: float | None,
        fraction: float | None,
        note: str = "",
    ) -> None:
        """Say how far the run has come, five times a second at most."""
        if self.now() - self._last_progress < PROGRESS_EVERY_S:
            return
        self._last_progress = self.now()
        told = {"phase": phase, "steps": steps, "step_s": step_s, "fraction": fraction}
        self._say("progress", **told, note=note)

    def alive(self) -> None:
        """Say that this process is there. A disk that is full must not make it look dead: then the
        file's other events fail, and say why."""
        with contextlib.suppress(OSError):
            self._say("alive")

    def figure(self, name: str, figure: Figure) -> None:
        """Say a figure."""
        self._noun("figure", figure, name=name)

    def curve(self, curve: Curve) -> None:
        """Say a curve."""
        self._noun("curve", curve)

    def part(self, part: Part) -> None:
        """Say a part of the step."""
        self._noun("part", part)

    def breakdown(self, breakdown: Breakdown) -> None:
        """Say where the time of a step goes."""
        self._noun("breakdown", breakdown)

    def replica(self, replica: Replica) -> None:
        """Say what this rank was fed and made."""
        self._noun("replica", replica)

    def point(self, point: SweepPoint) -> None:
        """Say what a collective took at one size."""
        self._noun("point", point)

    def library(self, name: str) -> None:
        """Say what carries the collectives."""
        self._say("library", name=name)

    def artifact(self, name: str, file: str) -> None:
        """Say that a file of the run's folder is to be kept beside the record."""
        self._say("artifact", name=name, file=file)

    def warning(self, warning: Warning) -> None:
        """Say a warning."""
        self._noun("warning", warning)

    def unmeasured(self, unknown: Unknown) -> None:
        """Say what could not be measured."""
        self._noun("unmeasured", unknown)

    def series(self, series: Series) -> None:
        """Say a chunk of samples."""
        times = tuple(t - self.origin for t in series.times_s)
        chunk = Series(
            name=series.name,
            rank=self.rank,
            device=series.device,
            times_s=times,
            values=series.values,
        )
        self._noun("series", chunk)

    def started(
        self,
        *,
        host: str,
        device: str,
        threads: int,
        processors: Sequence[int] = (),
        devices: Sequence[str] = (),
    ) -> None:
        """Say what this rank runs on: once, before anything is built. `devices` are all, where it
        drives several."""
        bound, driven = list(processors), list(devices)
        self._say(
            "rank", host=host, device=device, threads=threads, processors=bound, devices=driven
        )

    def link(self, *, interface: str, transport: str) -> None:
        """Say over what this rank exchanged."""
        self._say("link", interface=interface, transport=transport)

    def outcome(self, outcome: Outcome) -> None:
        """Say how the run ended: the last event of every rank that ends by itself."""
        self._noun("outcome", outcome)

    def close(self) -> None:
        """Close the file; what was said is on its way to the disk already."""
        os.close(self._file)

    def _noun(self, event: str, noun: Any, **fields: Any) -> None:
        self._say(event, **fields, **{event: to_plain(noun)})

    def _say(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "t": round(self.now(), 6), **fields}).encode() + b"\n"
        with self._lock:
            if self._torn:
                line = b"\n" + line
            written = os.write(self._file, line)
            self._torn = written < len(line)
            if self._torn:  # os.write has no errno to give: part of the line found room
                raise OSError(errno.ENOSPC, "no room left for the run's events")


class EventReader:
    """Reads an event file while it grows: every call gives what came since the last one.

    A line is given once it is whole; one that is not JSON was torn, and is left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """The new whole events; none while the file does not exist."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text.rpartition(b"\n")[0]
        if not whole:
            return []
        self._offset += len(whole) + 1
        events = (_parsed(line) for line in whole.split(b"\n"))
        return [event for event in events if event is not None]


def read_events(path: Path) -> list[dict[str, Any]]:
    """All whole events of a file; a missing file has none."""
    return EventReader(path).read()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:  # not JSON, or not even UTF-8
        return None
    return event if isinstance(event, dict) and "event" in event else None
