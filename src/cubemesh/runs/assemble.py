"""Assembly of a record from the events of a run's ranks, and from the exit status where they end
early.

A pure function of the events: a run that was killed halfway has the windows it had completed, and
its figures are computed from those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cubemesh.measure.collective_sweep import merge_points, sweep_figures, wrong_results
from cubemesh.measure.energy.ranks import NAMES as ENERGY_NAMES
from cubemesh.measure.energy.ranks import energy_of_ranks
from cubemesh.measure.figures import figures
from cubemesh.measure.merge_ranks import merge_free_running, merge_lockstep
from cubemesh.measure.slow_ranks import slow_rank, slow_ranks
from cubemesh.measure.telemetry.gpu import UTILIZATION as GPU
from cubemesh.measure.telemetry.gpu_set import gpu_of
from cubemesh.measure.telemetry.telemetry import CPU
from cubemesh.measure.timing.stopping_rule import confidence_of
from cubemesh.networks.own_input import is_imagenet
from cubemesh.parallel.strategies import strategy
from cubemesh.runs.exit_status import WorkerExit, rank_outcomes, run_outcome
from cubemesh.schema.collective import Collective, LinkRate, SweepPoint
from cubemesh.schema.first_steps_trace import RankTrace
from cubemesh.schema.machine import Gpu, Unknown
from cubemesh.schema.outcome import Outcome
from cubemesh.schema.record import (
    Breakdown,
    Curve,
    Figure,
    Part,
    Phase,
    Rank,
    RunKey,
    RunRecord,
    ScoredSamples,
    Window,
    new_run_id,
)
from cubemesh.schema.serialization import from_plain
from cubemesh.schema.series import Series
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.warning import Warning
from cubemesh.schema.work import Input, NetworkWork, OwnStep, Train, TrainSteps

Event = dict[str, Any]
T = TypeVar("T")
_PEAK = "peak_memory_bytes"


def assemble(
    spec: RunSpec,
    key: RunKey,
    events: Sequence[Event],
    ending: WorkerExit,
    *,
    started_utc: str,
    attempt: int,
    gpus: Sequence[Gpu] = (),
    processor: str = "",
) -> tuple[RunRecord, list[Series]]:
    """The record of a run, and its series.

    `events` are those of its ranks' event files, `ending` the worker's exit; the ranks' own
    outcomes take precedence. Figures, curves and parts are the first rank's, except memory (the
    maximum), energy (summed) and utilization (each rank has its own too). `gpus` are the GPUs that
    `cuda:0`, `cuda:1` … mean, `processor` is the CPU's model.
    """
    own = [e for e in events if not e.get("of_rank")]
    ends = sorted(_of(events, "outcome"), key=lambda e: float(e["t"]))
    reported = {e.get("of_rank", 0): from_plain(Outcome, e["outcome"]) for e in ends}
    driven = max((len(e.get("devices", ())) for e in _of(events, "rank")), default=0)
    seen = 1 + max((e.get("of_rank", 0) for e in events), default=0)
    outcomes = rank_outcomes(reported, ending, max(seen, spec.placement.devices // max(1, driven)))
    outcome = run_outcome(outcomes, reported)
    windows = tuple(_nouns(events, "window", Window))
    series = join_series(_nouns(events, "series", Series))
    measured = _figures(spec, windows, ending.elapsed_s)
    own_figures = _rank_figures(events)
    logged = own_figures.get(0, {}) | _fullest(own_figures)
    points, library, swept, caveats = _sweep(spec, events)
    ranks = _ranks(spec, events, outcomes, gpus, processor, own_figures)
    caveats += _slow_ranks(spec, windows, ranks)
    energy = energy_of_ranks(ranks, own_figures, windows)
    logged = {n: f for n, f in logged.items() if n in energy.figures or n not in ENERGY_NAMES}
    unmeasured = [*_nouns(events, "unmeasured", Unknown), *energy.unmeasured]
    record = RunRecord(
        run_id=new_run_id(key, started_utc, attempt),
        spec=spec,
        key=key,
        started_utc=started_utc,
        elapsed_s=ending.elapsed_s,
        outcome=outcome,
        attempt=attempt,
        ranks=tuple(ranks),
        windows=windows,
        phases=tuple(_nouns(events, "phase", Phase)),
        figures={**measured, **logged, **energy.figures, **swept},
        curves=tuple({c.name: c for c in _nouns(own, "curve", Curve)}.values()),
        scored_samples=next(reversed(_nouns(own, "scored_samples", ScoredSamples)), None),
        parts=tuple(_nouns(own, "part", Part)),
        rank_parts=_rank_parts(events, spec.placement.devices),
        breakdowns=tuple(_nouns(own, "breakdown", Breakdown)),
        replicas=tuple(sorted(_nouns(events, "replica", RankTrace), key=lambda r: r.rank)),
        sweep=points,
        library=library,
        links=tuple(_nouns(own, "link_rate", LinkRate)),
        series=tuple(dict.fromkeys(s.name for s in series)),
        warnings=tuple(dict.fromkeys([*_nouns(events, "warning", Warning), *caveats])),
        unmeasured=tuple(dict.fromkeys(unmeasured)),
    )
    return record, series


def _figures(spec: RunSpec, windows: Sequence[Window], wall_s: float) -> dict[str, Figure]:
    """Figures of the measured windows that apply to this kind of work."""
    if spec.placement.devices > 1 and not strategy(spec.program.sync).blocking:
        measured = merge_free_running(windows)
    else:
        measured = merge_lockstep([w for w in windows if w.phase == "measure"])
    found = figures(measured, wall_s, confidence_of(spec.budget))
    if not (isinstance(spec.work, (TrainSteps, Train)) and is_imagenet(spec.work)):
        found.pop("projected_90_epochs_days", None)  # of ImageNet, which this does not train on
    if isinstance(spec.work, Input) and "throughput_per_s" in found:
        found["throughput_per_s"] = replace(found["throughput_per_s"], unit="images/s")
    if not isinstance(spec.work, NetworkWork | OwnStep):
        found.pop("throughput_per_s", None)  # no samples: a call counts as one
    return found


def _ranks(
    spec: RunSpec,
    events: Sequence[Event],
    outcomes: Sequence[Outcome],
    gpus: Sequence[Gpu],
    processor: str,
    own_figures: Mapping[int, Mapping[str, Figure]],
) -> list[Rank]:
    """The ranks that have begun, in order."""
    links = {e.get("of_rank", 0): e for e in _of(events, "link")}
    found = {}
    for event in _of(events, "rank"):
        number, device = event.get("of_rank", 0), event["device"]
        name, uuid = processor if device == "cpu" else "", None
        if (gpu := gpu_of(device, gpus)) is not None:
            name, uuid = gpu.name, gpu.uuid
        if spec.placement.hosts:  # each host reports its own devices
            name, uuid = event.get("device_name", ""), event.get("device_uuid")
        link = links.get(number, {})
        found[number] = Rank(
            rank=number,
            host=event["host"],
            device=device,
            device_name=name,
            device_uuid=uuid,
            outcome=outcomes[number],
            threads=event["threads"],
            devices=tuple(event.get("devices", ())),
            processors=tuple(event.get("processors", ())),
            clock_offset_s=event.get("clock_offset_s", 0.0),
            interface=link.get("interface", ""),
            transport=link.get("transport", ""),
            private_cache_bytes=event.get("private_cache_bytes"),
            shared_cache_bytes=event.get("shared_cache_bytes"),
            utilization=own_figures.get(number, {}).get(CPU if device == "cpu" else GPU),
        )
    return [found[number] for number in sorted(found)]


def _slow_ranks(spec: RunSpec, windows: Sequence[Window], ranks: Sequence[Rank]) -> list[Warning]:
    """The warning that names slow ranks, if any."""
    sync = strategy(spec.program.sync)
    hosts = {rank.rank: rank.host for rank in ranks} if spec.placement.hosts else {}
    found = slow_ranks(windows, spared=sync.more_work)
    warning = slow_rank(found, hosts, blocking=sync.blocking)
    return [] if warning is None else [warning]


def _sweep(
    spec: RunSpec, events: Sequence[Event]
) -> tuple[tuple[SweepPoint, ...], str, dict[str, Figure], list[Warning]]:
    """Points of a collective sweep, its library, its figures, and the warning about wrong elements;
    empty for other work."""
    if not isinstance(spec.work, Collective):
        return (), "", {}, []
    found = [
        (e.get("of_rank", 0), from_plain(SweepPoint, e["point"])) for e in _of(events, "point")
    ]
    points = merge_points(found, spec.placement.devices)
    library = next((str(e["name"]) for e in _of(events, "library")), "")
    swept = sweep_figures(points, spec.work.collective, spec.placement.devices)
    warning = wrong_results(points, spec.work.collective, library)
    return points, library, swept, [] if warning is None else [warning]


def _rank_parts(events: Sequence[Event], ranks: int) -> tuple[tuple[Part, ...], ...]:
    """Parts of each of several ranks; empty without parts."""
    if ranks == 1 or not _of(events, "part"):
        return ()
    by_rank = [[e for e in events if e.get("of_rank", 0) == rank] for rank in range(ranks)]
    return tuple(tuple(_nouns(own, "part", Part)) for own in by_rank)


def _rank_figures(events: Sequence[Event]) -> dict[int, dict[str, Figure]]:
    """Rank → its figures by name."""
    found: dict[int, dict[str, Figure]] = {}
    for event in _of(events, "figure"):
        own = found.setdefault(event.get("of_rank", 0), {})
        own[event["name"]] = from_plain(Figure, event["figure"])
    return found


def _fullest(by_rank: Mapping[int, Mapping[str, Figure]]) -> dict[str, Figure]:
    """The figures of memory of the rank with the highest peak; empty where none has one."""
    found = [figures for figures in by_rank.values() if _PEAK in figures]
    if not found:
        return {}
    fullest = max(found, key=lambda figures: figures[_PEAK].value)
    return {n: f for n, f in fullest.items() if n == _PEAK or n.startswith("memory_")}


def join_series(chunks: Iterable[Series]) -> list[Series]:
    """One series for all chunks of the same name, rank and device, in their order. Samples that are
    not finite are left out."""
    samples: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    for chunk in chunks:
        finite = samples.setdefault((chunk.name, chunk.rank, chunk.device), [])
        pairs = zip(chunk.times_s, chunk.values, strict=True)
        finite += [(t, v) for t, v in pairs if math.isfinite(v)]
    return [
        Series(
            name=name,
            rank=rank,
            device=device,
            times_s=tuple(t for t, _ in finite),
            values=tuple(v for _, v in finite),
        )
        for (name, rank, device), finite in samples.items()
    ]


def _of(events: Iterable[Event], name: str) -> list[Event]:
    return [e for e in events if e["event"] == name]


def _nouns(events: Iterable[Event], name: str, kind: type[T]) -> list[T]:
    return [from_plain(kind, e[name]) for e in _of(events, name)]
