"""Damaged rows of a store: what cannot be read is left out and listed, and hides nothing else.

`Store.damage` has every row that a reader has left out, with its id and the reason.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass

from cubemesh.schema.record import AGAINST, RunRecord
from cubemesh.untrusted import clean

MAX_REASON = 200
"""Letters of a reason: a message that repeats a damaged record would be as long as that."""
MAX_SECONDS = 1e10
MAX_FIGURE = 1e100
"""Above it sums and squares are infinite."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One row that was left out."""

    what: str
    """`run`, `series`, `machine` or `experiment run`."""
    id: str
    reason: str

    @property
    def sentence(self) -> str:
        """For a message."""
        return f"{self.what} {clean(self.id, MAX_REASON)} is left out: {self.reason}"


def reason_of(error: Exception) -> str:
    """What was wrong, safe to print: an error may quote a damaged record."""
    return clean(str(error), MAX_REASON)


def check_record(record: RunRecord, run_id: str) -> None:
    """ValueError where figures cannot be computed from a record: its times are no times, or it is
    not the record of this run."""
    if record.run_id != run_id:
        raise ValueError(f"it is the record of run {record.run_id}")
    datetime.datetime.fromisoformat(record.started_utc)
    for window in record.windows:
        timed = window.phase in ("measure", AGAINST)
        if not (0 <= window.elapsed_s < MAX_SECONDS and abs(window.start_s) < MAX_SECONDS):
            raise ValueError(f"a window of {window.elapsed_s} s at {window.start_s} s")
        if timed and not (window.elapsed_s > 0 and window.steps > 0):
            raise ValueError(f"a window of {window.steps} steps in {window.elapsed_s} s")
        if window.steps < 0 or window.samples < 0:
            raise ValueError(f"a window of {window.steps} steps and {window.samples} samples")
    for name, figure in record.figures.items():
        if math.isfinite(figure.value) and abs(figure.value) > MAX_FIGURE:
            raise ValueError(f"{name} is {figure.value}")
    for curve in record.curves:
        if len(curve.x) != len(curve.y):
            raise ValueError(f"{curve.name}: {len(curve.x)} positions, {len(curve.y)} values")
    for point in record.sweep:
        times = point.seconds
        if point.size_bytes <= 0 or not times or not all(0 < s < MAX_SECONDS for s in times):
            raise ValueError(f"a message of {point.size_bytes} bytes in {point.seconds} s")
    for rate in record.links:
        if not 0 < rate.value <= MAX_FIGURE:
            raise ValueError(f"{rate.name} from {rate.source} to {rate.target} is {rate.value}")
