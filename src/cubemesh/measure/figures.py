"""Figures of a run, computed from its measured windows.

    throughput_per_s           Σ samples / Σ elapsed
    step_s                     median over windows of elapsed / steps
    projected_90_epochs_days   90 · 1,280,000 / throughput / 86,400
    wall_s                     process start to end

Throughput is a ratio of sums, not a mean of rates: each window counts by its duration. Intervals
are Student's, widened for the autocorrelation of the windows (statistics/intervals.py). The
projection is the time for 90 epochs of ILSVRC-2012, which the paper "Deep learning performance with
P100 GPUs" (doc-003) gives as a real training, at this run's image size and throughput; its interval
is the inverse of the throughput's.
"""

from __future__ import annotations

from collections.abc import Sequence

from cubemesh.schema.record import Figure, Window
from cubemesh.statistics import (
    CONFIDENCE,
    FEWEST_FOR_INTERVAL,
    median,
    median_interval,
    throughput_interval,
)

PROJECTED_IMAGES = 90 * 1_280_000
DAY_S = 86_400


def figures(
    windows: Sequence[Window], wall_s: float, confidence: float = CONFIDENCE
) -> dict[str, Figure]:
    """The figures above, by name, from the measured windows of one rank; `confidence` is that of
    the budget (`stopping_rule.confidence_of`).

    Only `wall_s` without windows; no interval with fewer than six. ValueError for windows of
    several ranks, which overlap in time and cannot be added.
    """
    wall = {"wall_s": Figure(value=wall_s, unit="s")}
    if not windows:
        return wall
    if len({w.rank for w in windows}) > 1:
        raise ValueError("figures are computed rank by rank; these windows come from several")
    throughput = _throughput(windows, confidence)
    return {
        "throughput_per_s": throughput,
        "step_s": _step(windows, confidence),
        "projected_90_epochs_days": _projection(throughput),
        **wall,
    }


def half_width(windows: Sequence[Window], confidence: float) -> float | None:
    """Half-width of the throughput's interval, relative to it; None with fewer than six windows."""
    found = _throughput(windows, confidence)
    if found.low is None or found.high is None:
        return None
    return (found.high - found.low) / 2 / found.value


def _throughput(windows: Sequence[Window], confidence: float) -> Figure:
    samples = [w.samples for w in windows]
    seconds = [w.elapsed_s for w in windows]
    value, n = sum(samples) / sum(seconds), len(windows)
    if n < FEWEST_FOR_INTERVAL:
        return Figure(value=value, unit="samples/s", n=n)
    interval = throughput_interval(samples, seconds, confidence)
    return Figure(value=value, unit="samples/s", low=interval.low, high=interval.high, n=n)


def _step(windows: Sequence[Window], confidence: float) -> Figure:
    values = [w.step_s for w in windows]
    value, n = median(values), len(windows)
    if n < FEWEST_FOR_INTERVAL:
        return Figure(value=value, unit="s", n=n)
    interval = median_interval(values, confidence)
    return Figure(value=value, unit="s", low=interval.low, high=interval.high, n=n)


def _projection(throughput: Figure) -> Figure:
    def days(rate: float | None) -> float | None:
        return PROJECTED_IMAGES / rate / DAY_S if rate else None

    return Figure(
        value=PROJECTED_IMAGES / throughput.value / DAY_S,
        unit="days",
        low=days(throughput.high),
        high=days(throughput.low),
        n=throughput.n,
    )
