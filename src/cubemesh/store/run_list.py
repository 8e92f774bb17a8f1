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
    *("outcome", "machine_id", "hostname", "elapsed_s", "samples_per_s"),
)
"""Columns to sort by; runs of one value are sorted by their start."""
FACETS = (
    *("network", "work", "framework", "precision", "strategy", "device", "devices"),
    *("machine_id", "outcome", "experiment"),
)
"""Columns whose values `run_facets` counts."""
MAX_LIMIT = 1000
"""Rows of a page."""
MAX_CANDIDATES = 10
"""Runs that the message about an ambiguous prefix lists."""
MAX_COUNTED = 2_000
"""Rows that match a filter are counted up to here; all rows of a store are counted."""
_SMALL = 20_000
"""Runs of a store in which matches of several filters are counted."""
_FEW = 1_000
"""Runs with a figure within bounds that are looked up first; of more, each run is asked."""
_MAX_WORDS = 10
_KEY = "sorted_by_"
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
    """Runs that match the filter, on the first page; None if they are more than 2,000, are
    searched by text or figures, or by several filters in a store of more than 20,000 runs."""


@dataclass(frozen=True, kw_only=True)
class FacetValue:
    """One value of a column and how many runs have it."""

    value: str | int | None
    runs: int


@dataclass(frozen=True)
class _Sort:
    """An order, and where the page before ended in it."""

    name: str
    descending: bool
    last: tuple[Any, ...] = ()
    """The keys of the last row of the page before; empty at the start."""
    missing: bool = False
    """Whether that row has no value of the sorted column, which then is not among the keys."""

    @property
    def figure(self) -> str:
        """Name of the figure to sort by; empty for a column."""
        return self.name.removeprefix(FIGURE) if self.name.startswith(FIGURE) else ""

    @property
    def keys(self) -> tuple[ColumnElement[Any], ...]:
        """Columns to sort by: the one asked for, and what makes the order complete."""
        if self.figure:
            return figures.c.value, figures.c.sequence
        return tuple({c.name: c for c in (runs.c[self.name], *_BY_START)}.values())

    @property
    def may_be_missing(self) -> bool:
        """Whether some runs may have no value of the sorted column."""
        return bool(self.figure or runs.c[self.name].nullable)

    @property
    def cursor(self) -> str:
        """The place in the order, as text."""
        state = json.dumps([self.name, self.descending, self.last, self.missing])
        return base64.urlsafe_b64encode(state.encode()).decode().rstrip("=")

    def ordered(self, query: Select[Any], keys: tuple[ColumnElement[Any], ...]) -> Select[Any]:
        """The rows of a query after the last one, in this order, with their keys as columns."""
        if self.last and self.missing == (keys is _BY_START):
            here, last = tuple_(*keys), tuple_(*self.last)
            query = query.where(here < last if self.descending else here > last)
        for i, key in enumerate(keys):
            query = query.add_columns(key.label(f"{_KEY}{i}"))
        return query.order_by(*(key.desc() if self.descending else key for key in keys))


_BY_START = (runs.c.started_utc, runs.c.sequence)
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
    found: list[tuple[RunRow, tuple[Any, ...], bool]] = []
    if not order.missing:
        rows = connection.execute(_with_value(where, order).limit(limit + 1))
        found = [(row, keys, False) for row, keys in _split(rows)]
    if len(found) <= limit and order.may_be_missing:
        query = _without_value(where, order).limit(limit + 1 - len(found))
        found += [(row, keys, True) for row, keys in _split(connection.execute(query))]
    cursor = None
    if len(found) > limit:
        _, keys, missing = found[limit - 1]
        cursor = replace(order, last=keys, missing=missing).cursor
    counted = after is None and not filter.text and not filter.figures
    counted = counted and (len(where) <= 1 or _is_small(connection))
    return RunPage(
        rows=tuple(row for row, _, _ in found[:limit]),
        next=cursor,
        total=_total(connection, where) if counted else None,
    )


def rows_after(connection: Connection, filter: RunFilter, last: int) -> list[RunRow]:
    """The next rows that match, in the order of storing, after the one of number `last`."""
    where = _conditions(connection, filter)
    query = select(*_COLUMNS).where(*where, runs.c.sequence > last)
    found = connection.execute(query.order_by(runs.c.sequence).limit(_RUNS_AT_A_TIME))
    return [row for row, _ in _split(found)]


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


def _split(rows: CursorResult[Any]) -> Iterator[tuple[RunRow, tuple[Any, ...]]]:
    """Rows of a list, and their keys."""
    width = len(_COLUMNS)
    names = [column.name for column in _COLUMNS]
    for row in rows:
        yield RunRow(**dict(zip(names, row[:width], strict=True))), tuple(row[width:])


def _with_value(where: list[ColumnElement[bool]], order: _Sort) -> Select[Any]:
    """The runs with a value of the sorted column, after the last row of the page before."""
    query = select(*_COLUMNS).where(*where)
    if order.figure:
        query = query.join(figures, figures.c.sequence == runs.c.sequence)
        query = query.where(figures.c.name == order.figure)
    if order.may_be_missing:
        query = query.where(order.keys[0].is_not(None))
    return order.ordered(query, order.keys)


def _without_value(where: list[ColumnElement[bool]], order: _Sort) -> Select[Any]:
    """The runs without a value of the sorted column."""
    query = select(*_COLUMNS).where(*where)
    if order.figure:
        has = select(figures.c.sequence).where(
            figures.c.sequence == runs.c.sequence,
            figures.c.name == order.figure,
            figures.c.value.is_not(None),
        )
        query = query.where(~has.exists())
    else:
        query = query.where(order.keys[0].is_(None))
    return order.ordered(query, _BY_START)


def _sort(sort: str, descending: bool, after: str | None) -> _Sort:
    if sort not in SORTS and not sort.startswith(FIGURE):
        raise unknown_name("column to sort by", sort, [*SORTS, f"{FIGURE}NAME"], plural="columns")
    start = _Sort(sort, descending)
    if after is None:
        return start
    try:
        padded = after.encode("ascii") + b"=" * (-len(after) % 4)
        name, down, last, missing = json.loads(base64.urlsafe_b64decode(padded))
        here = _Sort(name, down, tuple(last), missing is True)
        if (name, down) != (sort, descending):
            raise ValueError(after)
        keys = _BY_START if here.missing else here.keys
        for key, value in zip(keys, last, strict=True):
            kinds = (str,) if key.type.python_type is str else (int, float)
            if not isinstance(value, kinds):
                raise TypeError(value)
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
    return [*where, *(_bounded(connection, bounds) for bounds in filter.figures)]


def _among(column: ColumnElement[Any], values: tuple[Any, ...]) -> ColumnElement[bool]:
    return column == values[0] if len(values) == 1 else column.in_(values)


def _values(given: Values) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) and given else tuple(given)


def _machine_ids(connection: Connection, names: tuple[str, ...]) -> tuple[str, ...]:
    """The ids of machines with these hostnames, and the names that may be ids themselves."""
    query = select(machines.c.machine_id).where(machines.c.hostname.in_(names))
    return (*names, *connection.execute(query).scalars())


def _bounded(connection: Connection, bounds: FigureBounds) -> ColumnElement[bool]:
    ends = [figures.c.name == bounds.name]
    if bounds.low is not None:
        ends.append(figures.c.value >= bounds.low)
    if bounds.high is not None:
        ends.append(figures.c.value <= bounds.high)
    if len(ends) == 1:
        ends.append(figures.c.value.is_not(None))
    found = select(figures.c.sequence).where(and_(*ends))
    few = connection.execute(found.limit(_FEW)).scalars().all()
    if len(few) < _FEW:
        return runs.c.sequence.in_(few)
    return found.where(figures.c.sequence == runs.c.sequence).exists()


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


def _is_small(connection: Connection) -> bool:
    newest = connection.execute(select(func.max(runs.c.sequence))).scalar()
    return newest is None or newest <= _SMALL


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
