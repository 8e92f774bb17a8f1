"""Which figures follow from the windows of a run?

    throughput_per_s           Σ samples / Σ elapsed
    step_s                     median over windows of elapsed / steps
    projected_90_epochs_days   90 · 1,280,000 / throughput / 86,400
    wall_s                     process start to end

Throughput is a ratio of sums, never a mean of rates: a slow window counts for as long as it took.
Its interval comes from drawing windows with replacement and taking the ratio anew; that of step_s
from the median of such draws. The projection is the time to pass through as many images as 90
epochs of ILSVRC-2012 have (document 003 names 90 epochs as what a real training takes), at this
run's image size and speed; its interval is the throughput's, turned over. Whoever has the windows
can compute all of this again.
"""

from __future__ import annotations

from collections.abc import Sequence

from cubemesh.schema.record import Figure, Window
from cubemesh.statistics import FEWEST_FOR_INTERVAL, bootstrap_interval, median, throughput_interval

PROJECTED_IMAGES = 90 * 1_280_000
DAY_S = 86_400


def figures(windows: Sequence[Window], wall_s: float) -> dict[str, Figure]:
    """The figures above, by name, from the measured windows of one rank.

    Without windows there is `wall_s` alone; fewer than six bear no interval. ValueError for windows
    of several ranks, which ran at the same time and cannot be added up.
    """
    wall = {"wall_s": Figure(value=wall_s, unit="s")}
    if not windows:
        return wall
    if len({w.rank for w in windows}) > 1:
        raise ValueError("figures are computed rank by rank; these windows come from several")
    throughput = _throughput(windows)
    return {
        "throughput_per_s": throughput,
        "step_s": _step(windows),
        "projected_90_epochs_days": _projection(throughput),
        **wall,
    }


def half_width(windows: Sequence[Window]) -> float | None:
    """Half of the throughput's interval as a share of it; None for fewer than six windows."""
    found = _throughput(windows)
    if found.low is None or found.high is None:
        return None
    return (found.high - found.low) / 2 / found.value


def _throughput(windows: Sequence[Window]) -> Figure:
    samples = [w.samples for w in windows]
    seconds = [w.elapsed_s for w in windows]
    value, n = sum(samples) / sum(seconds), len(windows)
    if n < FEWEST_FOR_INTERVAL:
        return Figure(value=value, unit="samples/s", n=n)
    interval = throughput_interval(samples, seconds)
    return Figure(value=value, unit="samples/s", low=interval.low, high=interval.high, n=n)


def _step(windows: Sequence[Window]) -> Figure:
    values = [w.step_s for w in windows]
    value, n = median(values), len(windows)
    if n < FEWEST_FOR_INTERVAL:
        return Figure(value=value, unit="s", n=n)
    interval = bootstrap_interval(values)
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
