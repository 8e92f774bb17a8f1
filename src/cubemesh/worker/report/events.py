"""Event file of a rank: progress, heartbeats and results as JSON lines, appended as they happen.

The runner follows it for live progress and hang detection, and assembles the record from it even
after a crash: a line is one `write` to a file opened for appending, so at most the last line is
torn. Times are seconds since `origin`, a reading of `time.perf_counter()` (one clock for all
processes of a Linux host).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cubemesh.measure.log import Log
from cubemesh.schema.outcome import Outcome
from cubemesh.schema.serialization import to_plain

PROGRESS_EVERY_S = 0.2


def events_path(folder: Path, rank: int) -> Path:
    """The event file of a rank."""
    return folder / f"events-{rank}.jsonl"


class EventLog(Log):
    """The log of a worker (measure/log.py), written to a rank's event file.

    Events are `{"event": NAME, "t": seconds, …}` with a result as plain data under the event's own
    name: phase, window, figure (with "name"), curve, part, breakdown, replica, point, warning,
    unmeasured, series, outcome. `rank` (host, device, threads), `link` (network interface and
    transport), `library`, `enter` (a phase begins), `artifact` (a file in the run's folder),
    `progress` and `alive` (heartbeat) have fields of their own.
    """

    def __init__(self, path: Path, rank: int, origin: float) -> None:
        self.rank = rank
        self.origin = origin
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._last_progress = float("-inf")
        self._torn = False

    def progress(
        self,
        phase: str,
        steps: int,
        step_s: float | None,
        fraction: float | None,
        note: str = "",
    ) -> None:
        """Log the progress of the run, at most five times a second."""
        if self.now() - self._last_progress < PROGRESS_EVERY_S:
            return
        self._last_progress = self.now()
        super().progress(phase, steps, step_s, fraction, note)

    def alive(self) -> None:
        """Log a heartbeat. A full disk must not look like a dead process: other events then fail
        and report it."""
        with contextlib.suppress(OSError):
            self.emit("alive")

    def library(self, name: str) -> None:
        """The library that runs the collectives."""
        self.emit("library", name=name)

    def artifact(self, name: str, file: str) -> None:
        """A file in the run's folder that is to be stored with the record."""
        self.emit("artifact", name=name, file=file)

    def started(
        self,
        *,
        host: str,
        device: str,
        threads: int,
        processors: Sequence[int] = (),
        devices: Sequence[str] = (),
    ) -> None:
        """The host, device and processors of this rank; once, before anything is built. `devices`
        lists all devices of a rank that drives several."""
        bound, driven = list(processors), list(devices)
        self.emit(
            "rank", host=host, device=device, threads=threads, processors=bound, devices=driven
        )

    def link(self, *, interface: str, transport: str) -> None:
        """Network interface and transport of this rank's gradient synchronization."""
        self.emit("link", interface=interface, transport=transport)

    def outcome(self, outcome: Outcome) -> None:
        """The outcome: the last event of every rank that ends by itself."""
        self.emit("outcome", outcome=outcome)

    def close(self) -> None:
        """Close the file; every event is already on its way to the disk."""
        os.close(self._file)

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event, with a single `write`."""
        plain = {name: to_plain(value) for name, value in fields.items()}
        line = json.dumps({"event": event, "t": round(self.now(), 6), **plain}).encode() + b"\n"
        with self._lock:
            if self._torn:
                line = b"\n" + line
            written = os.write(self._file, line)
            self._torn = written < len(line)
            if self._torn:  # os.write has no errno to give: part of the line found room
                raise OSError(errno.ENOSPC, "no room left for the run's events")


class EventReader:
    """Reads an event file while it grows. Lines that are torn or not JSON are left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Complete events since the last call; none while the file does not exist."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        complete = text.rpartition(b"\n")[0]
        if not complete:
            return []
        self._offset += len(complete) + 1
        events = (_parsed(line) for line in complete.split(b"\n"))
        return [event for event in events if event is not None]


def read_events(path: Path) -> list[dict[str, Any]]:
    """All complete events of a file; none of a missing file."""
    return EventReader(path).read()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:  # not JSON, or not even UTF-8
        return None
    return event if isinstance(event, dict) and "event" in event else None
