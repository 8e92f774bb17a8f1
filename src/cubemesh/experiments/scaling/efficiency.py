"""How near do N devices come to N times one? Efficiency, with its interval.

    against one device            throughput of N together / (N · throughput of one)
    against the slowest alone     throughput of N together / (N · that of the slowest of the N,
                                  each training by itself, all at once)

The first is what adding devices gives. The second leaves out what the machine takes from devices
that merely work at the same time (shared memory, power, clocks), and a device that is slower than
its neighbours: what is lost there is lost to training *together*. Intervals come from drawing runs
and windows of both points anew, independently, and taking the ratio each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubemesh.experiments.analysis.groups import Group
from cubemesh.schema import Figure, RunRecord
from cubemesh.statistics import FEWEST_FOR_INTERVAL, draws_interval, throughput, throughput_draws
from cubemesh.store.run_statistics import run_windows

Runs = list[list[tuple[float, float]]]
"""Of each run the windows as (samples, seconds)."""


def efficiency(several: Group[Any], one: Group[Any]) -> Figure | None:
    """In percent, of a point on several devices against one on a single device; None where either
    has no figure."""
    if several.throughput is None or one.throughput is None:
        return None
    devices = several.records[0].spec.placement.devices
    over, under = _together(several.ok), _together(one.ok)
    reference = devices * throughput_draws(under, seed=1)
    return _percent(over, devices * _rate(under), reference, under)


def efficiency_alone(several: Group[Any], alone: Group[Any]) -> Figure | None:
    """In percent, against the slowest of the devices in `alone`, where they train each by itself
    and all at once; None where either has no figure."""
    rates = alone_rates(alone)
    if several.throughput is None or not rates:
        return None
    over, devices = _together(several.ok), len(rates)
    own = [_of_rank(alone.ok, rank) for rank in rates]
    draws = np.stack([throughput_draws(runs, seed=1 + n) for n, runs in enumerate(own)])
    reference = devices * np.asarray(draws.min(axis=0))
    return _percent(over, devices * min(rates.values()), reference, *own)


def alone_rates(alone: Group[Any]) -> dict[int, float]:
    """Samples per second of each rank of devices that train by themselves; empty where they did
    not run."""
    ranks = sorted({w.rank for r in alone.ok for w in r.measured})
    return {rank: _rate(_of_rank(alone.ok, rank)) for rank in ranks}


def _percent(
    over: Runs, reference: float, reference_draws: NDArray[np.float64], *under: Runs
) -> Figure:
    value, sides = 100 * _rate(over) / reference, (over, *under)
    fewest = min(sum(map(len, runs)) for runs in sides)
    if fewest < FEWEST_FOR_INTERVAL:
        return Figure(value=value, unit="%", n=fewest)
    draws = 100 * throughput_draws(over, seed=0) / reference_draws
    interval = draws_interval(draws, min(map(_drawn, sides)))
    return Figure(value=value, unit="%", low=interval.low, high=interval.high, n=fewest)


def _drawn(runs: Runs) -> int:
    """How many values are drawn from: runs, or windows of the only one."""
    return len(runs) if len(runs) > 1 else len(runs[0])


def _together(records: Sequence[RunRecord]) -> Runs:
    return [[(w.samples, w.elapsed_s) for w in run_windows(r)] for r in records]


def _of_rank(records: Sequence[RunRecord], rank: int) -> Runs:
    return [[(w.samples, w.elapsed_s) for w in r.measured if w.rank == rank] for r in records]


def _rate(runs: Runs) -> float:
    windows = [window for run in runs for window in run]
    return throughput([s for s, _ in windows], [t for _, t in windows])
