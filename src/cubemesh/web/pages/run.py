"""Run: figures, step breakdown, telemetry, warnings, settings, and the commands."""

from __future__ import annotations

from typing import Any

from cubemesh.exports.record_json import record_json
from cubemesh.schema import RunRecord
from cubemesh.schema.work import Train, TrainSteps
from cubemesh.team.roles import Role
from cubemesh.views import formatting
from cubemesh.views.json_output import envelope
from cubemesh.views.report.page import run_entry
from cubemesh.web.commands import command_of
from cubemesh.web.equivalence_form import equivalence_fields
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.stored import experiment_runs_of, run_of
from cubemesh.web.why_slow import step_of, why_slow, why_view

PARAMETERS: tuple[Parameter, ...] = ()


def document(asked: Asked) -> dict[str, Any]:
    """The record, as `cubemesh results RUN --json` prints it, with what measured it
    and what takes the time of its step."""
    record = run_of(asked)
    answers = [
        {"experiment": one.experiment, "experiment_run_id": one.experiment_run_id}
        for one in experiment_runs_of(asked.store, record)
    ]
    return envelope(
        "record",
        record=record_json(record),
        answers=answers,
        why_slow=why_slow(asked.store, step_of(record)),
    )


def view(asked: Asked) -> dict[str, Any]:
    """The entry of the run in the report, and where it belongs."""
    record = run_of(asked)
    store = asked.store
    series = store.samples(record.run_id)
    machine = store.machine(record.key.machine_id)
    return {
        "title": formatting.run_name(record.spec),
        "run": run_entry(record, series),
        "figure": _headline(record),
        "machine": machine,
        "can_forecast": record.ok
        and isinstance(record.spec.work, Train | TrainSteps)
        and bool(record.ranks and record.figure("throughput_per_s")),
        "why": why_view(store, step_of(record)),
        "equivalence": equivalence_fields(record.spec, machine)
        if record.ok and asked.person.role >= Role.MEMBER
        else None,
        "machine_line": "" if machine is None else formatting.machine_line(machine, 90),
        "answers": [
            (one, command_of(one)) for one in experiment_runs_of(store, record)[:_MOST_ANSWERS]
        ],
        "curves": any(one.times_s.size > 1 for one in series)
        or any(len(c.x) > 1 for c in record.curves if c.name not in record.series),
    }


_MOST_ANSWERS = 5


def _headline(record: RunRecord) -> tuple[str, str, str] | None:
    """The main figure of a run in large print: number, unit, interval."""
    for name in ("throughput_per_s", "rate_flops_per_s", "rate_bytes_per_s", "bus_bytes_per_s"):
        figure = record.figures.get(name)
        if figure is not None:
            unit = formatting.figure_unit(record, name)
            return formatting.split_figure(figure.value, unit, figure.low, figure.high)
    return None
