"""Interval between checkpoints by Young's and Daly's rule, and the goodput to expect of one.

    step … step │ cost │ step … step │ cost │ step … step ✗ restart │ repeated steps …
    ◀─ interval ─▶       ◀─ interval ─▶

With a fault every `fault_every_s` on average, frequent checkpoints cost time and rare ones lose
steps. Young (1974) balances the two at √(2 · cost · fault_every_s); Daly's higher-order estimate
(2006) also holds where the cost is no small part of the time between faults. Goodput is Daly's
complete model: the share of the elapsed time whose steps are in the final weights.

J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
Generation Computer Systems 22(3), 2006, equations 20 and 37.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

FAULT_EVERY_S = 3600.0
"""Default of the expected time between faults."""
MOST_PER_FAULT = 360
"""Most checkpoints for each expected fault: even without a cost, more frequent ones save at most
0.14 % of the time, and each divides a window of the record."""
_RECENT = 9


def daly_interval_s(cost_s: float, fault_every_s: float) -> float:
    """The seconds of training between two checkpoints that cost `cost_s` each which lose the least
    time (Daly's equation 37)."""
    if cost_s >= 2 * fault_every_s:
        return fault_every_s
    ratio = cost_s / (2 * fault_every_s)
    young_s = math.sqrt(2 * cost_s * fault_every_s)
    return young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def goodput(
    interval_s: float, cost_s: float, fault_every_s: float, restart_s: float, write_s: float = 0.0
) -> float:
    """The useful share of the time, 0 to 1 (Daly's equation 20). After a fault `restart_s` pass
    until training goes on; a checkpoint counts only when it is on the disk, `write_s` later."""
    per_segment = math.expm1(min(700.0, (interval_s + cost_s) / fault_every_s))
    per_fault = math.exp(min(700.0, (restart_s + write_s) / fault_every_s))
    return interval_s / (fault_every_s * per_fault * per_segment)


@dataclass
class CheckpointTimes:
    """Measured times of a training's checkpoints."""

    waits_s: list[float] = field(default_factory=list)
    """For which training stood still for each: comparing the ranks, the snapshot, and the one
    before it that was not written yet."""
    busy_s: list[float] = field(default_factory=list)
    """Processor time of writing each, which training may lack on a CPU."""
    writes_s: list[float] = field(default_factory=list)
    """From the snapshot until it is on the disk."""
    begun_s: list[float] = field(default_factory=list)
    """Readings of a clock at which they began."""

    @property
    def cost_s(self) -> float | None:
        """What one costs, in seconds of training; None before the first."""
        if not self.waits_s:
            return None
        return median(self.waits_s[-_RECENT:]) + _recent(self.busy_s)

    @property
    def write_s(self) -> float:
        """The time until one is on the disk; 0 before the first is."""
        return _recent(self.writes_s)

    @property
    def interval_s(self) -> float | None:
        """The mean time from one to the next; None with fewer than two."""
        count = len(self.begun_s) - 1
        return (self.begun_s[-1] - self.begun_s[0]) / count if count > 0 else None


def _recent(values: list[float]) -> float:
    return median(values[-_RECENT:]) if values else 0.0


@dataclass
class IntervalRule:
    """When the next checkpoint is due, from the times of those before: the first after the first
    window, then by Daly's rule."""

    fault_every_s: float
    due: int = 1
    """The step after which the next is due."""
    _step_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def interval_s(self, times: CheckpointTimes) -> float:
        """Seconds of training between two: no fewer than one takes to be written."""
        least_s = max(times.write_s, self.fault_every_s / MOST_PER_FAULT)
        return max(least_s, daly_interval_s(times.cost_s or 0.0, self.fault_every_s))

    def saw(self, step_s: float) -> None:
        """Add the step time of a window."""
        self._step_s.append(step_s)

    def next_after(self, step: int, times: CheckpointTimes) -> int:
        """The step after which the next is due, one having been taken after `step`."""
        if not self._step_s:
            return step + 1
        steps = self.interval_s(times) / max(median(self._step_s), 1e-9)
        return step + max(1, round(min(steps, 1e15)))
