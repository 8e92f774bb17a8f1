"""Compare: runs next to each other, what differs first, and which differences are significant.

The first run is the one that others are compared with. A ratio of throughputs has its 95 %
interval over runs; verdicts of several are corrected for their number (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.exports.record_json import ratio_json
from cubemesh.schema import Figure, NetworkWork, RunRecord
from cubemesh.schema.comparison import Difference, Ratio, corrected
from cubemesh.statistics import pooled
from cubemesh.store import Store
from cubemesh.store.compare import stored_spread
from cubemesh.store.run_statistics import ratio_of_runs, run_windows
from cubemesh.store.select import format_value, settings_of
from cubemesh.store.spread_prior import prior_spread
from cubemesh.untrusted import clean
from cubemesh.views.facts.run import figure_name
from cubemesh.views.formatting import (
    figure_text,
    outcome_text,
    quantity,
    result_text,
    run_name,
    words,
)
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Asked, Parameter

PARAMETERS = (
    Parameter(
        name="id", summary="A run; 2 to 50 of them. The first is the reference.", repeats=True
    ),
)
MOST_RUNS = 50
_THROUGHPUT = "throughput_per_s"


def _records(asked: Asked) -> list[RunRecord]:
    ids = list(dict.fromkeys(one for text in asked.all("id") for one in text.split(",") if one))
    if len(ids) > MOST_RUNS:
        raise UsageError(f"{len(ids)} runs are too many to compare: choose at most {MOST_RUNS}.")
    found = {record.run_id: record for record in map(asked.store.record, ids)}
    return list(found.values())


def document(asked: Asked) -> dict[str, Any]:
    """Settings and figures that differ between the runs, and the ratio of each one's throughput to
    that of the first (null where they cannot be compared)."""
    records = _records(asked)
    return envelope(
        "comparison",
        run_ids=[record.run_id for record in records],
        differs=[{"what": what, "values": values} for what, values in _differences(asked, records)],
        ratios=[ratio_json(ratio) for ratio in _ratios(asked.store, records)],
        figures=[
            {name: _plain(figure) for name, figure in record.figures.items()} for record in records
        ],
    )


def _plain(figure: Figure) -> dict[str, Any]:
    return {"value": figure.value, "low": figure.low, "high": figure.high, "unit": figure.unit}


def view(asked: Asked) -> dict[str, Any]:
    """The comparison as one table, a column a run."""
    records = _records(asked)
    ratios = _ratios(asked.store, records)
    names = dict.fromkeys(name for record in records for name in record.figures)
    return {
        "records": [
            (r, run_name(r.spec), figure_text(r, _THROUGHPUT) or result_text(r), outcome_text(r))
            for r in records
        ],
        "differs": _differences(asked, records),
        "same": _same(records),
        "ratios": [_verdict(ratio) for ratio in ratios],
        "compared": any(ratio is not None for ratio in ratios[1:]),
        "figures": [
            (figure_name(name), [_text(record.figures.get(name)) for record in records])
            for name in names
            if name not in ("wall_s", _THROUGHPUT)
        ],
        "notes": list(dict.fromkeys(clean(r.why or r.method) for r in ratios if r is not None)),
        "bars": _bars(records),
        "ids": [record.run_id for record in records],
    }


def _text(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return clean(quantity(figure.value, figure.unit, figure.low, figure.high))


def _bars(records: Sequence[RunRecord]) -> list[float]:
    """The throughputs as percent of the largest; 0 without one."""
    rates = [record.figure(_THROUGHPUT) or 0.0 for record in records]
    largest = max(rates, default=0.0)
    return [100 * rate / largest if largest > 0 else 0.0 for rate in rates]


def _values(asked: Asked, records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Every setting, then machine, software and version, one value a run."""
    own = [settings_of(record) for record in records]
    hostnames = {m.machine_id: m.hostname for m in asked.store.machines()}
    found = {
        name: [format_value(one[name]) if name in one else "" for one in own]
        for name in dict.fromkeys(name for one in own for name in one)
    }
    keys = [record.key for record in records]
    found["machine"] = [hostnames.get(key.machine_id, key.machine_id) for key in keys]
    found["software"] = [key.software_id for key in keys]
    found["cubemesh"] = [key.code_version for key in keys]
    found["warnings"] = [", ".join(sorted({w.code for w in r.warnings})) for r in records]
    return found


def _differences(asked: Asked, records: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """What differs: settings first."""
    return [
        (words(name), [clean(value) for value in values])
        for name, values in _values(asked, records).items()
        if len(set(values)) > 1
    ]


def _same(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """The main settings that all runs share."""
    own = [settings_of(record) for record in records]
    if not own:
        return []
    shared = ("network", "batch_per_device", "framework", "precision", "devices", "device")
    return [
        (words(name), clean(format_value(own[0][name])))
        for name in shared
        if name in own[0] and all(one.get(name) == own[0][name] for one in own)
    ]


def _ratios(store: Store, records: Sequence[RunRecord]) -> list[Ratio | None]:
    """Each run's throughput over the first's; None for the first, and for runs without one."""
    if not records or not _comparable(records[0]):
        return [None for _ in records]
    known: dict[int, Ratio] = {}
    first = records[0]
    own = stored_spread(store, first)
    for place, record in enumerate(records[1:], start=1):
        if _comparable(record):
            found = (own, stored_spread(store, record), prior_spread([first, record]))
            stored = pooled([one for one in found if one is not None])
            known[place] = ratio_of_runs([run_windows(first)], [run_windows(record)], stored)
    verdicts = dict(zip(known, corrected(list(known.values())), strict=True))
    return [verdicts.get(place) for place in range(len(records))]


def _comparable(record: RunRecord) -> bool:
    return record.ok and bool(record.measured) and isinstance(record.spec.work, NetworkWork)


_CLASSES = {Difference.FASTER: "good", Difference.SLOWER: "low"}


def _verdict(ratio: Ratio | None) -> dict[str, str] | None:
    if ratio is None:
        return None
    return {
        "text": quantity(ratio.value, "×", ratio.low, ratio.high),
        "verdict": str(ratio.verdict.value),
        "class": _CLASSES.get(ratio.verdict, "equal"),
    }
