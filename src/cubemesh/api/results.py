"""Stored runs: a table that pandas reads, and one record by its id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.errors import UsageError
from cubemesh.exports.table import STARTED, table_rows
from cubemesh.frameworks import entry
from cubemesh.networks import canonical_name
from cubemesh.networks.own_networks import is_own
from cubemesh.schema import RunRecord, Series
from cubemesh.store.damage import Damage
from cubemesh.user_code import short_name

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True, repr=False)
class ResultTable(Sequence[dict[str, Any]]):
    """Stored runs, oldest first, as a sequence of rows: `pandas.DataFrame(table)` works."""

    records: tuple[RunRecord, ...]
    damage: tuple[Damage, ...] = ()
    """Stored rows that could not be read and are left out."""

    @cached_property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """A dict for each run, all with the same keys: its settings, its outcome, then every figure
        that any of the runs has with its interval, `_low` and `_high` (None where missing)."""
        return table_rows(self.records)

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys of a row."""
        return tuple(self.rows[0]) if self.rows else ()

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame, with dates as such; UsageError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise UsageError("pandas is not installed: pip install pandas") from None
        frame = pandas.DataFrame(list(self.rows), columns=list(self.columns))
        if STARTED in frame:
            frame[STARTED] = pandas.to_datetime(frame[STARTED], utc=True, format="ISO8601")
        return frame

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> ResultTable: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | ResultTable:
        if isinstance(index, slice):
            return ResultTable(records=self.records[index], damage=self.damage)
        return self.rows[index]

    def __repr__(self) -> str:
        shown = ("run_id", "network", "framework", "batch_per_device", "outcome")
        lines = ["  ".join(str(row[name]) for name in shown) for row in self.rows[:10]]
        more = [f"… {len(self) - 10} more"] if len(self) > 10 else []
        return "\n  ".join([f"ResultTable({len(self)} runs)", *lines, *more])


def results(
    *,
    network: str | None = None,
    framework: str | None = None,
    outcome: str | None = None,
    limit: int | None = None,
    store: AnyStore = None,
) -> ResultTable:
    """Stored runs of this network, framework and outcome, oldest first; the newest `limit` of them.
    UsageError for a name that is unknown, StoreError where there is no store."""
    name = network and (short_name(network) if is_own(network) else canonical_name(network))
    if framework is not None:
        entry(framework)  # names the nearest where it is unknown
    with open_store(store, reading=True) as opened:
        found = opened.records(network=name, framework=framework, outcome=outcome, limit=limit)
        return ResultTable(records=tuple(found), damage=opened.damage)


def recover(*, store: AnyStore = None) -> int:
    """Store what waits in the store's spool (docs/store.md), each run once; the number of files
    that still wait. StoreError or BusyError where the store takes nothing."""
    with open_store(store) as opened:
        unsaved, left = opened.settle(), len(opened.spooled)
    if unsaved is not None:
        raise unsaved
    return left


def record(run_id: str, *, store: AnyStore = None) -> RunRecord:
    """The stored run with this id or unique prefix; UsageError where none or several have it."""
    with open_store(store, reading=True) as opened:
        return opened.record(run_id)


def telemetry(run_id: str, *, store: AnyStore = None) -> list[Series]:
    """The telemetry of the stored run with this id or unique prefix; empty without telemetry."""
    with open_store(store, reading=True) as opened:
        return opened.series(opened.record(run_id).run_id)
