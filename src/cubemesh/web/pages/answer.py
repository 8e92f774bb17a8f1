"""Answer: one experiment run, as the report shows it."""

from __future__ import annotations

from typing import Any

from cubemesh.errors import CubemeshError
from cubemesh.experiments.runner import ExperimentResult
from cubemesh.views.formatting import machine_line
from cubemesh.views.json_output import answer_json, envelope
from cubemesh.views.report.page import section
from cubemesh.web.commands import command_of
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.stored import experiment_run_of, results_of

PARAMETERS: tuple[Parameter, ...] = ()


def _result(asked: Asked) -> ExperimentResult:
    run = experiment_run_of(asked)
    found = results_of(asked.store, [run])
    if not found:
        raise CubemeshError(
            f"The answer of {run.experiment} cannot be computed from what is stored. Measure it "
            f"again: {command_of(run)}"
        )
    return found[0]


def document(asked: Asked) -> dict[str, Any]:
    """The answer: findings, tables, charts, warnings, notes; and where it comes from."""
    result = _result(asked)
    run = result.experiment_run
    return envelope(
        "answer",
        experiment_run_id=run.experiment_run_id,
        experiment=run.experiment,
        machine_id=run.machine_id,
        started_utc=run.started_utc,
        complete=run.complete,
        run_ids=list(run.run_ids),
        command=command_of(run),
        answer=answer_json(result.answer),
    )


def view(asked: Asked) -> dict[str, Any]:
    """The section of the report."""
    result = _result(asked)
    run = result.experiment_run
    machine = asked.store.machine(run.machine_id)
    if machine is None:
        raise CubemeshError(f"The store has no description of machine {run.machine_id}.")
    records = {record.run_id: record for record in result.records}
    return {
        "title": result.answer.title,
        "section": section(1, result.answer, records, machine),
        "experiment_run": run,
        "command": command_of(run),
        "machine_line": machine_line(machine, 90),
        "run_ids": run.run_ids,
    }
