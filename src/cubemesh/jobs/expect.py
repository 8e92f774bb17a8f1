"""Expected throughput of a run before it is measured, with a band and the source of both, and
whether a run that is measured falls below it.

The first of these that is known:

    earlier runs   of the same workload on this machine, of its newest version: their geometric
                   mean. A run to come is within the prediction interval of its logarithm,
                     ± t · s · √(1 + 1/n),  s the spread between fresh processes
                   (statistics/process_spread.py); one run without a known spread has no band
    a forecast     of `cubemesh predict` for the device here, with its band
    a publication  of the same network on the same device, at half to twice the batch size; no band

Learning rate, schedule, number of epochs and seed decide no speed: runs that differ only in them
are of one workload here.

A run is slower than expected while its throughput over the last minute is below 90 % of what is
expected, and below the band. It is since the time after which the samples that are missing from
that limit are most (the change point of a cumulative sum).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import inf
from typing import Any

from cubemesh import networks
from cubemesh.errors import CubemeshError
from cubemesh.experiments.scaling.forecast import system_of
from cubemesh.forecast.attained import Software
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.gradient_sync import COSTS
from cubemesh.forecast.request import Ceilings, ForecastRequest
from cubemesh.forecast.step import predict
from cubemesh.forecast.strategies.divided import WITHIN_LAYERS
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.jobs.points import RATE, Point
from cubemesh.networks.own_input import at_own_size
from cubemesh.papers.published import figures, nearest
from cubemesh.papers.published.nearest import precision_distance, same_device
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import Machine, RunRecord, RunSpec
from cubemesh.schema.serialization import digest
from cubemesh.schema.work import Ceiling, NetworkWork, Train, TrainSteps
from cubemesh.statistics import CONFIDENCE, pooled, spread_of, student_t
from cubemesh.store import Store
from cubemesh.store.run_list import RunFilter
from cubemesh.store.select import newest_of
from cubemesh.store.spread_prior import prior_spread

MOST_RUNS = 50
"""Newest runs of a network that are read."""
_MOST_CEILINGS = 20
_NOT_OF_SPEED = frozenset(
    {
        *("learning_rate", "losses", "epochs", "rate_scaling", "warmup_epochs", "schedule"),
        *("rate_drops", "target_accuracy", "seed"),
    }
)
"""Settings of a training that decide no speed."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What throughput to expect, and from what."""

    samples_per_s: float
    low: float | None
    """Ends of the band; None where it is not known."""
    high: float | None
    source: str
    """In words: `3 earlier runs here`."""
    run_ids: tuple[str, ...] = ()
    """The runs that it is from."""


def expected_throughput(store: Store, spec: RunSpec, machine: Machine) -> Expected | None:
    """What the run of a spec on a machine is expected to reach; None where nothing is known."""
    if not isinstance(spec.work, NetworkWork) or spec.against is not None:
        return None
    return (
        from_earlier_runs(store, spec, machine.machine_id)
        or _from_forecast(store, spec, machine)
        or _from_publication(spec, machine)
    )


def speed_id(spec: RunSpec) -> str:
    """Identifies what decides the speed of a run: its workload without the settings that do not."""
    work: Any = spec.work
    same = {f.name: f.default for f in fields(work) if f.name in _NOT_OF_SPEED}
    return digest((replace(work, **same), spec.placement, spec.program))


def from_earlier_runs(
    store: Store, spec: RunSpec, machine_id: str, without: str = ""
) -> Expected | None:
    """From the stored runs of the same workload on a machine, but the run `without`."""
    assert isinstance(spec.work, NetworkWork)
    alike = RunFilter(
        network=spec.work.network,
        work=spec.work.kind,
        framework=spec.program.framework,
        precision=spec.program.precision,
        devices=spec.placement.devices,
        batch_per_device=spec.work.batch_per_device,
        machine=machine_id,
        outcome="ok",
    )
    rows = store.list_runs(alike, limit=MOST_RUNS).rows
    ids = [
        row.run_id
        for row in rows
        if row.machine_id == machine_id
        and not row.interleaved
        and row.samples_per_s
        and row.run_id != without
    ]
    own = speed_id(spec)
    records = [r for r in store.records(ids) if speed_id(r.spec) == own]
    return from_records(newest_of("", records).records) if records else None


def from_records(records: Sequence[RunRecord]) -> Expected | None:
    """From runs of one workload, which have a throughput."""
    rates = {r.run_id: rate for r in records if (rate := r.figure("throughput_per_s"))}
    logs = [math.log(rate) for rate in rates.values()]
    if not logs:
        return None
    n = len(logs)
    known = [s for s in (spread_of(logs, "of these runs"), prior_spread(records)) if s is not None]
    spread, middle = pooled(known), math.fsum(logs) / n
    low = high = None
    if spread is not None:
        half = student_t(CONFIDENCE, spread.freedom) * math.sqrt(spread.variance * (1 + 1 / n))
        low, high = math.exp(middle - half), math.exp(middle + half)
    unknown = "" if low is not None else "; the spread between runs is not known yet"
    return Expected(
        samples_per_s=math.exp(middle),
        low=low,
        high=high,
        source=f"{n} earlier run{'' if n == 1 else 's'} of this workload on this machine{unknown}",
        run_ids=tuple(rates),
    )


def _from_forecast(store: Store, spec: RunSpec, machine: Machine) -> Expected | None:
    work, program, devices = spec.work, spec.program, spec.placement.devices
    framework = FRAMEWORKS.get(program.framework)
    if framework is None or framework.simulates or spec.placement.hosts:
        return None
    sync = program.sync if devices > 1 else "all-reduce"
    if not isinstance(work, Train | TrainSteps) or sync not in (*COSTS, *WITHIN_LAYERS):
        return None
    kind, name = _device(spec, machine)
    system = system_of(kind, name, devices)
    if isinstance(system, str):
        return None
    try:
        request = ForecastRequest(
            network=networks.build_for(work),
            system=system,
            batch_per_device=work.batch_per_device,
            precision=program.precision,
            sync=sync,
            group_size=strategy(sync).ranks_per_sample(devices, program),
            style="ddp" if sync == "all-reduce" and devices > 1 else "",
            input_limit=inf if work.data == "synthetic" else None,
            software=Software(
                layout=program.layout, fused=framework.fuses, captured=framework.one_launch
            ),
            ceilings=_ceilings(store, spec, machine) if kind == "cpu" else None,
        )
        found = predict(request, [devices], defaults())
    except (CubemeshError, Unsupported):
        return None
    point = found.points[0]
    return Expected(
        samples_per_s=point.samples_per_s,
        low=point.low,
        high=point.high,
        source=f"a forecast from {found.device_source}",
    )


def _device(spec: RunSpec, machine: Machine) -> tuple[str, str]:
    """The kind and the name of the device that a run takes."""
    if spec.placement.device == "cpu" or not machine.gpus:
        return "cpu", machine.cpu.model or ""
    return "cuda", machine.gpus[0].name


def _ceilings(store: Store, spec: RunSpec, machine: Machine) -> Ceilings | None:
    """The newest measured rates of the processors of a machine with the threads of a run."""
    alike = RunFilter(work="ceiling", machine=machine.machine_id, outcome="ok", device="cpu")
    rows = store.list_runs(alike, limit=_MOST_CEILINGS).rows
    rates: dict[str, float] = {}
    for record in sorted(
        store.records([row.run_id for row in rows]), key=lambda r: r.started_utc, reverse=True
    ):
        work, other = record.spec.work, record.spec
        assert isinstance(work, Ceiling)
        unit = {"matrix_product": "rate_flops_per_s", "copy": "rate_bytes_per_s"}
        rate = record.figure(unit.get(work.operation, ""))
        same = other.placement.threads == spec.placement.threads
        if work.operation == "matrix_product":
            same = same and other.program.precision == spec.program.precision
        if rate and same:
            rates.setdefault(work.operation, rate)
    if len(rates) < 2:
        return None
    return Ceilings(
        flops_per_s=rates["matrix_product"],
        bytes_per_s=rates["copy"],
        source="measured ceilings of the processor",
    )


def _from_publication(spec: RunSpec, machine: Machine) -> Expected | None:
    work = spec.work
    kind, name = _device(spec, machine)
    if kind == "cpu" or not isinstance(work, Train | TrainSteps) or not at_own_size(work):
        return None
    precision, batch = spec.program.precision, work.batch_per_device
    found = nearest(
        figures(),
        network=work.network,
        device=name,
        devices=spec.placement.devices,
        precision=precision,
        batch_per_device=batch,
        limit=1,
    )
    for figure in found:
        near = figure.batch_per_device and 0.5 <= figure.batch_per_device / batch <= 2
        if (
            near
            and figure.devices == spec.placement.devices
            and same_device(name, figure.device)
            and precision_distance(precision, figure.precision) == 0
        ):
            return Expected(
                samples_per_s=figure.value,
                low=None,
                high=None,
                source=f"published for {figure.system or figure.device} by {figure.source}",
            )
    return None


SLOW_SHARE, SLOW_S = 0.9, 60.0
"""A run is slower than expected below this part of it over so many seconds."""
SIGNS = (
    "input_wait_percent",
    "gpu_clock_sm_mhz",
    "cpu_utilization_percent",
    "gpu_utilization_percent",
)
"""Series whose changes are signs of a cause, likely causes first."""
_WAIT_POINTS, _USE_POINTS, _CLOCK_SHARE = 5.0, 5.0, 0.95
"""Changes that are signs of a cause: of percent, of percent, of a clock's ratio."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What a sensor measured while a run is slow, and before."""

    series: str
    now: float
    before: float | None
    """None where it was slow from the beginning."""


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """A run that is slower than expected now."""

    since_s: float
    """Since the run began."""
    for_s: float
    samples_per_s: float
    """Throughput since then."""
    share: float
    """Of what is expected."""
    signs: tuple[Sign, ...]
    """What changed in the readings of the sensors, likely causes first."""


def slowdown(
    expected: float, low: float | None, curves: Mapping[str, Sequence[Point]]
) -> Slowdown | None:
    """Whether a run is slower than the `expected` throughput, whose band begins at `low`, by its
    curves so far; None where it is not, or for the first minute."""
    points = [(x, y) for x, y in curves.get(RATE, ()) if x is not None and y is not None]
    if len(points) < 2 or expected <= 0:
        return None
    gaps = [end - start for (start, _), (end, _) in pairwise(points)]
    usual = sorted(gaps)[len(gaps) // 2]
    lengths = [usual, *(min(gap, 2 * usual) for gap in gaps)]  # without evaluations between them
    limit = min(SLOW_SHARE * expected, expected if low is None else low)
    missing = [length * (limit - rate) for length, (_, rate) in zip(lengths, points, strict=True)]
    begin = _below_since(lengths, missing)
    if begin is None:
        return None
    lost, most, first = 0.0, -inf, begin
    for place in reversed(range(begin, len(points))):
        lost += missing[place]
        if lost > most:
            most, first = lost, place
    for_s = math.fsum(lengths[first:])
    rate = limit - most / for_s
    since_s = points[first][0] - lengths[first]
    return Slowdown(
        since_s=since_s,
        for_s=for_s,
        samples_per_s=rate,
        share=rate / expected,
        signs=tuple(_signs(curves, since_s)),
    )


def _below_since(lengths: Sequence[float], missing: Sequence[float]) -> int | None:
    """The first window of the first minute from which on every minute is too slow; None where the
    last one is not, or there is none."""
    found, start, length, lost = None, 0, 0.0, 0.0
    for own, gap in zip(lengths, missing, strict=True):
        length, lost = length + own, lost + gap
        while length - lengths[start] >= SLOW_S:
            length, lost = length - lengths[start], lost - missing[start]
            start += 1
        if length < SLOW_S or lost <= 0:
            found = None
        elif found is None:
            found = start
    return found


def _signs(curves: Mapping[str, Sequence[Point]], since_s: float) -> list[Sign]:
    """The readings that changed when a run became slow."""
    found = []
    for series in SIGNS:
        readings = [(x, y) for x, y in curves.get(series, ()) if x is not None and y is not None]
        after = [y for x, y in readings if x > since_s]
        earlier = [y for x, y in readings if x <= since_s]
        if not after:
            continue
        now = math.fsum(after) / len(after)
        before = math.fsum(earlier) / len(earlier) if len(earlier) > 1 else None
        if series == "input_wait_percent":
            changed = now - (before or 0.0) >= _WAIT_POINTS
        elif before is None:
            changed = False
        elif series == "gpu_clock_sm_mhz":
            changed = now < _CLOCK_SHARE * before
        else:
            changed = before - now >= _USE_POINTS
        if changed:
            found.append(Sign(series=series, now=now, before=before))
    return found
