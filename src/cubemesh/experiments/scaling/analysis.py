"""Analysis of scaling: efficiency with its interval, overhead of a step, and the data of an answer.

    efficiency               throughput of N devices / (N · throughput of one)
    efficiency vs slowest    throughput of N devices / (N · throughput of the slowest of the N, all
                             running at the same time without synchronization)

The second leaves out what devices lose merely by running at the same time (shared memory, power,
clocks) or to a slow neighbour; the rest is lost to synchronization. Intervals combine those of both
throughputs (`analysis/ratios.py`).

The ideal step on N devices takes as long as on one, times the ratio of their batch sizes per device
(1 in weak scaling, 1/N in strong). The rest is overhead: exposed communication, straggler wait,
compute time that did not shrink with the batch size, and other parts of the attribution. Parts are
means over the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cubemesh.experiments.analysis.groups import Group, pooled
from cubemesh.experiments.analysis.ratios import ratio
from cubemesh.experiments.scaling.design import ScalingCurve, ScalingGroup, ScalingMode
from cubemesh.experiments.scaling.forecast import forecast_points
from cubemesh.forecast.request import Point
from cubemesh.measure.attribution.attribution import COMPUTE
from cubemesh.measure.attribution.bottlenecks import excess_of, mean_parts, remedy_of
from cubemesh.networks import rate_unit
from cubemesh.schema import Figure, RunRecord
from cubemesh.statistics import FEWEST_FOR_INTERVAL, median
from cubemesh.store.run_statistics import run_windows

ForecastPoint = tuple[str, ScalingGroup, Point | str]
"""The name of a curve, a point of it, and its forecast or why there is none."""


@dataclass(frozen=True, kw_only=True)
class ScalingData:
    """The curves of a scaling experiment."""

    mode: ScalingMode
    curves: tuple[ScalingCurve, ...]

    def name(self, curve: ScalingCurve, sync: str = "") -> str:
        """The network and batch size of a curve, and what else distinguishes it."""
        key, keys = curve.key, [c.key for c in self.curves]
        words = [key.network, str(key.batch)]
        if len({k.image_size for k in keys if k.network == key.network}) > 1:
            words.append(f"{key.image_size or 'default'} pixels")
        if len({k.framework for k in keys}) > 1:
            words.append(key.framework)
        if len({k.threads for k in keys}) > 1:
            words.append(f"{key.threads} threads")
        if sync and len(self.strategies) > 1:
            words.append(sync)
        return ", ".join(words)

    @property
    def unit(self) -> str:
        """The unit of throughput; `samples/s` for networks of different samples."""
        return rate_unit(*(curve.key.network for curve in self.curves))

    @cached_property
    def forecasts(self) -> tuple[ForecastPoint, ...]:
        """The forecasts of all points of several devices with a run on one."""
        return tuple(
            (self.name(curve), group, point)
            for curve in self.curves
            for group, point in forecast_points(curve.one, curve.together)
        )

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies of all curves."""
        return tuple(dict.fromkeys(s for curve in self.curves for s in curve.strategies))


Runs = list[list[tuple[float, float]]]
"""The windows of each run as (samples, seconds)."""


def efficiency(several: Group[Any], one: Group[Any]) -> Figure | None:
    """Efficiency in percent of a point on several devices, from one on a single device; None if
    either has no throughput."""
    if several.throughput is None or one.throughput is None:
        return None
    devices = several.records[0].spec.placement.devices
    return _percent(_together(several.ok), _together(one.ok), devices)


def efficiency_independent(several: Group[Any], independent: Group[Any]) -> Figure | None:
    """Efficiency in percent relative to the slowest of the devices in `independent`, which run at
    the same time without synchronization; None if either has no throughput."""
    rates = independent_rates(independent)
    if several.throughput is None or not rates:
        return None
    slowest = _of_rank(independent.ok, min(rates, key=lambda rank: rates[rank]))
    return _percent(_together(several.ok), slowest, len(rates))


def independent_rates(independent: Group[Any]) -> dict[int, float]:
    """Samples per second of each rank without synchronization; empty if they did not run."""
    ranks = sorted({w.rank for r in independent.ok for w in r.measured})
    return {rank: pooled(_of_rank(independent.ok, rank)).value for rank in ranks}


def rank_utilizations(group: Group[Any]) -> dict[int, float]:
    """Mean utilization in percent of each rank's device, the median over the runs; empty where a
    rank has none."""
    by_rank: dict[int, list[float]] = {}
    for record in group.ok:
        for rank in record.ranks:
            if rank.utilization is None:
                return {}
            by_rank.setdefault(rank.rank, []).append(rank.utilization.value)
    return {rank: median(values) for rank, values in sorted(by_rank.items())}


def _percent(over: Runs, under: Runs, devices: int) -> Figure:
    found = ratio(pooled(over), pooled(under)).scaled(100 / devices, "%")
    if min(sum(map(len, runs)) for runs in (over, under)) < FEWEST_FOR_INTERVAL:
        return replace(found, low=None, high=None)
    return found


def _together(records: Sequence[RunRecord]) -> Runs:
    return [[(w.samples, w.elapsed_s) for w in run_windows(r)] for r in records]


def _of_rank(records: Sequence[RunRecord], rank: int) -> Runs:
    return [[(w.samples, w.elapsed_s) for w in r.measured if w.rank == rank] for r in records]


MIN_FRACTION = 0.01
"""Smallest fraction of the step that is reported as overhead."""
_SLOWER = (
    "devices share memory, power and clocks, and smaller batches use each of them less: compare "
    "with the run without synchronization"
)


@dataclass(frozen=True, kw_only=True)
class StepOverhead:
    """The overhead of a step on several devices over the ideal one."""

    step_s: float
    extra_s: float
    """Total overhead; negative if the step is shorter than the ideal."""
    by_part: dict[str, float]
    """Seconds, the largest first."""

    @property
    def largest(self) -> str:
        """The part with the largest overhead; empty if that is below 1 % of the step."""
        name, seconds = next(iter(self.by_part.items()))
        return name if seconds >= MIN_FRACTION * self.step_s else ""

    @property
    def percent(self) -> float:
        """Percentage of the step that is the largest overhead."""
        return 100 * next(iter(self.by_part.values())) / self.step_s

    @property
    def remedy(self) -> str:
        """What to do about the largest; empty for nothing."""
        remedy = _SLOWER if self.largest == COMPUTE else remedy_of(self.largest)
        return f"{remedy[0].upper()}{remedy[1:]}." if remedy else ""


def step_overhead(several: Group[Any], one: Group[Any]) -> StepOverhead | None:
    """The overhead of `several` devices over `one`; None if either was not profiled."""
    profiled, single = profiled_record(several), profiled_record(one)
    if profiled is None or single is None:
        return None
    batches = [r.spec.batch_per_device or 1 for r in (profiled, single)]
    share = batches[0] / batches[1]
    parts, own = mean_parts(profiled), mean_parts(single)
    extra = {name: parts.get(name, 0.0) - share * own.get(name, 0.0) for name in {*parts, *own}}
    return StepOverhead(
        step_s=math.fsum(parts.values()),
        extra_s=math.fsum(extra.values()),
        by_part=dict(sorted(extra.items(), key=lambda pair: -pair[1])),
    )


def profiled_record(group: Group[Any]) -> RunRecord | None:
    """The first profiled run of a point whose parts do not exceed its step."""
    return next((r for r in group.ok if r.parts and excess_of(r) is None), None)


def excess_text(group: Group[Any]) -> str:
    """Why the profiled runs of a point are not used: their parts exceed the step; "" if they do
    not."""
    found = [share for r in group.ok if (share := excess_of(r)) is not None]
    if not found:
        return ""
    return (
        f"the parts exceed the step by {100 * max(found):.0f} %: profiled steps differed from "
        "measured ones"
    )
