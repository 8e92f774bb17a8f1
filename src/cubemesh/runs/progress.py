"""Progress of runs, reported to an observer: the terminal, a log, a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from cubemesh.schema.record import RunRecord
from cubemesh.schema.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of the current run."""

    phase: str
    """import, build, warm-up, measure, evaluate …"""
    steps: int = 0
    """Steps done in this phase."""
    step_s: float | None = None
    """Step time of the latest window; None before the first."""
    fraction: float | None = None
    """Completed fraction of the whole run, 0 to 1, where known."""
    note: str = ""
    """Short text; for training: epoch, loss and accuracy."""


class Observer(Protocol):
    """Called by the session and its executor, always from one thread."""

    def message(self, text: str) -> None:
        """Something to know before the runs: what is planned, other load on the machine."""

    def expect(self, runs: int, *, exact: bool) -> None:
        """The session has this many runs; unless `exact`, at least."""

    def plan(self, specs: Sequence[RunSpec]) -> None:
        """These runs come next; may be called again as an experiment requests more."""

    def start(self, spec: RunSpec) -> None:
        """A run begins in a worker."""

    def progress(self, progress: Progress) -> None:
        """Progress of the current run."""

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """A run is stored; `reused` if it was stored already."""


@runtime_checkable
class EventObserver(Protocol):
    """An observer that also receives the events of the workers."""

    def worker_event(self, event: Mapping[str, Any]) -> None:
        """An event of a rank (worker/report/events.py), which is its field `of_rank`."""


class Silent:
    """An observer that ignores every call."""

    def message(self, text: str) -> None:
        """See `Observer`."""

    def expect(self, runs: int, *, exact: bool) -> None:
        """See `Observer`."""

    def plan(self, specs: Sequence[RunSpec]) -> None:
        """See `Observer`."""

    def start(self, spec: RunSpec) -> None:
        """See `Observer`."""

    def progress(self, progress: Progress) -> None:
        """See `Observer`."""

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """See `Observer`."""
