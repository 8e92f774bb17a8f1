"""Who watches while runs are sent out: the terminal, a log, a test.

The executor tells an observer what it does as it does it; an observer only looks. Views implement
this, so runs/ knows nothing of terminals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cubemesh.schema.record import RunRecord
from cubemesh.schema.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where the run in hand stands."""

    phase: str
    """import, build, warm-up, measure, evaluate …"""
    steps: int = 0
    """Steps done in this phase."""
    step_s: float | None = None
    """Seconds a step takes, from the latest window; None before the first."""
    fraction: float | None = None
    """How much of the whole run is done, 0 to 1, where that can be told."""
    note: str = ""
    """A few words on top: of a training its epoch, loss and accuracy."""


class Observer(Protocol):
    """Called by the executor, always from one thread."""

    def plan(self, specs: Sequence[RunSpec]) -> None:
        """These runs are to be had next; may be called again as an experiment asks for more."""

    def start(self, spec: RunSpec) -> None:
        """This run begins in a worker."""

    def progress(self, progress: Progress) -> None:
        """News of the run in hand."""

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """This run is stored; `reused` when it was there already."""


class Silent:
    """An observer that says nothing."""

    def plan(self, specs: Sequence[RunSpec]) -> None:
        """Say nothing."""

    def start(self, spec: RunSpec) -> None:
        """Say nothing."""

    def progress(self, progress: Progress) -> None:
        """Say nothing."""

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """Say nothing."""
