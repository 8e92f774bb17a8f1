"""What several pages read from the store: a run, its experiment runs, and computed answers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.errors import StoreError, UsageError
from cubemesh.experiments.acceptance.checks import AcceptanceVerdict
from cubemesh.experiments.acceptance.report import CHECKS, verdict_of
from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.experiments.runner import ExperimentResult, stored_result
from cubemesh.schema import Answer, ExperimentRun, Machine, RunRecord, Table
from cubemesh.store import Store
from cubemesh.untrusted import clean
from cubemesh.web.page import Asked, NotFoundError

_MOST_ANSWERS = 64
_answers: OrderedDict[tuple[str, str, int], ExperimentResult] = OrderedDict()
_answers_lock = threading.Lock()


def run_of(asked: Asked) -> RunRecord:
    """The run that the address names, by its id or a unique prefix."""
    return run_of_id(asked.store, asked.path["run_id"])


def run_of_id(store: Store, run_id: str) -> RunRecord:
    """A run by its id or a unique prefix."""
    try:
        return store.record(run_id)
    except UsageError as error:
        raise NotFoundError(str(error)) from None


def experiment_runs_of(store: Store, record: RunRecord) -> list[ExperimentRun]:
    """The experiment runs that a run belongs to, the newest first."""
    found = [one for one in store.experiment_runs() if record.run_id in one.run_ids]
    return found[::-1]


def experiment_run_of(asked: Asked) -> ExperimentRun:
    """The experiment run that the address names, by its id or a unique prefix."""
    prefix = asked.path["experiment_run_id"].lower()
    found = [
        one for one in asked.store.experiment_runs() if one.experiment_run_id.startswith(prefix)
    ]
    exact = [one for one in found if one.experiment_run_id == prefix] or found
    if len(exact) != 1:
        raise NotFoundError(
            f"{'No' if not exact else 'More than one'} experiment run has an id that begins with "
            f"'{clean(prefix, 40)}'. The page Answers lists them."
        )
    return exact[0]


def machine_of(asked: Asked) -> Machine:
    """The machine that the address names, by its id or a unique prefix."""
    prefix = asked.path["machine_id"]
    found = [m for m in asked.store.machines() if m.machine_id.startswith(prefix.lower())]
    if len(found) != 1:
        raise NotFoundError(
            f"{'No' if not found else 'More than one'} machine has an id that begins with "
            f"'{clean(prefix, 40)}'. The page Machines lists them."
        )
    return found[0]


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """A completed acceptance test."""

    experiment_run_id: str
    started_utc: str
    answer: Answer

    @property
    def verdict(self) -> AcceptanceVerdict:
        """Pass, fail, or not judged."""
        return verdict_of(self.answer)

    @property
    def checks(self) -> Table | None:
        """Each check with its figure, reference and verdict."""
        return next((t for t in self.answer.tables if t.title.startswith(CHECKS)), None)


def last_acceptance(store: Store, machine_id: str) -> Acceptance | None:
    """The last acceptance test of a machine that was completed and can be read."""
    runs = [
        one
        for one in store.experiment_runs("acceptance")
        if one.machine_id == machine_id and one.complete
    ]
    for run in reversed(runs):
        for result in results_of(store, [run]):
            return Acceptance(
                experiment_run_id=run.experiment_run_id,
                started_utc=run.started_utc,
                answer=result.answer,
            )
    return None


def results_of(store: Store, experiment_runs: Sequence[ExperimentRun]) -> list[ExperimentResult]:
    """The results of experiment runs with their answers; those of the latest calls are in memory.
    One that cannot be computed is left out."""
    found = []
    for one in experiment_runs:
        key = store.name, one.experiment_run_id, len(one.run_ids)
        with _answers_lock:
            result = _answers.get(key)
        if result is None and one.experiment in EXPERIMENTS:
            try:
                result = stored_result(EXPERIMENTS[one.experiment], one, store)
            except StoreError:
                continue
            with _answers_lock:
                _answers[key] = result
                while len(_answers) > _MOST_ANSWERS:
                    _answers.popitem(last=False)
        if result is not None:
            found.append(result)
    return found
