"""Rows of lists: runs by their columns, as plain data for JSON and templates. No record is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from cubemesh.networks import rate_unit
from cubemesh.schema import Figure, Status
from cubemesh.schema.outcome import STATUS_WORDS
from cubemesh.store import Store
from cubemesh.store.run_list import RunFilter, RunPage, RunRow
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views.formatting import moment, quantity, words

_THROUGHPUT = "throughput_per_s"


def plain_row(row: RunRow) -> dict[str, Any]:
    """A run in a list, as JSON has it."""
    return asdict(row)


def page_json(page: RunPage) -> dict[str, Any]:
    """A page of a list, as JSON has it."""
    return {"runs": [plain_row(row) for row in page.rows], "next": page.next, "total": page.total}


def name_of(row: RunRow) -> str:
    """What a run measured, in a few words: `resnet-50, batch size 64`."""
    name = row.network or words(row.work)
    parts = [name if row.network else name.capitalize()]
    if row.batch_per_device is not None:
        parts.append(f"batch size {row.batch_per_device:,}")
    if row.devices > 1:
        parts.append(f"{row.devices} devices")
    return clean(" · ".join(parts))


def rate_text(row: RunRow) -> str:
    """The throughput of a run with its interval; empty without one."""
    if row.samples_per_s is None:
        return ""
    return quantity(
        row.samples_per_s, _rate_unit(row), row.samples_per_s_low, row.samples_per_s_high
    )


def _rate_unit(row: RunRow) -> str:
    try:
        return rate_unit(row.network) if row.network else "samples/s"
    except Exception:  # a network of another version
        return "samples/s"


def outcome_words(outcome: str) -> str:
    """`out of memory` of `oom`."""
    return STATUS_WORDS[Status(outcome)] if outcome in list(Status) else clean(outcome)


COLUMNS: dict[str, tuple[str, bool]] = {
    "run": ("run", False),
    "machine": ("machine", False),
    "framework": ("framework", False),
    "precision": ("precision", False),
    "strategy": ("gradient synchronization", False),
    "device": ("device", False),
    "throughput": ("throughput", True),
    "elapsed": ("wall time", True),
    "started": ("started", False),
    "outcome": ("outcome", False),
    "warnings": ("warnings", True),
}
"""Column → its heading, and whether it holds numbers."""
SHOWN = ("run", "machine", "framework", "precision", "throughput", "outcome", "started")
"""Columns without a choice."""
SORT_OF = {
    "run": "network",
    "machine": "hostname",
    "framework": "framework",
    "precision": "precision",
    "strategy": "strategy",
    "device": "device",
    "throughput": "samples_per_s",
    "elapsed": "elapsed_s",
    "started": "started_utc",
    "outcome": "outcome",
}
"""Column → what the store sorts by for it."""


def headings(columns: Iterable[str] = SHOWN) -> list[dict[str, Any]]:
    """The headings of a list that cannot be sorted."""
    found = (COLUMNS[name] for name in columns)
    return [{"text": text, "number": number, "order": "", "query": None} for text, number in found]


def cells_of(row: RunRow, figures: dict[str, Figure], columns: Iterable[str]) -> list[str]:
    """The texts of a row."""
    known = {
        "run": name_of(row),
        "machine": clean(row.hostname or row.machine_id),
        "framework": clean(row.framework),
        "precision": clean(row.precision),
        "strategy": clean(row.strategy),
        "device": clean(row.device),
        "throughput": rate_text(row),
        "elapsed": format_seconds(row.elapsed_s),
        "started": moment(row.started_utc).removesuffix(" UTC"),
        "outcome": outcome_words(row.outcome),
        "warnings": str(row.warnings) if row.warnings else "",
    }
    return [known[name] if name in known else _figure_text(figures.get(name)) for name in columns]


def _figure_text(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return quantity(figure.value, figure.unit, figure.low, figure.high)


def latest_of_machines(store: Store) -> dict[str, tuple[int, str]]:
    """Number of runs and start of the newest one, by machine."""
    found = {}
    for one in store.run_facets().get("machine_id", ()):
        machine_id = str(one.value)
        newest = store.list_runs(RunFilter(machine=machine_id), limit=1).rows
        found[machine_id] = one.runs, newest[0].started_utc if newest else ""
    return found
