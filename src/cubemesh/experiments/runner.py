"""Asking a question: an experiment's specs are sent to the executor, its records come back.

The question is kept in the store from its first run on, and again after every list of runs, so that
a report can be made of whatever was measured, also after an interruption.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cubemesh.experiments.analysis.caveats import mark_simulated
from cubemesh.experiments.analysis.comparison import with_comparisons
from cubemesh.experiments.core.ab_overrides import alternating
from cubemesh.experiments.core.experiment import Context, Experiment
from cubemesh.experiments.core.settings import TUNED, Request, apply
from cubemesh.experiments.tune.apply import CHOSEN, Tunings
from cubemesh.runs import Executor
from cubemesh.schema import (
    Answer,
    Environment,
    ExperimentRun,
    RunRecord,
    RunSpec,
    new_experiment_run_id,
)
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.store import Store
from cubemesh.worker.validation import check_names


@dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """A question with its records and what they say."""

    experiment_run: ExperimentRun
    records: tuple[RunRecord, ...]
    answer: Answer


def run_experiment(
    experiment: Experiment,
    request: Request,
    context: Context,
    executor: Executor,
    store: Store,
    *,
    suite: str | None = None,
    place: str = "",
) -> ExperimentResult:
    """Run what `experiment` asks for and answer it. What is stored already is not run again.

    Raises UsageError or DataError before the first run when a spec cannot be meant.
    """
    started_utc = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    settings, overrides = to_plain(request.settings), to_plain(request.overrides)
    if request.against:
        overrides["against"] = to_plain(request.against)
    experiment_run = ExperimentRun(
        experiment_run_id=new_experiment_run_id(
            experiment.name, settings | overrides, started_utc, context.machine.machine_id
        ),
        experiment=experiment.name,
        settings=settings,
        overrides=overrides,
        machine_id=context.machine.machine_id,
        started_utc=started_utc,
        run_ids=(),
        complete=False,
        suite=suite,
        reproduces=place,
    )
    records: list[RunRecord] = []
    plan = experiment.plan(request.settings, context)
    tuned = None
    if request.overrides.get(TUNED):
        tuned = Tunings(experiment, request.overrides, store, executor.key).of
    try:
        specs = next(plan)
        while True:
            got: list[RunRecord] = []
            prepared = _prepare(experiment, specs, request, executor.environments, tuned)
            for record in executor.each(prepared):
                got.append(record)
                experiment_run = _kept(store, experiment_run, [*records, *got], complete=False)
            records += got
            specs = plan.send(got)
    except StopIteration:
        if experiment.gather is not None:
            records += experiment.gather(request.settings, store)
        if not experiment.measures:
            store.save_machine(context.machine)  # as the executor does before the first run
        experiment_run = _kept(store, experiment_run, records, complete=True)
    return ExperimentResult(
        experiment_run=experiment_run,
        records=tuple(records),
        answer=_shown(experiment, request.settings, experiment_run, records),
    )


def stored_result(
    experiment: Experiment, experiment_run: ExperimentRun, store: Store
) -> ExperimentResult:
    """The answer to a stored question, from its records as they stand in the store."""
    records = store.records(experiment_run.run_ids)
    settings = from_plain(experiment.settings, experiment_run.settings)
    return ExperimentResult(
        experiment_run=experiment_run,
        records=tuple(records),
        answer=_shown(experiment, settings, experiment_run, records),
    )


def _shown(
    experiment: Experiment,
    settings: Any,
    experiment_run: ExperimentRun,
    records: Sequence[RunRecord],
) -> Answer:
    """What alternated comes first; what a script played says so; what re-runs a figure of a
    document carries that figure's number in its title."""
    answer = experiment.answer(settings, records)
    if experiment.alternates:
        answer = with_comparisons(answer, records)
    answer = mark_simulated(answer, records)
    if not experiment_run.reproduces:
        return answer
    return dataclasses.replace(answer, title=f"{experiment_run.reproduces} · {answer.title}")


def _prepare(
    experiment: Experiment,
    specs: Sequence[RunSpec],
    request: Request,
    environments: Mapping[str, Environment],
    tuned: Callable[[RunSpec], RunSpec] | None,
) -> list[RunSpec]:
    asked = [_as_set(spec, request.overrides, experiment.plans_devices, tuned) for spec in specs]
    prepared = [alternating(spec, request.against, environments) for spec in asked]
    check_names([*prepared, *(other for spec in prepared if (other := spec.other) is not None)])
    return prepared


def _as_set(
    spec: RunSpec,
    overrides: Mapping[str, Any],
    planned: bool,
    tuned: Callable[[RunSpec], RunSpec] | None,
) -> RunSpec:
    """`spec` with what was set, and with what a tuning chose where one is taken over: that compares
    what it chose with what was set."""
    if tuned is not None:
        others = {name: value for name, value in overrides.items() if name not in CHOSEN}
        taken = tuned(apply(spec, others, plans_devices=planned))
        if taken.tuned is not None:
            return taken
    return apply(spec, overrides, plans_devices=planned)


def _kept(
    store: Store, experiment_run: ExperimentRun, records: Sequence[RunRecord], *, complete: bool
) -> ExperimentRun:
    run_ids = tuple(r.run_id for r in records)
    experiment_run = dataclasses.replace(experiment_run, run_ids=run_ids, complete=complete)
    store.save_experiment_run(experiment_run)
    return experiment_run
