"""Goodput of a training: the share of its time whose steps are in the final weights, measured over
its attempts, and forecast for other times between faults.

    attempt 1   start │ steps │ checkpoint │ steps ✗       steps after the checkpoint: repeated
    attempt 2   start │ steps │ …                          from a fault to its first step: start

Of the measured windows those count whose last step is in the checkpoint from which the next attempt
resumed, and all of the last attempt. The forecast is that of training/checkpoint_interval.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cubemesh.schema import Cell, Column, Finding, RunRecord, Table
from cubemesh.training.checkpoint_interval import daly_interval_s
from cubemesh.training.checkpoint_interval import goodput as expected_goodput
from cubemesh.units import format_count, format_seconds

FAULTS_EVERY_S = (120.0, 300.0, 1200.0, 3600.0)
"""Times between faults in the table."""


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """How a training with restarts spent its time."""

    elapsed_s: float
    """From the start of the first attempt to the end of the last."""
    useful_s: float
    """Training and evaluation that are part of the result."""
    repeated_s: float
    """Training and evaluation that were lost with a fault."""
    start_s: float
    """From the start, or a fault, to the first measured window, of all attempts."""

    @property
    def share(self) -> float:
        """The useful share, 0 to 1."""
        return self.useful_s / self.elapsed_s


def goodput_of(records: Sequence[RunRecord]) -> Goodput | None:
    """The goodput over the attempts of one training, in order; None without a measured window."""
    resumed = [round(record.figure("resumed_at_step") or 0) for record in records]
    useful_s = repeated_s = start_s = 0.0
    ended: float | None = None
    for place, record in enumerate(records):
        began = datetime.datetime.fromisoformat(record.started_utc).timestamp()
        last = resumed[place + 1] if place + 1 < len(records) else None
        step = resumed[place]
        first_s = record.elapsed_s
        for window in record.windows:
            if window.rank:
                continue
            trains = window.phase != "evaluate"
            step += window.steps if trains else 0
            if window.phase == "warm-up":
                continue
            first_s = min(first_s, window.start_s)
            if last is None or step <= last:
                useful_s += window.elapsed_s
            else:
                repeated_s += window.elapsed_s
        start_s += first_s + (0.0 if ended is None else max(0.0, began - ended))
        ended = began + record.elapsed_s
    if ended is None or not useful_s:
        return None
    first = datetime.datetime.fromisoformat(records[0].started_utc).timestamp()
    return Goodput(
        elapsed_s=max(ended - first, useful_s),
        useful_s=useful_s,
        repeated_s=repeated_s,
        start_s=start_s,
    )


def goodput_finding(records: Sequence[RunRecord]) -> Iterator[Finding]:
    """The goodput of a training that was restarted and completed."""
    found = goodput_of(records) if len(records) > 1 and records[-1].ok else None
    if found is None:
        return
    faults = len(records) - 1
    yield Finding(
        code="goodput",
        text=f"{100 * found.share:.1f} % of {format_seconds(found.elapsed_s)} was useful, with "
        f"{format_count(faults)} {'fault' if faults == 1 else 'faults'}: "
        f"{format_seconds(found.repeated_s)} of steps were repeated, and starts took "
        f"{format_seconds(found.start_s)}.",
        value=100 * found.share,
        unit="%",
    )


def goodput_table(records: Sequence[RunRecord]) -> Iterator[Table]:
    """The goodput to expect by the time between faults: with the interval of Daly's rule, and with
    the interval of the last run."""
    if not records:
        return
    record = records[-1]
    cost_s, restart_s = record.figure("checkpoint_cost_s"), record.figure("restart_s")
    if cost_s is None or restart_s is None:
        return
    if len(records) > 1 and (found := goodput_of(records)) is not None:
        restart_s = found.start_s / len(records)  # with what passes between two runs
    write_s, own_s = record.figure("checkpoint_write_s"), record.figure("checkpoint_interval_s")
    columns = (
        Column(name="a fault every"),
        Column(name="interval by Daly's rule", unit="s"),
        Column(name="goodput", unit="%"),
        Column(name="goodput at this run's interval", unit="%"),
    )
    rows = []
    for fault_every_s in FAULTS_EVERY_S:
        others = cost_s, fault_every_s, restart_s, write_s or 0.0
        rule_s = max(daly_interval_s(cost_s, fault_every_s), write_s or 0.0)
        own = None if own_s is None else 100 * expected_goodput(own_s, *others)
        rows.append(
            (
                Cell(text=format_seconds(fault_every_s)),
                Cell(value=rule_s, run_id=record.run_id),
                Cell(value=100 * expected_goodput(rule_s, *others)),
                Cell(reason="fewer than two checkpoints") if own is None else Cell(value=own),
            )
        )
    yield Table(
        title="Goodput to expect, by time between faults", columns=columns, rows=tuple(rows)
    )
