"""Runs: the list, by filters, order and columns; from columns of the store, never from records."""

from __future__ import annotations

from typing import Any

from cubemesh.errors import UsageError
from cubemesh.store.run_list import FIGURE, RunFilter
from cubemesh.untrusted import clean
from cubemesh.views.facts.run import figure_name
from cubemesh.views.formatting import machine_name
from cubemesh.views.json_output import envelope
from cubemesh.web.listing import (
    COLUMNS,
    SHOWN,
    SORT_OF,
    cells_of,
    outcome_words,
    page_json,
)
from cubemesh.web.page import Asked, Parameter

_FILTERS = {
    "network": "Network",
    "framework": "Framework",
    "precision": "Precision",
    "strategy": "Gradient synchronization",
    "device": "Device",
    "machine": "Machine",
    "experiment": "Experiment",
    "outcome": "Outcome",
    "work": "Work",
}
"""Parameter → its label."""
_FACET_OF = {"machine": "machine_id"}
PARAMETERS = (
    Parameter(name="text", summary="Words that all occur in a run's id, network or machine."),
    *(Parameter(name=n, summary=f"Only this: {n}.", repeats=True) for n in _FILTERS),
    Parameter(name="workload", summary="Only this workload, by its id."),
    Parameter(name="since", summary="Runs that started at this date or later."),
    Parameter(name="until", summary="Runs that started before the end of this date."),
    Parameter(
        name="sort",
        summary="A column to sort by, or figure.NAME; with - in front descending; "
        "default: -started_utc.",
    ),
    Parameter(name="after", summary="Cursor of the page before: its `next`."),
    Parameter(name="limit", summary="Runs a page, 1 to 1000; default: 50."),
    Parameter(name="column", summary="A column or figure to show; may be repeated.", repeats=True),
)
_LIMIT, _MOST = 50, 1000
_MOST_VALUES = 200
"""Of a filter that can be chosen from."""


def filter_of(asked: Asked) -> RunFilter:
    """The filter in the parameters."""
    given: dict[str, Any] = {name: asked.all(name) for name in _FILTERS}
    return RunFilter(
        **given,
        workload=asked.all("workload"),
        text=asked.one("text"),
        since=asked.one("since"),
        until=asked.one("until"),
    )


def _page(asked: Asked) -> Any:
    sort = asked.one("sort", "-started_utc")
    return asked.store.list_runs(
        filter_of(asked),
        sort=sort.removeprefix("-"),
        descending=sort.startswith("-"),
        after=asked.one("after") or None,
        limit=asked.number("limit", _LIMIT, _MOST),
    )


def document(asked: Asked) -> dict[str, Any]:
    """One page of runs; `next` is the `after` of the following one. Figures that are chosen as
    columns are in `figures`, by run id."""
    page = _page(asked)
    chosen = [one for one in asked.all("column") if one not in COLUMNS]
    figures = _figures(asked, page, chosen)
    return envelope(
        "runs",
        **page_json(page),
        figures={
            run_id: {
                name: {"value": f.value, "low": f.low, "high": f.high, "unit": f.unit}
                for name, f in own.items()
                if name in chosen
            }
            for run_id, own in figures.items()
        },
    )


def _figures(asked: Asked, page: Any, chosen: list[str]) -> dict[str, Any]:
    return asked.store.figures([row.run_id for row in page.rows]) if chosen else {}


def view(asked: Asked) -> dict[str, Any]:
    """The list with its filters."""
    columns = asked.all("column") or SHOWN
    known = asked.store.figure_names()
    for one in columns:
        if one not in COLUMNS and one not in known:
            raise UsageError(
                f"column={clean(one, 40)} is not a column. Give one of {', '.join(COLUMNS)}, or a "
                "figure that a stored run has."
            )
    page = _page(asked)
    figures = _figures(asked, page, [one for one in columns if one not in COLUMNS])
    given = {one.name: asked.all(one.name) for one in PARAMETERS}
    sort = asked.one("sort", "-started_utc")
    return {
        "rows": [(row, cells_of(row, figures.get(row.run_id, {}), columns)) for row in page.rows],
        "columns": [_heading(name, sort, given) for name in columns],
        "total": page.total,
        "next": {**given, "after": page.next} if page.next else None,
        "first": {**given, "after": ()} if asked.one("after") else None,
        "filters": _choices(asked),
        "given": given,
        "active": [
            (
                label,
                value,
                {**given, name: tuple(v for v in given[name] if v != value), "after": ()},
            )
            for name, label in (*_FILTERS.items(), ("workload", "Workload"))
            for value in given[name]
        ],
        "known_columns": [(name, heading) for name, (heading, _) in COLUMNS.items()],
        "known_figures": [(name, figure_name(name)) for name in known],
        "chosen_columns": columns,
        "search": asked.one("text"),
    }


def _heading(name: str, sort: str, given: dict[str, Any]) -> dict[str, Any]:
    """Of a column: its text, and the parameters that sort by it, the other way round if it is
    sorted already."""
    text, number = COLUMNS.get(name, (figure_name(name), True))
    key = SORT_OF.get(name, "" if name in COLUMNS else f"{FIGURE}{name}")
    descending = sort.startswith("-")
    own = sort.removeprefix("-") == key
    first_down = number or name == "started"
    down = not descending if own else first_down
    return {
        "text": clean(text),
        "number": number,
        "order": ("descending" if descending else "ascending") if own else "",
        "query": {**given, "sort": f"-{key}" if down else key, "after": ()} if key else None,
    }


def _choices(asked: Asked) -> list[tuple[str, str, list[tuple[str, str, bool]]]]:
    """For each filter its label and (value, text, whether it is chosen)."""
    facets = asked.store.run_facets(filter_of(asked))
    names = {m.machine_id: machine_name(m) for m in asked.store.machines()}
    found = []
    for name, label in _FILTERS.items():
        values = facets.get(_FACET_OF.get(name, name), ())[:_MOST_VALUES]
        chosen = asked.all(name)
        options = []
        for one in values:
            value = "" if one.value is None else str(one.value)
            text = {"machine": names.get(value, value), "outcome": ""}.get(name, value)
            text = outcome_words(value) if name == "outcome" else text
            if value:
                options.append((value, f"{clean(text)} ({one.runs:,})", value in chosen))
        listed = {value for value, _, _ in options}
        options += [(value, clean(value), True) for value in chosen if value not in listed]
        if len(options) > 1 or chosen:
            found.append((name, label, options))
    return found
