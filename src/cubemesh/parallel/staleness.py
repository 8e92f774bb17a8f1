"""Staleness of the gradients in an asynchronous run, and the order of its workers.

From the server's counts (`Updates` in asynchronous.py), over all updates of the run:

    staleness                   mean; and `staleness_most`, `staleness_rank_N` of each worker's own
    updates_by_staleness        how many updates had each staleness, as a curve
    updates_taking_turns        fraction of updates that follow one of another worker
    first_updates               the ranks of the first updates, as a curve
    update_rank, update_staleness   series: rank and staleness of every update
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean

from cubemesh.frameworks.contract.gradient_sync import GradientSync
from cubemesh.measure.log import Log
from cubemesh.parallel.asynchronous import Asynchronous, Updates
from cubemesh.schema.record import Curve, Figure
from cubemesh.schema.series import Series

HISTOGRAM = "updates_by_staleness"
FIRST_UPDATES = "first_updates"
_FIRST = 100
ORDER = "update_rank"
STALENESS = "update_staleness"
UNIT = "versions"
_METHOD = "version of the weights at the update less the one its gradient carried"


def log_staleness(sync: GradientSync, log: Log) -> None:
    """Log the server's counts; nothing on a rank without the server."""
    if not isinstance(sync, Asynchronous) or not sync.applied.times:
        return
    for name, figure in figures(sync.applied):
        log.figure(name, figure)
    log.curve(histogram(sync.applied))
    first = sync.applied.workers[:_FIRST]
    log.curve(
        Curve(
            name=FIRST_UPDATES,
            x_name="update",
            x=tuple(float(n) for n in range(1, len(first) + 1)),
            y=tuple(map(float, first)),
        )
    )
    times = tuple(sync.applied.times)
    for name, values in (
        (ORDER, sync.applied.workers),
        (STALENESS, sync.applied.staleness),
    ):
        log.series(Series(name=name, times_s=times, values=tuple(map(float, values))))


def figures(updates: Updates) -> Iterator[tuple[str, Figure]]:
    """The figures above, by name, of at least one update."""
    all_of_them = updates.staleness
    count = len(all_of_them)
    yield "staleness", Figure(value=fmean(all_of_them), unit=UNIT, n=count, method=_METHOD)
    yield "staleness_most", Figure(value=max(all_of_them), unit=UNIT, n=count, method=_METHOD)
    for worker in sorted(set(updates.workers)):
        own = [s for s, w in zip(all_of_them, updates.workers, strict=True) if w == worker]
        figure = Figure(value=fmean(own), unit=UNIT, n=len(own), method=_METHOD)
        yield f"staleness_rank_{worker}", figure
    if count > 1:
        turns = fmean(before != after for before, after in pairwise(updates.workers))
        method = "fraction of updates that follow one of another worker"
        yield "updates_taking_turns", Figure(value=turns, unit="", n=count - 1, method=method)


def histogram(updates: Updates) -> Curve:
    """How many updates had each staleness."""
    counted = sorted(Counter(updates.staleness).items())
    return Curve(
        name=HISTOGRAM,
        x_name="staleness",
        x=tuple(float(staleness) for staleness, _ in counted),
        y=tuple(float(count) for _, count in counted),
    )
