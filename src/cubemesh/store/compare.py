"""Comparison of stored runs: throughput ratio, and the settings that differ.

The throughput ratio with its interval comes from `run_statistics.py`. If a side has one run, the
spread between fresh processes is taken from stored repeats of the same workload on the same machine
(same spec, software, code version and data) and from the prior of its kind of workload, if it has
one. All differences are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cubemesh.errors import UsageError
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.schema import Machine, NetworkWork, OwnStep, RunRecord
from cubemesh.schema.comparison import Ratio
from cubemesh.statistics import Spread, pooled
from cubemesh.store.run_list import RunFilter
from cubemesh.store.run_statistics import ratio_of_runs, run_windows, spread_between
from cubemesh.store.select import (
    RunSelection,
    format_value,
    newest_of,
    records_of,
    select,
    settings_of,
)
from cubemesh.store.spread_prior import prior_spread

if TYPE_CHECKING:
    from cubemesh.store.store import Store


@dataclass(frozen=True, kw_only=True)
class SettingDifference:
    """A setting or property that differs between the sides."""

    what: str
    first: str
    second: str


@dataclass(frozen=True, kw_only=True)
class StoredComparison:
    """Two sides, their throughput ratio and their differences."""

    first: RunSelection
    second: RunSelection
    ratio: Ratio
    differences: tuple[SettingDifference, ...]


def compare_texts(
    first: str, second: str, first_store: Store, second_store: Store
) -> StoredComparison:
    """Compare the runs that two texts select (select.py); UsageError if they select a common run,
    or none."""
    sides = select(first_store, first), select(second_store, second)
    ids = [{r.run_id for r in side.records} for side in sides]
    if ids[0] & ids[1]:
        raise UsageError(
            f"'{first}' and '{second}' select the same run ({min(ids[0] & ids[1])}). To compare "
            "repeats of one spec, give their run ids, which `cubemesh results` lists."
        )
    return compare(*sides, first_store, second_store)


def compare(
    first: RunSelection, second: RunSelection, first_store: Store, second_store: Store
) -> StoredComparison:
    """The second's throughput over the first's, and what differs."""
    sides = (first, first_store), (second, second_store)
    known = [
        stored_spread(store, side.records[0]) for side, store in sides if len(side.records) == 1
    ]
    if known:
        known.append(prior_spread([*first.records, *second.records]))
    machines = [store.machine(side.records[0].key.machine_id) for side, store in sides]
    return StoredComparison(
        first=first,
        second=second,
        ratio=ratio_of_runs(
            [run_windows(r) for r in first.records],
            [run_windows(r) for r in second.records],
            pooled([spread for spread in known if spread is not None]),
        ),
        differences=tuple(differences(first.records, second.records, machines)),
    )


def compare_with_baseline(
    records: Iterable[RunRecord], baseline: Store, store: Store
) -> list[StoredComparison]:
    """For each workload of `records`, which are in `store`: its runs over those of `baseline`, in
    the order of `records`. A workload without a completed run in `baseline` is left out.

    Runs of `baseline` on the same machine are preferred, then those of the machine measured last;
    of several versions the newest is used. Interleaved runs and ceilings are not compared.
    """
    measured: dict[str, list[RunRecord]] = {}
    for record in records:
        if _comparable(record):
            measured.setdefault(record.spec.workload_id, []).append(record)
    own = {record.run_id for runs in measured.values() for record in runs}
    stored: dict[str, list[RunRecord]] = {}
    rows = (row for row in baseline.each_run(RunFilter(outcome="ok")) if not row.interleaved)
    for record in records_of(baseline, (row for row in rows if row.workload_id in measured)):
        if _comparable(record) and record.run_id not in own:
            stored.setdefault(record.spec.workload_id, []).append(record)
    return [
        compare(_one_machine(stored[workload], runs[0]), newest_of(workload, runs), baseline, store)
        for workload, runs in measured.items()
        if workload in stored
    ]


def _comparable(record: RunRecord) -> bool:
    alone = record.spec.against is None
    return (
        alone
        and record.ok
        and bool(record.measured)
        and isinstance(record.spec.work, NetworkWork | OwnStep)
    )


def _one_machine(runs: Sequence[RunRecord], like: RunRecord) -> RunSelection:
    machines = [r.key.machine_id for r in sorted(runs, key=lambda r: r.started_utc)]
    chosen = like.key.machine_id if like.key.machine_id in machines else machines[-1]
    return newest_of(like.spec.workload_id, [r for r in runs if r.key.machine_id == chosen])


def stored_spread(store: Store, record: RunRecord) -> Spread | None:
    """The spread between repeated runs of the same workload on the same machine; None if none
    was repeated."""
    repeated: dict[tuple[str, str, str, str], list[RunRecord]] = {}
    alike = RunFilter(workload=record.spec.workload_id, machine=record.key.machine_id, outcome="ok")
    for other in records_of(store, store.each_run(alike)):
        if other.key.machine_id == record.key.machine_id and other.measured:
            key = other.key
            same = key.spec_id, key.software_id, key.code_version, key.data_id
            repeated.setdefault(same, []).append(other)
    groups = [runs for runs in repeated.values() if len(runs) > 1]
    source = f"of {sum(map(len, groups))} stored runs of the same workload"
    spreads = [spread_between([run_windows(r) for r in runs], source) for runs in groups]
    return pooled([s for s in spreads if s is not None])


def differences(
    first: Sequence[RunRecord], second: Sequence[RunRecord], machines: Sequence[Machine | None]
) -> list[SettingDifference]:
    """Settings, data, machine, device, software, version of the code, and warnings that differ."""
    a, b = first[0], second[0]
    own = settings_of(a), settings_of(b)
    names = dict.fromkeys((*own[0], *own[1]))
    rows = [
        (name, format_value(own[0].get(name)), format_value(own[1].get(name))) for name in names
    ]
    if a.key.data_id and b.key.data_id:
        rows.append(("data files (digest)", a.key.data_id, b.key.data_id))
    if a.key.machine_id != b.key.machine_id:
        rows.append(("machine", _machine(a, machines[0]), _machine(b, machines[1])))
    rows.append(("runs on", _devices(first), _devices(second)))
    rows += _software(a, b, machines)
    rows.append(("cubemesh", a.key.code_version, b.key.code_version))
    rows.append(("source", a.source or "measured", b.source or "measured"))
    rows.append(("warnings", _warnings(first), _warnings(second)))
    return [SettingDifference(what=w, first=x, second=y) for w, x, y in rows if x != y]


def _machine(record: RunRecord, machine: Machine | None) -> str:
    if machine is None:
        return record.key.machine_id
    model = machine.cpu.model or "a processor of unknown name"
    return f"{machine.hostname}, {machine.cpu.usable_cores} cores of {model}"


def _devices(records: Iterable[RunRecord]) -> str:
    found = (
        (rank.device_name or rank.device)
        + ("" if rank.threads is None else f", {rank.threads} threads")
        for record in records
        for rank in record.ranks
    )
    return "; ".join(dict.fromkeys(found))


def _software(
    a: RunRecord, b: RunRecord, machines: Sequence[Machine | None]
) -> list[tuple[str, str, str]]:
    """The packages that differ, or digests if the store no longer knows the packages."""
    if a.key.software_id == b.key.software_id:
        return []
    known = [_packages(record, machine) for record, machine in zip((a, b), machines, strict=True)]
    if known[0] is None or known[1] is None:
        return [("software", a.key.software_id, b.key.software_id)]
    rows = [
        (name, known[0].get(name, "none"), known[1].get(name, "none"))
        for name in sorted({*known[0], *known[1]})
    ]
    different = [row for row in rows if row[1] != row[2]]
    return different or [("software", a.key.software_id, b.key.software_id)]


def _packages(record: RunRecord, machine: Machine | None) -> dict[str, str] | None:
    """The versions that a record depends on; None if the machine was upgraded since, or the record
    was imported."""
    if record.source or record.spec.program.framework not in FRAMEWORKS:
        return None
    framework = entry(record.spec.program.framework)
    if record.stack is not None:
        software = record.stack
    elif machine is None or framework.software_id(machine.software) != record.key.software_id:
        return None
    else:
        software = machine.software
    own = {p: v for p, v in software.packages.items() if p in framework.packages}
    names = ("python", "system", "cuda", "driver", *["cpp_compiler"] * framework.cpp_kernels)
    whole = {name: getattr(software, name) for name in names}
    return {name: version for name, version in {**whole, **own}.items() if version}


def _warnings(records: Iterable[RunRecord]) -> str:
    codes = sorted({w.code for record in records for w in record.warnings})
    return ", ".join(codes) or "none"
