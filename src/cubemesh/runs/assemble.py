"""What is the record of a run? Its events, put together; and, where they end early, how it ended.

A pure function of what was heard: a run that was killed halfway keeps the windows it had, and its
figures are computed from those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from cubemesh.measure.collective_sweep import merge_points, sweep_figures, wrong_results
from cubemesh.measure.energy.ranks import NAMES as ENERGY_NAMES
from cubemesh.measure.energy.ranks import energy_of_ranks
from cubemesh.measure.figures import figures
from cubemesh.measure.merge_ranks import merge_free_running, merge_lockstep
from cubemesh.parallel.strategies import strategy
from cubemesh.runs.exit_status import WorkerExit, rank_outcomes, run_outcome
from cubemesh.schema.collective import Collective, SweepPoint
from cubemesh.schema.first_steps_trace import RankTrace
from cubemesh.schema.machine import Unknown
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
    Window,
    new_run_id,
)
from cubemesh.schema.serialization import from_plain
from cubemesh.schema.series import Series
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.warning import Warning
from cubemesh.schema.work import NetworkWork, Train, TrainSteps

Event = dict[str, Any]
T = TypeVar("T")


def assemble(
    spec: RunSpec,
    key: RunKey,
    events: Sequence[Event],
    ending: WorkerExit,
    *,
    started_utc: str,
    attempt: int,
    uuid_of: Callable[[str], str | None] = lambda device: None,
    name_of: Callable[[str], str] = lambda device: "",
) -> tuple[RunRecord, list[Series]]:
    """The record of a run, and the series to keep beside it.

    `events` are those of its ranks' event files, `ending` is what the runner saw; the ranks' own
    outcomes come first. Figures, curves and parts that ranks tell are the first rank's, but for
    memory, where the most counts, and energy, which is summed. `uuid_of` and `name_of` give the
    UUID and the maker's name of a device as the worker names it.
    """
    own = [e for e in events if not e.get("of_rank")]
    ends = sorted(_of(events, "outcome"), key=lambda e: float(e["t"]))
    told = {e.get("of_rank", 0): from_plain(Outcome, e["outcome"]) for e in ends}
    driven = max((len(e.get("devices", ())) for e in _of(events, "rank")), default=0)
    outcomes = rank_outcomes(told, ending, spec.placement.devices // max(1, driven))
    outcome = run_outcome(outcomes, told)
    windows = tuple(_nouns(events, "window", Window))
    series = join(_nouns(events, "series", Series))
    measured = _figures(spec, windows, ending.elapsed_s)
    told_figures = _told_figures(events)
    said = told_figures.get(0, {}) | _most(told_figures, "peak_memory_bytes")
    points, library, caveats = _sweep(spec, events)
    swept = _swept(spec, points)
    links = {e.get("of_rank", 0): e for e in _of(events, "link")}
    away = bool(spec.placement.hosts)  # then each host has told the names of its own devices
    ranks = [
        Rank(
            rank=e.get("of_rank", 0),
            host=e["host"],
            device=e["device"],
            device_name=e.get("device_name", "") if away else name_of(e["device"]),
            device_uuid=e.get("device_uuid") if away else uuid_of(e["device"]),
            outcome=outcomes[e.get("of_rank", 0)],
            threads=e["threads"],
            devices=tuple(e.get("devices", ())),
            processors=tuple(e.get("processors", ())),
            clock_offset_s=e.get("clock_offset_s", 0.0),
            interface=links.get(e.get("of_rank", 0), {}).get("interface", ""),
            transport=links.get(e.get("of_rank", 0), {}).get("transport", ""),
        )
        for e in _of(events, "rank")
    ]
    ranks = sorted({r.rank: r for r in ranks}.values(), key=lambda r: r.rank)
    energy = energy_of_ranks(ranks, told_figures, windows)
    said = {n: f for n, f in said.items() if n in energy.figures or n not in ENERGY_NAMES}
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
        figures={**measured, **said, **energy.figures, **swept},
        curves=tuple({c.name: c for c in _nouns(own, "curve", Curve)}.values()),
        parts=tuple(_nouns(own, "part", Part)),
        rank_parts=_rank_parts(events, spec.placement.devices),
        breakdowns=tuple(_nouns(own, "breakdown", Breakdown)),
        replicas=tuple(sorted(_nouns(events, "replica", RankTrace), key=lambda r: r.rank)),
        sweep=points,
        library=library,
        series=tuple(dict.fromkeys(s.name for s in series)),
        warnings=tuple(dict.fromkeys([*_nouns(events, "warning", Warning), *caveats])),
        unmeasured=tuple(dict.fromkeys(unmeasured)),
    )
    return record, series


def _figures(spec: RunSpec, windows: Sequence[Window], wall_s: float) -> dict[str, Figure]:
    """The figures of the measured windows, as far as they mean something for this work."""
    if spec.placement.devices > 1 and not strategy(spec.program.sync).blocking:
        measured = merge_free_running(windows)
    else:
        measured = merge_lockstep([w for w in windows if w.phase == "measure"])
    found = figures(measured, wall_s)
    if not isinstance(spec.work, (TrainSteps, Train)):
        found.pop("projected_90_epochs_days", None)  # nothing is trained
    if not isinstance(spec.work, NetworkWork):
        found.pop("throughput_per_s", None)  # there are no samples: a call stands for one
    return found


def _sweep(
    spec: RunSpec, events: Sequence[Event]
) -> tuple[tuple[SweepPoint, ...], str, list[Warning]]:
    """What a collective took at each size, what carried it, and the doubt that wrong elements
    raise."""
    if not isinstance(spec.work, Collective):
        return (), "", []
    told = [(e.get("of_rank", 0), from_plain(SweepPoint, e["point"])) for e in _of(events, "point")]
    points = merge_points(told, spec.placement.devices)
    library = next((str(e["name"]) for e in _of(events, "library")), "")
    warning = wrong_results(points, spec.work.collective, library)
    return points, library, [] if warning is None else [warning]


def _swept(spec: RunSpec, points: Sequence[SweepPoint]) -> dict[str, Figure]:
    """The figures of a sweep; none where no collective was measured."""
    if not isinstance(spec.work, Collective):
        return {}
    return sweep_figures(points, spec.work.collective, spec.placement.devices)


def _rank_parts(events: Sequence[Event], ranks: int) -> tuple[tuple[Part, ...], ...]:
    """The parts that each of several ranks told; none where none did."""
    if ranks == 1 or not _of(events, "part"):
        return ()
    by_rank = [[e for e in events if e.get("of_rank", 0) == rank] for rank in range(ranks)]
    return tuple(tuple(_nouns(own, "part", Part)) for own in by_rank)


def _told_figures(events: Sequence[Event]) -> dict[int, dict[str, Figure]]:
    """Rank → the figures it told, by name."""
    found: dict[int, dict[str, Figure]] = {}
    for event in _of(events, "figure"):
        own = found.setdefault(event.get("of_rank", 0), {})
        own[event["name"]] = from_plain(Figure, event["figure"])
    return found


def _most(told: Mapping[int, Mapping[str, Figure]], name: str) -> dict[str, Figure]:
    """The largest figure of this name that any rank told; nothing where none did."""
    found = [figures[name] for figures in told.values() if name in figures]
    return {name: max(found, key=lambda figure: figure.value)} if found else {}


def join(chunks: Iterable[Series]) -> list[Series]:
    """One series for all chunks of the same name, rank and device, in the order they came.

    Samples that are not finite numbers are left out: a sensor that could not be read has none.
    """
    samples: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    for chunk in chunks:
        kept = samples.setdefault((chunk.name, chunk.rank, chunk.device), [])
        pairs = zip(chunk.times_s, chunk.values, strict=True)
        kept += [(t, v) for t, v in pairs if math.isfinite(v)]
    return [
        Series(
            name=name,
            rank=rank,
            device=device,
            times_s=tuple(t for t, _ in kept),
            values=tuple(v for _, v in kept),
        )
        for (name, rank, device), kept in samples.items()
    ]


def _of(events: Iterable[Event], name: str) -> list[Event]:
    return [e for e in events if e["event"] == name]


def _nouns(events: Iterable[Event], name: str, kind: type[T]) -> list[T]:
    return [from_plain(kind, e[name]) for e in _of(events, name)]
