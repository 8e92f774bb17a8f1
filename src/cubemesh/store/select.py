"""Selection of stored runs by id, prefix or settings, for one side of a comparison.

    3f2a9c                       a run id or unique prefix, or the runs of a spec id
    3f2a9c,77be01                several of them
    network=vgg16,precision=bf16 the runs with these settings

All runs of a side must have measured the same workload on the same machine: different workloads are
compared, never averaged. Of several versions of the software or of cubemesh the newest is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from cubemesh.errors import UsageError, unknown_name
from cubemesh.networks import canonical_name
from cubemesh.schema import (
    WORK_KINDS,
    Budget,
    NetworkWork,
    OwnStep,
    Placement,
    ProgramSettings,
    RunRecord,
)
from cubemesh.schema.serialization import to_plain

if TYPE_CHECKING:
    from cubemesh.store.run_list import RunRow
    from cubemesh.store.store import Store

PARTS = ("work", "placement", "program", "budget")
_KEYS: dict[str, Callable[[RunRow], str]] = {
    "machine": lambda r: r.machine_id,
    "software": lambda r: r.software_id,
    "code_version": lambda r: r.code_version,
}
"""Keys besides the fields of a spec, matched by prefix."""
_COLUMNS: dict[str, Callable[[RunRow], Any]] = {
    "work": lambda r: r.work,
    "network": lambda r: r.network,
    "framework": lambda r: r.framework,
    "precision": lambda r: r.precision,
    "sync": lambda r: r.strategy,
    "devices": lambda r: r.devices,
    "batch_per_device": lambda r: r.batch_per_device,
    "data": lambda r: r.data,
}
"""Fields of a spec that have a column; of other fields the records are read."""
_FEWEST_DIGITS = 4
_RECORDS_AT_A_TIME = 500
MAX_LISTED = 4
"""Settings that differ, and values of each, that the message lists."""


@dataclass(frozen=True, kw_only=True)
class RunSelection:
    """The runs of one side."""

    text: str
    """The selection as typed."""
    records: tuple[RunRecord, ...]
    left_out: int = 0
    """Runs of older versions that fit as well."""


def select(store: Store, text: str) -> RunSelection:
    """The completed runs selected by `text`; UsageError if there are none, or if they measured
    different workloads."""
    stored = [row for row in store.each_run() if not row.interleaved]
    by_settings = "=" in text
    found = _by_settings(store, stored, text) if by_settings else _by_ids(store, stored, text)
    good = [r for r in found if r.ok and r.measured]
    if not good:
        endings = ", ".join(dict.fromkeys(str(r.outcome.status) for r in found))
        what = f"has no figure: it ended as {endings}" if found else "matches no stored run"
        raise UsageError(
            f"'{text}' {what} in {store.name}. `cubemesh results` lists the stored runs."
        )
    if not isinstance(good[0].spec.work, NetworkWork | OwnStep):
        raise UsageError(f"'{text}' is a ceiling, which has no samples. Compare runs of a network.")
    _check_one_workload(text, good)
    return newest_of(text, good)


def newest_of(text: str, records: Sequence[RunRecord]) -> RunSelection:
    """The runs of the newest version of the software and of cubemesh among `records`."""
    newest = max(records, key=lambda r: r.started_utc)
    same = [r for r in records if _version(r) == _version(newest)]
    return RunSelection(text=text, records=tuple(same), left_out=len(records) - len(same))


def _version(record: RunRecord) -> tuple[str, str, str]:
    code = record.key.data_id if isinstance(record.spec.work, OwnStep) else ""
    return record.key.software_id, record.key.code_version, code


def records_of(store: Store, rows: Iterable[RunRow]) -> list[RunRecord]:
    """The readable records of rows, oldest first."""
    ids = [row.run_id for row in rows]
    found: list[RunRecord] = []
    for first in range(0, len(ids), _RECORDS_AT_A_TIME):
        found += store.records(ids[first : first + _RECORDS_AT_A_TIME])
    return sorted(found, key=lambda record: record.started_utc)


def _by_ids(store: Store, stored: Sequence[RunRow], text: str) -> list[RunRecord]:
    found: dict[str, RunRow] = {}
    for word in (w.strip().lower() for w in text.split(",")):
        if len(word) < _FEWEST_DIGITS:
            raise UsageError(
                f"'{word}' is too short: give at least {_FEWEST_DIGITS} digits of an id, or "
                "settings such as network=resnet-50,precision=bf16."
            )
        runs = [r for r in stored if r.run_id.startswith(word)]
        specs = [r for r in stored if r.spec_id.startswith(word) or r.workload_id == word]
        if len(runs) > 1:
            listed = ", ".join(r.run_id for r in runs[:5])
            raise UsageError(f"Several runs have ids that begin with '{word}': {listed}.")
        if not runs and not specs:
            raise UsageError(
                f"No stored run or spec has an id that begins with '{word}'. `cubemesh results` "
                "lists the runs; `cubemesh results RUN` has its spec."
            )
        found |= {r.run_id: r for r in runs or specs}
    return records_of(store, found.values())


def _by_settings(store: Store, stored: Sequence[RunRow], text: str) -> list[RunRecord]:
    wanted: dict[str, str] = {}
    for line in text.split(","):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not key or not equals:
            raise UsageError(f"'{line}' in '{text}' is not valid: write key=value,key=value.")
        wanted[key.replace("-", "_")] = value
    works = [WORK_KINDS[kind] for kind in {row.work for row in stored} if kind in WORK_KINDS]
    classes = (*works, Placement, ProgramSettings, Budget)
    known = {*_KEYS, *_COLUMNS, *(field.name for kind in classes for field in fields(kind))}
    for key in wanted:
        if stored and key not in known:
            raise unknown_name("setting of a stored run", key, known, plural="settings")
    if "network" in wanted:
        wanted["network"] = canonical_name(wanted["network"])
    rows = [row for row in stored if all(_may_fit(row, key, wanted[key]) for key in wanted)]
    settings = {key: value for key, value in wanted.items() if key not in _KEYS}
    return [r for r in records_of(store, rows) if _fits(r, settings)]


def _may_fit(row: RunRow, key: str, value: str) -> bool:
    """Whether a run fits as far as its columns say."""
    if key in _KEYS:
        return _KEYS[key](row).startswith(value)
    return key not in _COLUMNS or format_value(_COLUMNS[key](row)) == value


def _fits(record: RunRecord, wanted: Mapping[str, str]) -> bool:
    own = settings_of(record)
    return all(key in own and format_value(own[key]) == wanted[key] for key in wanted)


def settings_of(record: RunRecord) -> dict[str, Any]:
    """Every field of a record's spec, its defaults included, by name."""
    plain = to_plain(record.spec)
    merged = {name: value for part in PARTS for name, value in plain[part].items()}
    return {"work" if name == "kind" else name: value for name, value in merged.items()}


def format_value(value: Any) -> str:
    """A field's value as typed on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict) and "source" in value:  # code of the user's own
        return str(value["source"])
    return ",".join(map(format_value, value)) if isinstance(value, list) else str(value)


def _check_one_workload(text: str, records: Iterable[RunRecord]) -> None:
    things: dict[tuple[str, str], RunRecord] = {}
    for record in records:
        things.setdefault((record.spec.workload_id, record.key.machine_id), record)
    if len(things) < 2:
        return
    settings = [
        {**settings_of(record), "machine": record.key.machine_id} for record in things.values()
    ]
    values: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for own in settings for name in own):
        found = list(dict.fromkeys(format_value(own[name]) for own in settings if name in own))
        if len(found) > 1:
            values[name] = found
    listed = [f"{name} ({', '.join(found[:MAX_LISTED])})" for name, found in values.items()]
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    name, found = next(iter(values.items()))
    raise UsageError(
        f"'{text}' matches runs of {len(things)} different workloads, which are compared, never "
        f"averaged. They differ in {', '.join(listed[:MAX_LISTED])}{more}. Select one, as in "
        f"{text},{name}={found[0]}."
    )
