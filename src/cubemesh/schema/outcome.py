"""Outcome of a run. Whatever happens to a measurement is a value, never an exception."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Status(enum.StrEnum):
    """The ways a run ends; each is drawn, as a figure or as a missing point with its reason."""

    OK = "ok"
    OOM = "oom"
    UNSUPPORTED = "unsupported"
    NOT_INSTALLED = "not_installed"
    DIVERGED = "diverged"
    CRASHED = "crashed"
    KILLED = "killed"
    TIMED_OUT = "timed_out"

    @property
    def expected(self) -> bool:
        """Whether this ending is an answer in itself, rather than a fault to look into."""
        return self not in (Status.CRASHED, Status.KILLED, Status.TIMED_OUT)


STATUS_WORDS: Mapping[Status, str] = {
    Status.OK: "done",
    Status.OOM: "out of memory",
    Status.UNSUPPORTED: "not supported",
    Status.NOT_INSTALLED: "not installed",
    Status.DIVERGED: "diverged",
    Status.CRASHED: "crashed",
    Status.KILLED: "killed",
    Status.TIMED_OUT: "timed out",
}
"""How each status reads in tables, findings and reports."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended, why, and what to do about it."""

    status: Status
    message: str = ""
    """One sentence for people: what happened, with figures, and what would work."""
    origin: str = "worker"
    """Who said so: `worker` (caught where it happened) or `runner` (seen from outside)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Figures and names behind the message: signal, exit_code, forecast_bytes, limit_bytes,
    largest_batch_that_fits, traceback."""

    @property
    def ok(self) -> bool:
        """Whether the run came to its end."""
        return self.status is Status.OK
