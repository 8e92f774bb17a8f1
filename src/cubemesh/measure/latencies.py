"""Latencies of requests: from handing over a batch to having its scores, and their percentiles.

A percentile is an order statistic; its interval accounts for slow requests that come in groups
(`statistics.percentile_interval`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cubemesh.schema.record import Figure
from cubemesh.statistics import percentile_interval
from cubemesh.statistics.typical import percentile

PERCENTILES = {
    "latency_p50_s": 50.0,
    "latency_p90_s": 90.0,
    "latency_p99_s": 99.0,
    "latency_p999_s": 99.9,
}
"""Figure → percentile."""


def fewest_requests(percent: float) -> int:
    """Requests without which a percentile is not reported: one is beyond it on average."""
    return round(1 / (1 - percent / 100))


@dataclass
class LatencyRecorder:
    """Times requests one by one."""

    request: Callable[[], None]
    """Returns when the scores are there."""
    clock: Callable[[], float]
    begins: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        """Make and time one request."""
        begin = self.clock()
        self.request()
        self.seconds.append(self.clock() - begin)
        self.begins.append(begin)

    def figures(self, since: float) -> dict[str, Figure]:
        """The percentiles, and the slowest request, of those that began at `since` or later."""
        measured = [s for begin, s in zip(self.begins, self.seconds, strict=True) if begin >= since]
        found = {
            name: _percentile(measured, percent)
            for name, percent in PERCENTILES.items()
            if len(measured) >= fewest_requests(percent)
        }
        if measured:
            found["latency_max_s"] = Figure(value=max(measured), unit="s", n=len(measured))
        return found


def _percentile(values: list[float], percent: float) -> Figure:
    interval = percentile_interval(values, percent)
    return Figure(
        value=percentile(values, percent),
        unit="s",
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        n=len(values),
    )
