"""Checks of an acceptance test: each figure against a reference, with a verdict.

    datasheet    sustained rate of a GPU over the peak of its datasheet; a disk over its stated rate
    fleet        over the geometric mean of earlier runs of the same work on the same model
    neighbours   rate of a device over the median of the others of its machine, in one run
    start        last third of a burn-in over its first third, device by device
    link         NCCL's transport against the links of the GPUs
    results      collectives element by element; losses of repeated deterministic trainings
    completion   a run that crashed, was killed, hung or diverged fails

A ratio passes if its whole 95 % interval is at or above the threshold, and fails if the whole
interval is below it. In between, and without an interval or enough references, it is *not judged*.
A figure that is too low while other programs used the machine is not judged either. A machine with
such an open check does not pass.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cubemesh.experiments.acceptance.parts import figure_name, name_of, part_of
from cubemesh.experiments.analysis.groups import group_by
from cubemesh.experiments.analysis.ratios import ratio
from cubemesh.machines.catalogue import find
from cubemesh.measure.figures import figures
from cubemesh.schema import Ceiling, Figure, Rank, RunRecord, Status, SweepPoint, Window
from cubemesh.schema.outcome import STATUS_WORDS
from cubemesh.schema.record import FIRST_LOSSES
from cubemesh.statistics import FEWEST_FOR_INTERVAL, median, t_interval, throughput_interval
from cubemesh.units import format_bytes, format_count, format_number, format_quantity

FEWEST_IN_FLEET = 3
"""Earlier runs that a reference of the fleet needs."""
FAULTS = (Status.CRASHED, Status.KILLED, Status.TIMED_OUT, Status.DIVERGED)
"""Outcomes that fail a machine; any other that is not ok leaves a part out."""
OTHER_LOAD = ("busy-host", "shared-gpu", "oversubscribed")
"""Warnings that other programs, or ranks, used the same processors or GPU."""


class Against(StrEnum):
    """What a figure is compared with."""

    DATASHEET = "datasheet"
    FLEET = "fleet"
    NEIGHBOURS = "neighbours"
    START = "its start"
    LINK = "fastest link"
    RESULTS = "expected results"
    COMPLETION = "completion"


class AcceptanceVerdict(StrEnum):
    """Of a check, and of a machine."""

    PASS = "pass"
    FAIL = "fail"
    NOT_JUDGED = "not judged"


class Thresholds(Protocol):
    """The settings that checks read."""

    @property
    def min_of_datasheet(self) -> float:
        """Of the datasheet's rate."""

    @property
    def min_of_fleet(self) -> float:
        """Of the mean of the fleet."""

    @property
    def min_of_neighbours(self) -> float:
        """Of the median of the other devices."""

    @property
    def min_of_start(self) -> float:
        """Of the rate at the start of the burn-in."""

    @property
    def disk_bytes_per_s(self) -> float | None:
        """Stated rate of the disk."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One judgement."""

    name: str
    against: Against
    verdict: AcceptanceVerdict
    figure: Figure | None = None
    reference: Figure | None = None
    ratio: Figure | None = None
    threshold: float | None = None
    device: str = ""
    """The device it is about, where there are several."""
    why: str = ""
    """Source of the reference, or why there is no verdict, or what is wrong."""
    run_id: str = ""

    @property
    def inconclusive(self) -> bool:
        """Whether it has a figure and a reference, and still no verdict."""
        return self.verdict is AcceptanceVerdict.NOT_JUDGED and self.ratio is not None


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """What could not run, and why."""

    name: str
    why: str
    run_id: str = ""


def fleet_key(record: RunRecord) -> Hashable:
    """Equal for runs of the same work on the same model of machine: the device's name, and the
    threads of a CPU. The folder of a disk does not count."""
    rank = record.ranks[0] if record.ranks else None
    on_cpu = rank is None or rank.device == "cpu"
    model = (rank.device_name if rank else "", rank.threads if rank and on_cpu else None)
    work = record.spec.work
    same: Hashable = record.spec.workload_id
    if isinstance(work, Ceiling) and work.operation == "disk_read":
        same = ("disk_read", work.size, record.spec.program.script)
    return part_of(record), same, model


def judge(
    records: Sequence[RunRecord], fleet: Sequence[RunRecord], given: Thresholds
) -> list[Check]:
    """The checks of an acceptance test's own `records`; `fleet` are earlier runs."""
    earlier: dict[Hashable, list[RunRecord]] = {}
    for record in fleet:
        earlier.setdefault(fleet_key(record), []).append(record)
    found = [check for record in records for check in _checks(record, earlier, given)]
    repeated = [r for r in records if r.ok and part_of(r) == "results"]
    found += [_same_losses(group.records) for group in group_by(repeated, lambda r: r.spec)]
    return found


def left_out(records: Sequence[RunRecord]) -> list[LeftOut]:
    """Runs without a measurement that say nothing against the machine; repeats once."""
    found = [
        LeftOut(
            name=name_of(r),
            why=r.outcome.message or STATUS_WORDS[r.outcome.status],
            run_id=r.run_id,
        )
        for r in records
        if not r.ok and r.outcome.status not in FAULTS
    ]
    return list({(one.name, one.why): one for one in found}.values())


def _checks(
    record: RunRecord, earlier: Mapping[Hashable, Sequence[RunRecord]], given: Thresholds
) -> Iterator[Check]:
    if record.outcome.status in FAULTS:
        yield Check(
            name=name_of(record),
            against=Against.COMPLETION,
            verdict=AcceptanceVerdict.FAIL,
            why=record.outcome.message,
            run_id=record.run_id,
        )
    if not record.ok or part_of(record) == "results":
        return
    yield from _datasheet(record, given)
    yield _fleet(record, earlier.get(fleet_key(record), ()), given)
    yield from _links(record, given)
    if part_of(record) in ("neighbours", "burn-in"):
        yield from _neighbours(record, given)
    if part_of(record) == "burn-in":
        yield from _start(record, given)


def _judged(
    record: RunRecord,
    against: Against,
    own: Figure | None,
    reference: Figure | None,
    threshold: float,
    *,
    device: str = "",
    why: str = "",
    name: str = "",
) -> Check:
    """The check of a figure against its reference; not judged without either, `why` says why."""
    share, verdict = None, AcceptanceVerdict.NOT_JUDGED
    if own is None or reference is None or own.value <= 0 or reference.value <= 0:
        why = why or "it was not measured"
    else:
        share = ratio(own, reference)
        verdict, reason = _verdict(share, threshold, record)
        why = "; ".join(filter(None, (reason, why)))
    return Check(
        name=name or name_of(record),
        against=against,
        verdict=verdict,
        figure=own,
        reference=reference,
        ratio=share,
        threshold=threshold,
        device=device,
        why=why,
        run_id=record.run_id,
    )


def _verdict(share: Figure, threshold: float, record: RunRecord) -> tuple[AcceptanceVerdict, str]:
    if any(w.code == "page-cache" for w in record.warnings):
        return AcceptanceVerdict.NOT_JUDGED, "the file came from the page cache, not from the disk"
    if share.low is None or share.high is None:
        return (
            AcceptanceVerdict.NOT_JUDGED,
            f"no interval: fewer than {FEWEST_FOR_INTERVAL} windows",
        )
    if share.low >= threshold:
        return AcceptanceVerdict.PASS, ""
    if share.high >= threshold:
        return (
            AcceptanceVerdict.NOT_JUDGED,
            "its 95 % interval contains the threshold; measure longer",
        )
    load = [w.code for w in record.warnings if w.code in OTHER_LOAD]
    if load:
        return (
            AcceptanceVerdict.NOT_JUDGED,
            f"too low, while other programs ran ({load[0]}); stop them",
        )
    return AcceptanceVerdict.FAIL, ""


def _figure(record: RunRecord) -> Figure | None:
    return record.figures.get(figure_name(record.spec))


def _datasheet(record: RunRecord, given: Thresholds) -> Iterator[Check]:
    """Matrix products and copies in device memory by the catalogue, a disk by its stated rate."""
    part, own = part_of(record), _figure(record)
    rank = record.ranks[0] if record.ranks else None
    stated, why = None, ""
    if part == "disk":
        if given.disk_bytes_per_s is None:
            why = "no stated rate of the disk: set disk_gb_per_s"
        else:
            stated, why = given.disk_bytes_per_s, "set by disk_gb_per_s"
    elif part in ("matrix-product", "memory-copy"):
        device = rank.device_name if rank else ""
        sheet = find(device)
        if rank is None or rank.device == "cpu":
            why = "a CPU's datasheet is for all its cores"
        elif sheet is None:
            why = f"the catalogue has no datasheet of {device or 'this device'}"
        elif part == "memory-copy":
            stated, why = sheet.value("memory_bytes_per_s"), sheet.name
        else:
            peak = sheet.peak(record.spec.program.precision)
            stated, why = peak.flops_per_s if peak else None, sheet.name
        if sheet is not None and stated is None and why == sheet.name:
            why = f"the datasheet of {sheet.name} does not state it"
    else:
        return
    reference = None if stated is None or own is None else Figure(value=stated, unit=own.unit)
    yield _judged(record, Against.DATASHEET, own, reference, given.min_of_datasheet, why=why)


def _fleet(record: RunRecord, earlier: Sequence[RunRecord], given: Thresholds) -> Check:
    values = [f.value for r in earlier if (f := _figure(r)) is not None and f.value > 0]
    own, reference = _figure(record), None
    machines = len({r.key.machine_id for r in earlier})
    why = (
        f"{len(values)} earlier run{'' if len(values) == 1 else 's'} of this model; "
        f"{FEWEST_IN_FLEET} are needed"
    )
    if len(values) >= FEWEST_IN_FLEET and own is not None:
        logs = [math.log(value) for value in values]
        ends = t_interval(logs)
        reference = Figure(
            value=math.exp(math.fsum(logs) / len(logs)),
            unit=own.unit,
            low=math.exp(ends.low),
            high=math.exp(ends.high),
            n=len(values),
        )
        why = f"{len(values)} runs of {machines} machine{'' if machines == 1 else 's'}"
    return _judged(record, Against.FLEET, own, reference, given.min_of_fleet, why=why)


def rates_of_ranks(record: RunRecord) -> dict[int, Figure]:
    """Samples per second of each rank of a run, from its own windows."""
    windows: dict[int, list[Window]] = {}
    for window in record.measured:
        windows.setdefault(window.rank, []).append(window)
    return {
        rank: figures(own, wall_s=0.0)["throughput_per_s"] for rank, own in sorted(windows.items())
    }


def device_name(record: RunRecord, rank: int) -> str:
    """A device as a person finds it: `cuda:2 (GPU-5c1…) of node3`, `cores 0–3 of node3`."""
    known: Rank | None = next((r for r in record.ranks if r.rank == rank), None)
    if known is None:
        return f"device {rank}"
    if known.device == "cpu" and known.processors:
        cores = f"{known.processors[0]}–{known.processors[-1]}"
        name = f"cores {cores}" if len(known.processors) > 1 else f"core {known.processors[0]}"
    else:
        name = known.device if known.device != "cpu" else f"group {rank} of cores"
        name += f" ({known.device_uuid})" if known.device_uuid else ""
    return f"{name} of {known.host}" if known.host else name


def _neighbours(record: RunRecord, given: Thresholds) -> Iterator[Check]:
    rates = rates_of_ranks(record)
    for rank, own in rates.items() if len(rates) > 1 else ():
        yield _judged(
            record,
            Against.NEIGHBOURS,
            own,
            _middle([rate for other, rate in rates.items() if other != rank]),
            given.min_of_neighbours,
            device=device_name(record, rank),
        )


def _middle(others: Sequence[Figure]) -> Figure:
    """The median, with the interval of the figure that is nearest to it."""
    value = median([one.value for one in others])
    nearest = min(others, key=lambda one: abs(one.value - value))
    return nearest.scaled(value / nearest.value, nearest.unit)


def _start(record: RunRecord, given: Thresholds) -> Iterator[Check]:
    for rank in rates_of_ranks(record):
        windows = [w for w in record.measured if w.rank == rank]
        third = len(windows) // 3
        several = record.spec.placement.devices > 1
        first, last = (
            figures(part, wall_s=0.0)["throughput_per_s"] if part else None
            for part in (windows[:third], windows[len(windows) - third :])
        )
        yield _judged(
            record,
            Against.START,
            last,
            first,
            given.min_of_start,
            device=device_name(record, rank) if several else "",
            why="" if third else "too few windows",
        )


def _links(record: RunRecord, given: Thresholds) -> Iterator[Check]:
    """Results of collectives, use of the fastest link, and the links of each device."""
    if part_of(record) != "links":
        return
    yield _correct(record)
    slower = next((w for w in record.warnings if w.code == "faster-link-unused"), None)
    if slower is not None:
        yield Check(
            name=name_of(record),
            against=Against.LINK,
            verdict=AcceptanceVerdict.FAIL,
            why=slower.cause,
            run_id=record.run_id,
        )
    pairs = [p for p in record.sweep if p.pair is not None]
    rates = _sending_rates(pairs)
    for device, own in rates.items() if len(rates) > 1 else ():
        slowest = min(
            (p for p in pairs if p.pair and p.pair[0] == device),
            key=lambda p: p.algorithm_bytes_per_s,
        )
        assert slowest.pair is not None
        yield _judged(
            record,
            Against.NEIGHBOURS,
            own,
            _middle([rate for other, rate in rates.items() if other != device]),
            given.min_of_neighbours,
            device=device_name(record, device),
            name="sending to each of the other devices",
            why=f"slowest to device {slowest.pair[1]}: "
            f"{format_quantity(slowest.algorithm_bytes_per_s, 'B/s')}",
        )


def _correct(record: RunRecord) -> Check:
    """Every element of every checked result is as expected."""
    checked = [p for p in record.sweep if p.wrong is not None]
    wrong = sum(p.wrong or 0 for p in checked)
    verdict = (
        AcceptanceVerdict.NOT_JUDGED
        if not checked
        else AcceptanceVerdict.FAIL
        if wrong
        else AcceptanceVerdict.PASS
    )
    why = f"{len(checked)} results" if checked else "no result was checked (checks=0)"
    if wrong:
        sizes = ", ".join(dict.fromkeys(format_bytes(p.size_bytes) for p in checked if p.wrong))
        pairs = dict.fromkeys(f"{p.pair[0]} to {p.pair[1]}" for p in checked if p.wrong and p.pair)
        why = f"{format_count(wrong)} wrong elements, at {sizes}"
        why += f", from device {', '.join(pairs)}" if pairs else ""
    return Check(
        name=f"{name_of(record)}: results",
        against=Against.RESULTS,
        verdict=verdict,
        figure=Figure(value=float(wrong), unit="wrong elements") if checked else None,
        why=why,
        run_id=record.run_id,
    )


def _sending_rates(pairs: Sequence[SweepPoint]) -> dict[int, Figure]:
    """Device → bytes per second when it sends to each other device in turn. In a regular topology
    every device has the same kinds of links, so these rates are comparable where pairs are not."""
    found = {}
    for device in sorted({p.pair[0] for p in pairs if p.pair}):
        own = [p for p in pairs if p.pair and p.pair[0] == device]
        seconds = [math.fsum(group) for group in zip(*(p.seconds for p in own), strict=False)]
        moved = float(sum(p.size_bytes for p in own))
        value, n = moved * len(seconds) / math.fsum(seconds), len(seconds)
        figure = Figure(value=value, unit="B/s", n=n)
        if n >= FEWEST_FOR_INTERVAL:
            ends = throughput_interval([moved] * n, seconds)
            figure = Figure(value=value, unit="B/s", low=ends.low, high=ends.high, n=n)
        found[device] = figure
    return found


def _same_losses(records: Sequence[RunRecord]) -> Check:
    """Repeated deterministic trainings have the same losses, bit for bit."""
    curves = [curve.y for r in records if (curve := r.curve(FIRST_LOSSES)) is not None]
    verdict, why = AcceptanceVerdict.NOT_JUDGED, f"{len(curves)} of 2 trainings have losses"
    if len(curves) > 1:
        differ = [i for i, losses in enumerate(zip(*curves, strict=False)) if len(set(losses)) > 1]
        if any(len(curve) != len(curves[0]) for curve in curves):
            why = "the trainings have different numbers of steps"
        elif differ:
            verdict, step = AcceptanceVerdict.FAIL, differ[0]
            losses = " and ".join(format_number(curve[step], 9) for curve in curves[:2])
            why = f"losses differ from step {step + 1} on: {losses}"
        else:
            verdict = AcceptanceVerdict.PASS
            why = f"{len(curves)} trainings of {len(curves[0])} steps have equal losses"
    return Check(
        name=name_of(records[0]),
        against=Against.RESULTS,
        verdict=verdict,
        why=why,
        run_id=records[-1].run_id,
    )
