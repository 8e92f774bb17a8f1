"""Answers: the stored experiment runs, the newest first, a page at a time."""

from __future__ import annotations

from typing import Any

from cubemesh.api.arguments import value_text
from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.schema import ExperimentRun
from cubemesh.views.formatting import machine_name
from cubemesh.views.json_output import envelope
from cubemesh.web.commands import own_values
from cubemesh.web.page import Asked, Parameter

PARAMETERS = (
    Parameter(name="experiment", summary="Only this experiment."),
    Parameter(name="machine", summary="Only this machine, by its id."),
    Parameter(name="after", summary="The last experiment run of the page before."),
    Parameter(name="limit", summary="Most experiment runs, 1 to 200; default: 50."),
)
_SHOWN, _MOST = 50, 200


def document(asked: Asked) -> dict[str, Any]:
    """The experiment runs without their answers; `next` is the `after` of the next page."""
    found = _chosen(asked)
    rows = found[: asked.number("limit", _SHOWN, _MOST)]
    names = {m.machine_id: m.hostname for m in asked.store.machines()}
    return envelope(
        "answers",
        answers=[_row(one, names) for one in rows],
        next=rows[-1].experiment_run_id if len(found) > len(rows) else None,
    )


def _chosen(asked: Asked) -> list[ExperimentRun]:
    """Those that fit, the newest first, after the one that was shown last."""
    experiment, machine, after = asked.one("experiment"), asked.one("machine"), asked.one("after")
    found = asked.store.experiment_runs(experiment or None)[::-1]
    found = [one for one in found if not machine or one.machine_id == machine]
    place = next((i for i, one in enumerate(found) if one.experiment_run_id == after), -1)
    return found[place + 1 :]


def _row(run: ExperimentRun, hostnames: dict[str, str]) -> dict[str, Any]:
    known = EXPERIMENTS.get(run.experiment)
    return {
        "experiment_run_id": run.experiment_run_id,
        "experiment": run.experiment,
        "question": "" if known is None else known.question,
        "suite": run.suite,
        "settings": {name: value_text(value) for name, value in own_values(run).items()},
        "machine_id": run.machine_id,
        "hostname": hostnames.get(run.machine_id, ""),
        "started_utc": run.started_utc,
        "complete": run.complete,
        "runs": len(run.run_ids),
    }


def view(asked: Asked) -> dict[str, Any]:
    """The list, with the experiments and machines to choose from."""
    runs = asked.store.experiment_runs()
    return document(asked) | {
        "experiments": sorted({one.experiment for one in runs}),
        "machines": [(m.machine_id, machine_name(m)) for m in asked.store.machines()],
        "chosen": {name: asked.one(name) for name in ("experiment", "machine", "limit")},
    }
