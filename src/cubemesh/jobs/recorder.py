"""Recorder of a job: an observer of its runs that writes what happens into the queue.

main thread    runs, and tells the recorder ──┐
recorder's     events at once, progress every second, into the store; the lease; what is asked of it
                 pause, edit, stop-at-checkpoint: makes the file that the runs look for
                 stop, or the lease is another's: interrupts the main thread, as Ctrl-C does
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cubemesh.errors import BusyError, CubemeshError, StoreError
from cubemesh.jobs.eta import Eta, eta_of_job, eta_of_run
from cubemesh.jobs.expect import SIGNS, Expected, slowdown
from cubemesh.jobs.lease import Lease, LeaseLost
from cubemesh.jobs.points import RATE, Curves, Point, PointSource
from cubemesh.jobs.queue import RENEW_S
from cubemesh.runs.progress import Progress
from cubemesh.schema import RunRecord, RunSpec
from cubemesh.schema.serialization import to_plain
from cubemesh.untrusted import clean

TICK_S = 1.0
"""Interval of writing progress, and of asking what to do."""
SOON_S = 0.4
"""Least time between two writes. One takes some 2 ms of a processor, so 0.5 % of one at most."""
MOST_MESSAGE = 2000
RECENT, MOST_RECENT = frozenset({RATE, *SIGNS}), 1800
"""Series in which a slowdown is looked for, and most of their points: an hour, as a window takes
two seconds."""
PAUSES = ("pause", "edit", "stop-at-checkpoint")


class Recorder:
    """An observer of the runs of a leased job; a context manager."""

    def __init__(
        self,
        lease: Lease,
        pause_file: Path,
        known: Curves | None = None,
        tick_s: float = TICK_S,
        expect: Callable[[RunSpec], Expected | None] = lambda spec: None,
        machine_id: str = "",
    ) -> None:
        self.stopped = False
        """Whether the user asked to stop it at once."""
        self.lost = False
        """Whether another process holds the job."""
        self._lease, self._pause_file, self._tick_s = lease, pause_file, tick_s
        self._points = PointSource(known)
        self._expect, self._machine_id = expect, machine_id
        self._expected_now: Expected | None = None
        self._recent: dict[str, deque[Point]] = {}
        self._lock = threading.Lock()
        self._events: list[tuple[str, Any]] = []
        self._progress: dict[str, Any] = {}
        self._changed = False
        self._runs, self._exact, self._finished = 0, True, 0
        self._walls_s: list[float] = []
        self._course: list[tuple[float, float]] = []
        self._ended, self._news = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="cubemesh-job", daemon=True)

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._news.set()
        self._thread.join()
        if not self.lost:
            try:
                self._write()
            except LeaseLost:
                self.lost = True

    @property
    def progress_now(self) -> Mapping[str, Any]:
        """The progress as it is stored."""
        with self._lock:
            return dict(self._progress)

    def message(self, text: str) -> None:
        """See `Observer`."""
        self._add("message", {"text": clean(text, MOST_MESSAGE)})

    def expect(self, runs: int, *, exact: bool) -> None:
        """See `Observer`."""
        self._runs, self._exact = max(runs, self._runs), exact

    def plan(self, specs: Sequence[RunSpec]) -> None:
        """See `Observer`."""
        coming = self._finished + sum(spec.budget.repeats for spec in specs)
        self._runs = max(self._runs, coming)

    def start(self, spec: RunSpec) -> None:
        """See `Observer`."""
        self._course.clear()
        self._points.start(self._finished + 1)
        self._recent.clear()
        self._expected_now = self._expected(spec)
        work, expected = spec.work, self._expected_now
        value = {
            "run": self._finished + 1,
            "work": work.kind,
            "network": getattr(work, "network", None),
            "framework": spec.program.framework,
            "batch_per_device": spec.batch_per_device,
            "expected": None if expected is None else asdict(expected),
            "machine_id": self._machine_id,
            "spec": to_plain(spec, defaults=False),
        }
        self._add("run", value, phase="start", note="", fraction=0.0, slow=None)

    def _expected(self, spec: RunSpec) -> Expected | None:
        try:
            return self._expect(spec)
        except CubemeshError:  # nothing that is known of other runs may end this one
            return None

    def _slow(self) -> dict[str, Any] | None:
        """Whether the run is slower than expected, by its last hour."""
        if self._expected_now is None:
            return None
        expected = self._expected_now
        found = slowdown(expected.samples_per_s, expected.low, self._recent)
        return None if found is None else asdict(found)

    def progress(self, progress: Progress) -> None:
        """See `Observer`."""
        with self._lock:
            self._progress["phase"] = progress.phase
            if progress.note:  # other phases have none
                self._progress["note"] = clean(progress.note, 200)
            if progress.fraction is not None:
                self._progress["fraction"] = progress.fraction
            self._changed = True

    def worker_event(self, event: Mapping[str, Any]) -> None:
        """See `EventObserver`."""
        if event["event"] == "warning" and event["of_rank"] == 0:
            self._add("warning", event["warning"])
        for kind, value in self._points.events(event):
            self._add(kind, value)
            if kind == "points" and value["series"] in RECENT:
                recent = self._recent.setdefault(value["series"], deque(maxlen=MOST_RECENT))
                recent.extend(value["points"])
            if kind == "points" and value["series"] == RATE:
                slow = self._slow()
                with self._lock:
                    self._progress["samples_per_s"] = value["points"][-1][1]
                    self._progress["slow"] = slow
            elif kind == "points" and value["series"] == "training_loss":
                with self._lock:
                    self._progress["loss"] = value["points"][-1][1]
        if event["event"] == "progress" and event["of_rank"] == 0:
            self._estimate(event)

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """See `Observer`."""
        self._finished += 1
        self._course.clear()
        if not reused:
            self._walls_s.append(record.elapsed_s)
        self._lease.add_run(record.run_id)
        value = {
            "run": self._finished,
            "run_id": record.run_id,
            "outcome": record.outcome.status.value,
            "message": clean(record.outcome.message, MOST_MESSAGE),
            "reused": reused,
        }
        self._add("finished", value, fraction=1.0)

    def log(self, text: str) -> None:
        """Lines for the job's log."""
        self._add("log", {"text": clean(text, 4 * MOST_MESSAGE)})

    def _estimate(self, event: Mapping[str, Any]) -> None:
        if event["fraction"] is None or event["phase"] != "measure":
            return
        self._course.append((event["t"], event["fraction"]))
        to_come = self._runs - self._finished - 1
        current = eta_of_run(self._course)
        found = eta_of_job(current, self._walls_s, to_come, exact=self._exact)
        if found is not None:
            self._add("eta", _rounded(found), **_rounded(found))

    def _add(self, kind: str, value: Any, **progress: Any) -> None:
        with self._lock:
            if kind == "eta" and self._events and self._events[-1][0] == "eta":
                self._events.pop()  # of several in a tick the newest
            self._events.append((kind, value))
            runs = {"run": min(self._finished + 1, max(1, self._runs)), "runs": self._runs}
            self._progress |= {**runs, "finished": self._finished, **progress}
            self._changed = True
        if kind != "eta":  # comes with every report of progress
            self._news.set()

    def _follow(self) -> None:
        """The recorder's thread."""
        renewed = tried = time.monotonic()
        while not self._ended.is_set():
            if self._news.wait(self._tick_s):
                if self._ended.wait(max(0.0, tried + SOON_S - time.monotonic())):
                    return
                self._news.clear()
            try:
                with self._lock:
                    changed = self._changed
                if changed or time.monotonic() - renewed >= RENEW_S:
                    tried = time.monotonic()
                    control = self._write()
                    renewed = time.monotonic()
                else:
                    control = self._lease.control()
                self._obey(control)
            except LeaseLost:
                self._interrupt(lost=True)
                return
            except (BusyError, StoreError):
                if time.monotonic() - renewed >= self._lease.seconds:
                    self._interrupt(lost=True)
                    return

    def _write(self) -> str | None:
        with self._lock:
            events, self._events = self._events, []
            progress, self._changed = dict(self._progress), False
        try:
            return self._lease.renew(progress, events)
        except (BusyError, StoreError):
            with self._lock:
                self._events, self._changed = [*events, *self._events], True
            raise

    def _obey(self, control: str | None) -> None:
        if control in PAUSES:
            self._pause_file.touch()
        elif control == "stop" and not self.stopped:
            self._interrupt(lost=False)

    def _interrupt(self, *, lost: bool) -> None:
        self.lost, self.stopped = lost, not lost
        if not self._ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)


def _rounded(eta: Eta) -> dict[str, Any]:
    return {
        "eta_s": round(eta.seconds, 3),
        "eta_low_s": round(eta.low_s, 3),
        "eta_high_s": round(eta.high_s, 3),
        "eta_exact": eta.exact,
    }
