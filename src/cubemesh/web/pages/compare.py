"""Compare: runs next to each other, what differs first, and which differences are significant.

The first run is the one that others are compared with. A ratio of throughputs has its 95 %
interval over runs; verdicts of several are corrected for their number (Holm). Which run to choose
is decided against the best (experiments/analysis/choice.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.choice import (
    BEST,
    MCNEMAR,
    NEWCOMBE,
    TIED,
    UNDECIDED,
    WORSE,
    Choice,
    ParetoFront,
    choose,
    pareto_front,
)
from cubemesh.exports.record_json import ratio_json
from cubemesh.schema import Figure, NetworkWork, RunRecord
from cubemesh.schema.comparison import Difference, Ratio, corrected
from cubemesh.schema.serialization import to_plain
from cubemesh.statistics import Spread, pooled
from cubemesh.store import Store
from cubemesh.store.compare import stored_spread
from cubemesh.store.run_statistics import ratio_of_runs, run_windows
from cubemesh.store.select import format_value, settings_of
from cubemesh.store.spread_prior import prior_spread
from cubemesh.units import format_number
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
MOST_DIFFERENCES = 3
"""Settings that describe the recommended run, or name a line of a chart."""
_THROUGHPUT = "throughput_per_s"


def records_of(asked: Asked) -> list[RunRecord]:
    """The runs that are compared, each once."""
    ids = list(dict.fromkeys(one for text in asked.all("id") for one in text.split(",") if one))
    if len(ids) > MOST_RUNS:
        raise UsageError(f"{len(ids)} runs are too many to compare: choose at most {MOST_RUNS}.")
    found = {record.run_id: record for record in map(asked.store.record, ids)}
    return list(found.values())


def document(asked: Asked) -> dict[str, Any]:
    """Settings and figures that differ between the runs, the ratio of each one's throughput to that
    of the first (null where they cannot be compared), which to choose (a sentence where that cannot
    be said), and the Pareto front of accuracy or throughput, time, energy and size."""
    records, spreads = records_of(asked), _Spreads(asked.store)
    choice = _choice(spreads, records)
    return envelope(
        "comparison",
        run_ids=[record.run_id for record in records],
        differs=[{"what": what, "values": values} for what, values in differences(asked, records)],
        ratios=[ratio_json(ratio) for ratio in _ratios(spreads, records)],
        choice=None if isinstance(choice, str) else {**to_plain(choice), "tied": choice.tied},
        no_choice=choice if isinstance(choice, str) else "",
        pareto=to_plain(pareto_front(records)),
        figures=[
            {name: _plain(figure) for name, figure in record.figures.items()} for record in records
        ],
    )


def _plain(figure: Figure) -> dict[str, Any]:
    return {"value": figure.value, "low": figure.low, "high": figure.high, "unit": figure.unit}


def view(asked: Asked) -> dict[str, Any]:
    """The comparison as one table, a column a run."""
    records, spreads = records_of(asked), _Spreads(asked.store)
    ratios = _ratios(spreads, records)
    choice = _choice(spreads, records)
    names = dict.fromkeys(name for record in records for name in record.figures)
    differs = differences(asked, records)
    return {
        "records": [
            (r, run_name(r.spec), figure_text(r, _THROUGHPUT) or result_text(r), outcome_text(r))
            for r in records
        ],
        "differs": differs,
        "same": _same(records),
        "ratios": [_verdict(ratio) for ratio in ratios],
        "compared": any(ratio is not None for ratio in ratios[1:]),
        "figures": [
            (figure_name(name), [_text(record.figures.get(name)) for record in records])
            for name in names
            if name not in ("wall_s", _THROUGHPUT)
        ],
        "choice": _choice_view(choice, records, differs),
        "curves": any(len(curve.x) > 1 for r in records for curve in r.curves)
        or any(r.ok and len(run_windows(r)) > 1 for r in records),
        "front": _front_view(pareto_front(records), records),
        "tests": _tests(choice),
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


def differences(asked: Asked, records: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
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


class _Spreads:
    """The spread between stored repeats of a workload on a machine, read once for all its runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, str], Spread | None] = {}

    def of(self, record: RunRecord) -> Spread | None:
        """That of a run's workload."""
        key = record.spec.workload_id, record.key.machine_id
        if key not in self._known:
            self._known[key] = stored_spread(self._store, record)
        return self._known[key]


def _ratios(spreads: _Spreads, records: Sequence[RunRecord]) -> list[Ratio | None]:
    """Each run's throughput over the first's; None for the first, and for runs without one. The
    verdicts are corrected for their number."""
    if not records:
        return []
    found = [None, *_ratios_to(spreads, records[0], records[1:])]
    known = {place: ratio for place, ratio in enumerate(found) if ratio is not None}
    verdicts = dict(zip(known, corrected(list(known.values())), strict=True))
    return [verdicts.get(place) for place in range(len(records))]


def _ratios_to(
    spreads: _Spreads, first: RunRecord, others: Sequence[RunRecord]
) -> list[Ratio | None]:
    """The throughput of each of `others` over that of `first`; None where one has none."""
    if not _comparable(first):
        return [None for _ in others]
    own, ratios = spreads.of(first), list[Ratio | None]()
    for record in others:
        if not _comparable(record):
            ratios.append(None)
            continue
        known = (own, spreads.of(record), prior_spread([first, record]))
        stored = pooled([one for one in known if one is not None])
        ratios.append(ratio_of_runs([run_windows(first)], [run_windows(record)], stored))
    return ratios


def _choice(spreads: _Spreads, records: Sequence[RunRecord]) -> Choice | str:
    return choose(records, lambda best, others: _ratios_to(spreads, best, others))


def _tests(choice: Choice | str) -> str:
    """Which test compared the accuracies with the best, and what it could have shown."""
    if isinstance(choice, str) or choice.criterion != "accuracy":
        return ""
    others = [one for one in choice.standings.values() if one.test]
    used = [(test, [o for o in others if o.test == test]) for test in (MCNEMAR, NEWCOMBE)]
    parts = []
    for test, own in used:
        smallest = [100 * o.smallest for o in own if o.smallest is not None]
        if smallest:
            ends = dict.fromkeys(format_number(end) for end in (min(smallest), max(smallest)))
            parts.append(
                f"{len(own)} run{'' if len(own) == 1 else 's'} by {test} (smallest detectable "
                f"difference: {' to '.join(ends)} percentage points)"
            )
    return f"Accuracies are compared with the best: {'; '.join(parts)}." if parts else ""


def _choice_view(
    choice: Choice | str,
    records: Sequence[RunRecord],
    differs: Sequence[tuple[str, list[str]]],
) -> dict[str, Any]:
    """The choice in words, with what differs of it, and the verdict of each run."""
    if isinstance(choice, str):
        return {"why_not": choice, "verdicts": []}
    names = {record.run_id: run_name(record.spec) for record in records}
    others = len(choice.tied) - 1
    place = [record.run_id for record in records].index(choice.chosen)
    title = f"{choice.chosen} · {names[choice.chosen]}"
    named = title.replace(",", "").split()
    own = [f"{what} {v[place]}" for what, v in differs if v[place] and v[place] not in named]
    title += "".join(f" · {one}" for one in own[:MOST_DIFFERENCES])
    best = "It" if choice.chosen == choice.best else choice.best
    text = f"{best} has the highest {choice.criterion}"
    if others:
        text += (
            f"; {others} other run{' is' if others == 1 else 's are'} tied with it: the interval "
        )
        text += "of the difference includes zero. "
        text += (
            f"Of these, {choice.chosen} took the least {choice.cost}."
            if choice.cost
            else "What they cost is not known of all of them."
        )
    else:
        text += "."
    unknown = sum(one.verdict == UNDECIDED for one in choice.standings.values())
    if unknown:
        text += f" Of {unknown} run{'' if unknown == 1 else 's'} there are too few data to tell."
    return {
        "why_not": "",
        "chosen": choice.chosen,
        "title": clean(title),
        "text": clean(text),
        "verdicts": [
            _standing(choice, record.run_id) if record.run_id in choice.standings else None
            for record in records
        ],
    }


_STANDINGS = {BEST: "good", TIED: "equal", UNDECIDED: "equal", WORSE: "low"}


def _standing(choice: Choice, run_id: str) -> dict[str, str]:
    one = choice.standings[run_id]
    text = ""
    if one.difference is not None and choice.criterion == "accuracy":
        low, high = (None if end is None else 100 * end for end in (one.low, one.high))
        text = quantity(100 * one.difference, "percentage points", low, high)
        if one.only_best is not None:
            text += f"; {one.only_best:,} right only in the best, {one.only_own:,} only here"
    elif one.difference is not None:
        text = quantity(one.difference, "×", one.low, one.high)
    words_of = {BEST: f"highest {choice.criterion}", TIED: "tied with the best"}
    chosen = "take this: " if run_id == choice.chosen else ""
    return {
        "text": text,
        "verdict": chosen + words_of.get(one.verdict, one.verdict),
        "class": _STANDINGS[one.verdict],
    }


def _front_view(front: ParetoFront | None, records: Sequence[RunRecord]) -> dict[str, Any] | None:
    if front is None:
        return None
    return {
        "axes": " × ".join(front.axes),
        "cells": [
            "on the front"
            if record.run_id in front.front
            else f"dominated by {front.dominated[record.run_id]}"
            if record.run_id in front.dominated
            else ""
            for record in records
        ],
    }


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
