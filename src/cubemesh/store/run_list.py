"""Lists of runs: filtered, sorted and paged by the columns of `runs` and `figures`, without reading
a record.

A page begins after the last row of the one before it (a keyset), so it costs the same wherever it
is, and runs that are stored meanwhile shift nothing. Runs without a value of the sorted column come
last in both directions.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Row,
    Select,
    and_,
    func,
    or_,
    select,
    tuple_,
)

from cubemesh.errors import UsageError, unknown_name
from cubemesh.schema import Figure, Status
from cubemesh.store.tables import figures, machines, run_experiments, runs

FIGURE = "figure."
"""Before the name of a figure to sort by: `figure.energy_per_sample_j`."""
SORTS = (
    *("started_utc", "sequence", "run_id", "network", "work", "framework", "precision"),
    *("strategy", "device", "devices", "batch_per_device", "global_batch", "experiment"),
    *("outcome", "machine_id", "hostname", "workload_id", "elapsed_s", "samples_per_s"),
)
"""Columns to sort by."""
FACETS = (
    *("network", "work", "framework", "precision", "strategy", "device", "devices"),
    *("machine_id", "outcome", "experiment"),
)
"""Columns whose values `run_facets` counts."""
MAX_LIMIT = 1000
"""Rows of a page."""
MAX_CANDIDATES = 10
"""Runs that the message about an ambiguous prefix lists."""
MAX_COUNTED = 10_000
"""Rows that match a filter are counted up to here; all rows of a store are counted."""
_MAX_WORDS = 10
_SORTED = "sorted_value"
_RUNS_AT_A_TIME = 500
Values = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FigureBounds:
    """Runs whose figure `name` is at least `low` and at most `high`."""

    name: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Which runs: those that match every field. Of several values any one matches; an empty field
    matches every run."""

    network: Values = ()
    work: Values = ()
    framework: Values = ()
    precision: Values = ()
    strategy: Values = ()
    device: Values = ()
    machine: Values = ()
    """Machine ids or hostnames."""
    workload: Values = ()
    """Workload ids."""
    outcome: Values = ()
    devices: int | tuple[int, ...] = ()
    batch_per_device: int | tuple[int, ...] = ()
    experiment: Values = ()
    """Names of experiments, or ids of experiment runs."""
    text: str = ""
    """Words that must all occur in the run's id, network, framework, machine, outcome or reason."""
    since: str = ""
    """Date or time, ISO 8601, UTC where it names no zone; runs that started then or later."""
    until: str = ""
    """Runs that started before; a date alone includes that day."""
    figures: tuple[FigureBounds, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it matches every run."""
        return self == RunFilter()


ALL_RUNS = RunFilter()


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run in a list."""

    sequence: int
    """Its number in the order of storing."""
    run_id: str
    spec_id: str
    workload_id: str
    machine_id: str
    software_id: str
    hostname: str
    """Empty if the machine is not stored."""
    work: str
    """The kind of work: `train_steps`, `infer`."""
    network: str | None
    framework: str
    precision: str
    strategy: str
    """Gradient synchronization."""
    device: str
    """Kind of device: `cpu`, `cuda`."""
    devices: int
    batch_per_device: int | None
    global_batch: int | None
    data: str | None
    """Data set."""
    experiment: str | None
    """The experiment that it was first measured for; None for none."""
    experiment_run_id: str | None
    outcome: str
    reason: str
    """Of the outcome; empty for ok."""
    started_utc: str
    elapsed_s: float
    code_version: str
    samples_per_s: float | None
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    windows: int
    """Measured windows."""
    interleaved: bool
    """Whether it was measured in alternation with another program."""
    warnings: int
    """Number of warnings."""


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """Some rows of a list."""

    rows: tuple[RunRow, ...]
    next: str | None
    """Cursor of the next page; None on the last."""
    total: int | None
    """Runs that match the filter; None if more than 10,000 do."""


@dataclass(frozen=True, kw_only=True)
class FacetValue:
    """One value of a column and how many runs have it."""

    value: str | int | None
    runs: int


@dataclass(frozen=True)
class _Sort:
    """A column, and the last row of the page before: its value and sequence."""

    name: str
    descending: bool
    value: Any = None
    sequence: int | None = None
    missing: bool = False
    """Whether the page before ended among runs without a value."""

    @property
    def column(self) -> ColumnElement[Any]:
        return figures.c.value if self.name.startswith(FIGURE) else runs.c[self.name]

    @property
    def cursor(self) -> str:
        state = [self.name, self.descending, self.value, self.sequence, self.missing]
        return base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")


_COLUMNS = tuple(runs.c[field.name] for field in fields(RunRow))
_EQUAL = ("network", "work", "framework", "precision", "strategy", "device", "outcome")
_WHOLE = ("devices", "batch_per_device")


def list_page(
    connection: Connection,
    filter: RunFilter,
    *,
    sort: str,
    descending: bool,
    after: str | None,
    limit: int,
) -> RunPage:
    """As `Store.list_runs`."""
    if not 1 <= limit <= MAX_LIMIT:
        raise UsageError(f"limit={limit} is not valid: a list has 1 to {MAX_LIMIT} rows a page.")
    order = _sort(sort, descending, after)
    where = _conditions(connection, filter)
    found: list[tuple[RunRow, Any, bool]] = []
    if not order.missing:
        rows = connection.execute(_with_value(where, order).limit(limit + 1))
        found = [(row, value, False) for row, value in _split(rows)]
    if len(found) <= limit and _may_be_missing(order):
        query = _without_value(where, order).limit(limit + 1 - len(found))
        rows = connection.execute(query)
        found += [(row, None, True) for row, _ in _split(rows)]
    shown, more = found[:limit], len(found) > limit
    cursor = None
    if more:
        last, value, missing = shown[-1]
        cursor = replace(order, value=value, sequence=last.sequence, missing=missing).cursor
    return RunPage(
        rows=tuple(row for row, _, _ in shown),
        next=cursor,
        total=_total(connection, where),
    )


def each_row(connection: Connection, filter: RunFilter) -> Iterator[RunRow]:
    """As `Store.each_run`."""
    where, last = _conditions(connection, filter), 0
    while True:
        query = select(*_COLUMNS).where(*where, runs.c.sequence > last)
        rows = connection.execute(query.order_by(runs.c.sequence).limit(_RUNS_AT_A_TIME)).all()
        if not rows:
            return
        yield from (RunRow(**row._mapping) for row in rows)
        last = rows[-1].sequence


def count_facets(connection: Connection, filter: RunFilter) -> dict[str, tuple[FacetValue, ...]]:
    """As `Store.run_facets`."""
    found: dict[str, tuple[FacetValue, ...]] = {}
    for name in FACETS:
        field = "machine" if name == "machine_id" else name
        nothing: dict[str, Any] = {field: ()}
        others = replace(filter, **nothing)
        where = _conditions(connection, others)
        column = runs.c[name]
        count = func.count()
        query = select(column, count).select_from(runs).where(*where).group_by(column)
        values = connection.execute(query).all()
        ordered = sorted(values, key=lambda row: (-row[1], row[0] is None, row[0]))
        found[name] = tuple(FacetValue(value=value, runs=n) for value, n in ordered)
    return found


def figures_of(connection: Connection, run_ids: list[str]) -> dict[str, dict[str, Figure]]:
    """As `Store.figures`."""
    found: dict[str, dict[str, Figure]] = {run_id: {} for run_id in run_ids}
    for i in range(0, len(run_ids), _RUNS_AT_A_TIME):
        some = run_ids[i : i + _RUNS_AT_A_TIME]
        numbers = select(runs.c.sequence).where(runs.c.run_id.in_(some))
        query = select(figures).where(figures.c.sequence.in_(numbers))
        for row in connection.execute(query.order_by(figures.c.sequence, figures.c.name)):
            if row.value is not None:
                found[row.run_id][row.name] = Figure(
                    value=row.value, unit=row.unit, low=row.low, high=row.high, n=row.n
                )
    return found


def figure_names(connection: Connection) -> list[str]:
    """Names of all figures, each found by one step in the index."""
    names: list[str] = []
    while True:
        query = select(func.min(figures.c.name))
        if names:
            query = query.where(figures.c.name > names[-1])
        name = connection.execute(query).scalar()
        if name is None:
            return names
        names.append(name)


def _split(rows: CursorResult[Any]) -> Iterator[tuple[RunRow, Any]]:
    """Rows of a list, and their value of the sorted column."""
    for row in rows.mappings():
        plain = dict(row)
        value = plain.pop(_SORTED, None)
        yield RunRow(**plain), value


def _with_value(where: list[ColumnElement[bool]], order: _Sort) -> Select[Any]:
    """The runs with a value of the sorted column, after the last row of the page before."""
    query = select(*_COLUMNS, order.column.label(_SORTED)).where(*where)
    sequence: ColumnElement[Any] = runs.c.sequence
    if order.name.startswith(FIGURE):
        sequence = figures.c.sequence
        name = order.name.removeprefix(FIGURE)
        query = query.join(figures, figures.c.sequence == runs.c.sequence)
        query = query.where(figures.c.name == name)
    if _may_be_missing(order):
        query = query.where(order.column.is_not(None))
    if order.sequence is not None:
        here, last = tuple_(order.column, sequence), tuple_(order.value, order.sequence)
        query = query.where(here < last if order.descending else here > last)
    keys = (order.column, sequence)
    return query.order_by(*(key.desc() if order.descending else key for key in keys))


def _without_value(where: list[ColumnElement[bool]], order: _Sort) -> Select[Any]:
    """The runs without a value of the sorted column."""
    query = select(*_COLUMNS).where(*where)
    if order.name.startswith(FIGURE):
        name = order.name.removeprefix(FIGURE)
        has = select(figures.c.sequence).where(
            figures.c.sequence == runs.c.sequence,
            figures.c.name == name,
            figures.c.value.is_not(None),
        )
        query = query.where(~has.exists())
    else:
        query = query.where(order.column.is_(None))
    if order.missing and order.sequence is not None:
        after = runs.c.sequence < order.sequence
        query = query.where(after if order.descending else runs.c.sequence > order.sequence)
    return query.order_by(runs.c.sequence.desc() if order.descending else runs.c.sequence)


def _may_be_missing(order: _Sort) -> bool:
    return order.name.startswith(FIGURE) or bool(runs.c[order.name].nullable)


def _sort(sort: str, descending: bool, after: str | None) -> _Sort:
    if sort not in SORTS and not sort.startswith(FIGURE):
        raise unknown_name("column to sort by", sort, [*SORTS, f"{FIGURE}NAME"], plural="columns")
    start = _Sort(sort, descending)
    if after is None:
        return start
    try:
        padded = after.encode("ascii") + b"=" * (-len(after) % 4)
        name, down, value, sequence, missing = json.loads(base64.urlsafe_b64decode(padded))
        here = _Sort(name, down, value, int(sequence), bool(missing))
        text = start.column.type.python_type is str
        fits = isinstance(value, str) if text else isinstance(value, (int, float))
        if (name, down) != (sort, descending) or not (here.missing or fits):
            raise ValueError(after)
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise UsageError(
            "The cursor of the list is not valid here: it belongs to a list of another order, or "
            "is incomplete. Start again without it."
        ) from error
    return here


def _conditions(connection: Connection, filter: RunFilter) -> list[ColumnElement[bool]]:
    """The filter as SQL; UsageError for a value that no run can have."""
    for value in _values(filter.outcome):
        if value not in list(Status):
            raise unknown_name("outcome", value, [status.value for status in Status])
    where: list[ColumnElement[bool]] = []
    for name in _EQUAL:
        if values := _values(getattr(filter, name)):
            where.append(_among(runs.c[name], values))
    for name in _WHOLE:
        given = getattr(filter, name)
        if numbers := ((given,) if isinstance(given, int) else tuple(given)):
            where.append(_among(runs.c[name], numbers))
    if values := _values(filter.workload):
        where.append(_among(runs.c.workload_id, values))
    if values := _values(filter.machine):
        where.append(_among(runs.c.machine_id, _machine_ids(connection, values)))
    if values := _values(filter.experiment):
        links = run_experiments.c
        fits = or_(links.experiment.in_(values), links.experiment_run_id.in_(values))
        where.append(runs.c.run_id.in_(select(links.run_id).where(fits)))
    for word in filter.text.lower().split()[:_MAX_WORDS]:
        where.append(runs.c.words.contains(word, autoescape=True))
    if filter.since:
        where.append(runs.c.started_utc >= _moment("since", filter.since))
    if filter.until:
        where.append(runs.c.started_utc < _moment("until", filter.until, end_of_day=True))
    return [*where, *map(_bounded, filter.figures)]


def _among(column: ColumnElement[Any], values: tuple[Any, ...]) -> ColumnElement[bool]:
    return column == values[0] if len(values) == 1 else column.in_(values)


def _values(given: Values) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) and given else tuple(given)


def _machine_ids(connection: Connection, names: tuple[str, ...]) -> tuple[str, ...]:
    """The ids of machines with these hostnames, and the names that may be ids themselves."""
    query = select(machines.c.machine_id).where(machines.c.hostname.in_(names))
    return (*names, *connection.execute(query).scalars())


def _bounded(bounds: FigureBounds) -> ColumnElement[bool]:
    ends = [figures.c.name == bounds.name]
    if bounds.low is not None:
        ends.append(figures.c.value >= bounds.low)
    if bounds.high is not None:
        ends.append(figures.c.value <= bounds.high)
    if len(ends) == 1:
        ends.append(figures.c.value.is_not(None))
    return runs.c.sequence.in_(select(figures.c.sequence).where(and_(*ends)))


def _moment(field: str, given: str, *, end_of_day: bool = False) -> str:
    """A date or time as the records write it."""
    try:
        moment = datetime.datetime.fromisoformat(given)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        if end_of_day and len(given) <= len("2026-01-01"):
            moment += datetime.timedelta(days=1)
        return moment.astimezone(datetime.UTC).isoformat()
    except (ValueError, OverflowError):
        raise UsageError(
            f"{field}={given} is not a date: write 2026-11-23 or 2026-11-23T14:00, in UTC."
        ) from None


def _total(connection: Connection, where: list[ColumnElement[bool]]) -> int | None:
    if not where:
        return connection.execute(select(func.count()).select_from(runs)).scalar_one()
    some = select(runs.c.sequence).where(*where).limit(MAX_COUNTED + 1).subquery()
    count = connection.execute(select(func.count()).select_from(some)).scalar_one()
    return count if count <= MAX_COUNTED else None


def ambiguous(prefix: str, found: Sequence[Row[Any]]) -> str:
    """The message for a prefix of several run ids, from their rows of `records`."""
    lines = [
        f"  {row.run_id}  {row.network or row.work}, {row.framework}, "
        f"batch {row.batch_per_device or '–'}, {row.outcome}, {row.started_utc}"
        for row in found[:MAX_CANDIDATES]
    ]
    if len(found) > MAX_CANDIDATES:
        lines.append("  …")
    listed = "\n".join(lines)
    return f"'{prefix}' is the prefix of several run ids:\n{listed}\nGive more digits."
