"""Search: runs, machines, experiments and networks in one box."""

from __future__ import annotations

from typing import Any

from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.store.run_list import RunFilter
from cubemesh.untrusted import clean
from cubemesh.views.formatting import machine_line
from cubemesh.views.json_output import envelope
from cubemesh.web.listing import SHOWN, cells_of, headings, page_json
from cubemesh.web.page import Asked, Parameter

PARAMETERS = (Parameter(name="q", summary="Words, or the beginning of an id."),)
_RUNS = 20
_MOST_QUERY = 200


def _words(asked: Asked) -> list[str]:
    return asked.one("q")[:_MOST_QUERY].lower().split()


def _runs(asked: Asked) -> Any:
    return asked.store.list_runs(RunFilter(text=" ".join(_words(asked))), limit=_RUNS)


def _machines(asked: Asked) -> list[tuple[str, str]]:
    listed = ((m.machine_id, machine_line(m)) for m in asked.store.machines())
    return [(i, line) for i, line in listed if _fits(asked, f"{i} {line}")]


def _answers(asked: Asked) -> list[tuple[str, str, str]]:
    """(id, experiment, when) of experiment runs whose id, experiment or question fits."""
    found = []
    for one in reversed(asked.store.experiment_runs()):
        question = EXPERIMENTS[one.experiment].question if one.experiment in EXPERIMENTS else ""
        if _fits(asked, f"{one.experiment_run_id} {one.experiment} {question} {one.suite or ''}"):
            found.append((one.experiment_run_id, one.experiment, one.started_utc))
        if len(found) == _RUNS:
            break
    return found


def _fits(asked: Asked, text: str) -> bool:
    return all(word in text.lower() for word in _words(asked))


def document(asked: Asked) -> dict[str, Any]:
    """What was found, of each kind."""
    if not _words(asked):
        return envelope("search", runs=[], machines=[], answers=[], next=None, total=0)
    return envelope(
        "search",
        **page_json(_runs(asked)),
        machines=[{"machine_id": i, "summary": line} for i, line in _machines(asked)],
        answers=[
            {"experiment_run_id": i, "experiment": name, "started_utc": when}
            for i, name, when in _answers(asked)
        ],
    )


def view(asked: Asked) -> dict[str, Any]:
    """The same as lists."""
    asked_words = bool(_words(asked))
    page = _runs(asked) if asked_words else None
    return {
        "search": clean(asked.one("q")[:_MOST_QUERY]),
        "rows": [(row, cells_of(row, {}, SHOWN)) for row in page.rows] if page else [],
        "columns": headings(),
        "total": page.total if page else 0,
        "machines": _machines(asked) if asked_words else [],
        "answers": _answers(asked) if asked_words else [],
    }
