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
from cubemesh.worker.report.event_schema import (
    MOST_BYTES,
    MOST_EVENT_BYTES,
    MOST_EVENTS,
    Event,
    Refusals,
    parse_event,
)

PROGRESS_EVERY_S = 0.2
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_ROOM = os.EX_IOERR
"""Exit code of a worker whose outcome the disk has no room for."""
MOST_UNWRITTEN_BYTES = 64 << 20
"""Most bytes of events that wait for room on a full disk."""


def events_path(folder: Path, rank: int) -> Path:
    """The event file of a rank."""
    return folder / f"events-{rank}.jsonl"


class EventLog(Log):
    """The log of a worker (measure/log.py), written to a rank's event file.

    Events are `{"event": NAME, "t": seconds, …}` with a result as plain data under the event's own
    name: phase, window, figure (with "name"), curve, scored_samples, part, breakdown, replica,
    point, link_rate, warning, unmeasured, series, outcome. `rank` (host, device, threads), `link`
    (network interface and transport), `library`, `enter` (a phase begins), `artifact` (the name of
    a file in the run's folder), `loss`, `progress` and `alive` (heartbeat) have fields of their
    own.

    While the disk is full, events wait in memory, in their order, and the file's time of change is
    the heartbeat. OSError where the outcome does not fit, or too much waits.
    """

    def __init__(self, path: Path, rank: int, origin: float) -> None:
        self.rank = rank
        self.origin = origin
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._last_progress = float("-inf")
        self._unwritten = bytearray()

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
        """Log a heartbeat. A full disk must not look like a dead process."""
        with contextlib.suppress(OSError):
            if self._unwritten:
                with self._lock:
                    self._write()
            else:
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
        caches: tuple[int, int] | None = None,
    ) -> None:
        """The host, device and processors of this rank; once, before anything is built. `devices`
        lists all devices of a rank that drives several; `caches` has the bytes that only its
        processors use and those that they share."""
        private, shared = caches or (None, None)
        self.emit(
            "rank",
            host=host,
            device=device,
            threads=threads,
            processors=list(processors),
            devices=list(devices),
            private_cache_bytes=private,
            shared_cache_bytes=shared,
        )

    def link(self, *, interface: str, transport: str) -> None:
        """Network interface and transport of this rank's gradient synchronization."""
        self.emit("link", interface=interface, transport=transport)

    def outcome(self, outcome: Outcome) -> None:
        """The outcome: the last event of every rank that ends by itself. OSError where the disk
        has no room for it."""
        self.emit("outcome", outcome=outcome)
        if self._unwritten:
            raise _no_room()

    def close(self) -> None:
        """Close the file; every event is already on its way to the disk."""
        os.close(self._file)

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event, with a single `write`."""
        plain = {name: to_plain(value) for name, value in fields.items()}
        text = json.dumps({"event": event, "t": round(self.now(), 6), **plain}, ensure_ascii=False)
        line = text.encode(errors="replace") + b"\n"  # a path may have bytes that are not UTF-8
        with self._lock:
            self._unwritten += line
            self._write()
            if len(self._unwritten) > MOST_UNWRITTEN_BYTES:
                raise _no_room()

    def _write(self) -> None:
        """Write the events for which the disk has room."""
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._file, self._unwritten)]
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            with contextlib.suppress(OSError):
                os.utime(self._file)


def _no_room() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class EventReader:
    """Reads a rank's event file while it grows. A line that is torn or does not fit the schema
    (event_schema.py) is left out and counted in `refused`."""

    def __init__(self, path: Path, rank: int | None = None) -> None:
        self.refused = Refusals()
        self._path, self._rank = path, rank
        self._offset = 0
        self._kept = 0
        self._too_long = False
        """Within a line of which the beginning was refused."""

    def read(self) -> list[Event]:
        """Complete events since the last call; none while the file does not exist."""
        found: list[Event] = []
        while (block := self._block()) is not None:
            complete, newline, rest = block.rpartition(b"\n")
            if not newline and len(block) <= MOST_EVENT_BYTES:
                break  # torn, or not yet complete
            if not newline:
                if not self._too_long:
                    self.refused.add(f"an event is larger than {MOST_EVENT_BYTES >> 20} MiB")
                self._too_long, self._offset = True, self._offset + len(block)
                continue
            lines = complete.split(b"\n")
            if self._too_long:
                self._too_long = False
                del lines[0]
            self._offset += len(block) - len(rest)
            found += [event for line in lines if line and (event := self._event(line)) is not None]
        return found

    def changed(self) -> tuple[int, int]:
        """Size of the file in bytes and time of its last change in nanoseconds; zeros of a missing
        file. The time alone changes while its rank lives and the disk is full."""
        try:
            found = os.lstat(self._path)
        except OSError:
            return 0, 0
        return found.st_size, found.st_mtime_ns

    def refusals(self, whose: str) -> Event | None:
        """The warning about the events that were refused, as an event of this rank; `whose` names
        it. None where all were fine."""
        warning = self.refused.warning(whose)
        if warning is None:
            return None
        return {"event": "warning", "t": 0.0, "warning": to_plain(warning)}

    def _block(self) -> bytes | None:
        """What comes next, at most a little more than one event; None at the end."""
        try:
            with open(self._path, "rb", opener=_open_file) as file:
                file.seek(self._offset)
                return file.read(MOST_EVENT_BYTES + 1) or None
        except FileNotFoundError:
            return None
        except OSError as error:
            if not self.refused.count:
                self.refused.add(f"the event file cannot be read: {error.strerror or error}")
            return None

    def _event(self, line: bytes) -> Event | None:
        """The event of a line; None where it is refused."""
        try:
            event = parse_event(line, self._rank)
            name = event["event"]
            if name not in ("alive", "outcome"):
                self._kept += 1
                if self._kept > MOST_EVENTS or self._offset > MOST_BYTES:
                    raise ValueError(
                        f"there are more than {MOST_EVENTS:,} events or {MOST_BYTES >> 30} GiB"
                    )
        except ValueError as error:
            self.refused.add(str(error))
            return None
        return event


def _open_file(path: str, flags: int) -> int:
    """Open a rank's event file without following a link or waiting for a writer of a FIFO."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def read_events(path: Path) -> list[Event]:
    """All complete events of a file; none of a missing file."""
    return EventReader(path).read()
