"""Outcome of a run. Whatever happens to a measurement is a value, never an exception."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Status(enum.StrEnum):
    """The ways a run ends; each is drawn as a figure, or as a missing point with its reason."""

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
        """Whether this is a valid result, and not a fault to investigate."""
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
    """How a run ended, why, and the remedy."""

    status: Status
    message: str = ""
    """One sentence for the user: what happened, with figures, and the remedy."""
    origin: str = "worker"
    """Where it was detected: by the `worker` itself, or by the `runner` from outside."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Figures and names behind the message: signal, exit_code, forecast_bytes, limit_bytes,
    largest_batch_that_fits, traceback, in_use."""

    @property
    def ok(self) -> bool:
        """Whether the run completed."""
        return self.status is Status.OK
