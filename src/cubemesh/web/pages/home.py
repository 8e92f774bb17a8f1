"""Home: the latest findings, the latest runs, and what the store holds."""

from __future__ import annotations

from typing import Any

from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import HELD, State
from cubemesh.jobs.values import QueuedJob
from cubemesh.schema import ExperimentRun
from cubemesh.store import Store
from cubemesh.views.formatting import machine_line
from cubemesh.views.job_pages import job_json
from cubemesh.views.json_output import envelope
from cubemesh.views.report.headline import ranked, split_text
from cubemesh.views.report.page import Card, cards
from cubemesh.web.demo import demonstrations
from cubemesh.web.listing import SHOWN, cells_of, headings, page_json
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.queued import queue_of, rows_of
from cubemesh.web.stored import results_of

PARAMETERS: tuple[Parameter, ...] = ()
_RUNS = 12
_ANSWERS = 6
"""The newest experiment runs whose findings are shown."""
_MOST_RUNS = 200
"""An experiment run of more is left to its own page: its answer takes seconds."""
_CARDS = 6
_JOBS = 12
"""Jobs that run or wait, those that run first."""


def _jobs(asked: Asked) -> list[QueuedJob]:
    queue = queue_of(asked)
    running = queue.list(states=HELD, limit=_JOBS)
    waiting = queue.list(states=(State.QUEUED,), limit=_JOBS)
    return [*running, *waiting][:_JOBS]


def _newest(store: Store) -> list[ExperimentRun]:
    """The newest experiment run of each experiment, on any machine."""
    newest: dict[str, ExperimentRun] = {}
    for one in reversed(store.experiment_runs()):
        if 0 < len(one.run_ids) <= _MOST_RUNS:
            newest.setdefault(one.experiment, one)
        if len(newest) == _ANSWERS:
            break
    return list(newest.values())


def document(asked: Asked) -> dict[str, Any]:
    """The findings of the latest experiment runs, the jobs that run or wait, and the latest
    runs."""
    results = results_of(asked.store, _newest(asked.store))
    page = asked.store.list_runs(limit=_RUNS)
    return envelope(
        "home",
        findings=[
            {
                "experiment_run_id": result.experiment_run.experiment_run_id,
                "experiment": result.experiment_run.experiment,
                "title": result.answer.title,
                "findings": [finding.text for finding in result.answer.findings],
            }
            for result in results
        ],
        jobs=[job_json(job) for job in _jobs(asked)],
        **page_json(page),
    )


def view(asked: Asked) -> dict[str, Any]:
    """Cards of the most important findings, each with the address of its answer."""
    store = asked.store
    results = results_of(store, _newest(store))
    answers = [result.answer for result in results]
    records = {r.run_id: r for result in results for r in result.records}
    page = store.list_runs(limit=_RUNS)
    machines = {m.machine_id: m for m in store.machines()}
    order = ranked(answers, records.values())
    top = next((one for one in order if not one.answer.simulated), None)
    found = cards(answers, records.values())[:_CARDS]
    return {
        "headline": split_text(top.finding)[0] if top else "",
        "headline_address": _address(results[top.index - 1].experiment_run) if top else "",
        "cards": [(card, _address(results[_place(card)].experiment_run)) for card in found],
        "rows": [(row, cells_of(row, {}, SHOWN)) for row in page.rows],
        "columns": headings(),
        "total": page.total,
        "jobs": rows_of(_jobs(asked)),
        "demo": demonstrations(JobQueue(store.database), store) if asked.demo else None,
        "answers": [(result.experiment_run, result.answer) for result in results],
        "machines": [
            (machine_id, machine_line(machines[machine_id], 90))
            for machine_id in dict.fromkeys(row.machine_id for row in page.rows)
            if machine_id in machines
        ],
    }


def _place(card: Card) -> int:
    """Of a card's answer in the list; its anchor counts from 1."""
    return int(card.anchor.rpartition("-")[2]) - 1


def _address(run: ExperimentRun) -> str:
    return f"/answers/{run.experiment_run_id}"
