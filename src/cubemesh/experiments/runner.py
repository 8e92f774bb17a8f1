"""Runner of experiments: sends the specs of a plan to the executor and computes the answer.

The experiment run is saved with every record, so that a report can be made after an interruption.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cubemesh.errors import CubemeshError, StoreError
from cubemesh.experiments.analysis.caveats import mark_simulated
from cubemesh.experiments.analysis.comparison import with_comparisons
from cubemesh.experiments.core.ab_overrides import with_against
from cubemesh.experiments.core.experiment import Context, Experiment
from cubemesh.experiments.core.settings import TUNED, Request, apply
from cubemesh.experiments.tune.apply import CHOSEN, Tunings
from cubemesh.runs import Executor
from cubemesh.schema import (
    Answer,
    Environment,
    ExperimentRun,
    Finding,
    RunRecord,
    RunSpec,
    new_experiment_run_id,
)
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.store.damage import Damage, reason_of
from cubemesh.training import manifest
from cubemesh.units import format_devices
from cubemesh.worker.validation import check_names

if TYPE_CHECKING:
    from cubemesh.store import Store


@dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """An experiment run with its records and its answer."""

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
    reproduces: str = "",
) -> ExperimentResult:
    """Run `experiment` and compute its answer. Stored records are reused. Once `context.ends_s` has
    passed no run starts: the plan ends there, and the answer is of the records so far.

    Raises UsageError or DataError before the first run for an invalid spec.
    """
    started_utc = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
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
        scale=str(context.scale),
        suite=suite,
        reproduces=reproduces,
    )
    records: list[RunRecord] = []
    plan = experiment.plan(request.settings, context)
    tuned = None
    if request.overrides.get(TUNED):
        tuned = Tunings(experiment, request.overrides, store, executor.key).of
    asked: Counter[str] | None = Counter() if experiment.repeats else None
    try:
        specs = next(plan)
        while True:
            got: list[RunRecord] = []
            prepared = _prepare(experiment, specs, request, executor.environments, tuned)
            for record in executor.each(prepared, asked, context.is_over):
                got.append(record)
                experiment_run = _saved(store, experiment_run, [*records, *got], complete=False)
            records += got
            left_out = sum(spec.budget.repeats for spec in prepared) - len(got)
            if left_out:
                plan.close()
                break
            specs = plan.send(got)
    except StopIteration:
        left_out = 0
    if not records:
        store.save_machine(context.machine)  # as the executor does before the first run
    if experiment.gather is not None:
        records += experiment.gather(request.settings, store, tuple(records))
    if records or not left_out:  # an experiment without time for a run leaves nothing
        experiment_run = _saved(store, experiment_run, records, complete=not left_out)
    answer = _answer_of(experiment, request.settings, experiment_run, records, left_out)
    return ExperimentResult(experiment_run=experiment_run, records=tuple(records), answer=answer)


def first_specs(
    experiment: Experiment, request: Request, context: Context, executor: Executor, store: Store
) -> Sequence[RunSpec] | None:
    """The first runs of a plan; None if it has none, or they depend on runs of this session."""
    try:
        return plan_first(experiment, request, context, executor, store)
    except CubemeshError:
        return None  # is raised when the experiment runs


def plan_first(
    experiment: Experiment, request: Request, context: Context, executor: Executor, store: Store
) -> Sequence[RunSpec]:
    """The first runs of a plan, checked. UsageError or DataError as of `run_experiment`."""
    tuned = None
    if request.overrides.get(TUNED):
        tuned = Tunings(experiment, request.overrides, store, executor.key).of
    specs = next(experiment.plan(request.settings, context), ())
    return _prepare(experiment, specs, request, executor.environments, tuned)


def stored_results(
    experiment_runs: Iterable[ExperimentRun], experiments: Mapping[str, Experiment], store: Store
) -> list[ExperimentResult]:
    """The results of stored experiment runs. One that is damaged, or none of whose records can be
    read, is left out (`Store.damage`)."""
    found = []
    for run in experiment_runs:
        try:
            result = stored_result(experiments[run.experiment], run, store)
        except StoreError as error:
            store.leave_out(
                Damage(what="experiment run", id=run.experiment_run_id, reason=str(error))
            )
        else:
            found.append(result)
    return found


def stored_result(
    experiment: Experiment, experiment_run: ExperimentRun, store: Store
) -> ExperimentResult:
    """The result of a stored experiment run, with an answer computed from its records. StoreError
    if its settings, or all its records, cannot be read."""
    records = store.records(experiment_run.run_ids)
    if experiment_run.run_ids and not records:
        raise StoreError("all its records are damaged")
    try:
        settings = from_plain(experiment.settings, experiment_run.settings)
    except (ValueError, CubemeshError) as error:
        raise StoreError(f"its settings cannot be read: {reason_of(error)}") from error
    return ExperimentResult(
        experiment_run=experiment_run,
        records=tuple(records),
        answer=_answer_of(experiment, settings, experiment_run, records),
    )


def _answer_of(
    experiment: Experiment,
    settings: Any,
    experiment_run: ExperimentRun,
    records: Sequence[RunRecord],
    left_out: int = 0,
) -> Answer:
    """The answer with interleaved comparisons, the warning of simulated runs, the figure of a
    paper in its title, a finding at least, and a note if runs are missing: `left_out` of them, if
    that is known."""
    answer = experiment.answer(settings, records)
    if experiment.alternates:
        answer = with_comparisons(answer, records)
    answer = mark_simulated(answer, records)
    if not answer.findings:
        found = _nothing_found(records, experiment_run.complete)
        answer = dataclasses.replace(answer, findings=(found,))
    if not experiment_run.complete:
        answer = _incomplete(answer, left_out)
    if not experiment_run.reproduces:
        return answer
    return dataclasses.replace(answer, title=f"{experiment_run.reproduces} · {answer.title}")


def _nothing_found(records: Sequence[RunRecord], complete: bool) -> Finding:
    """What is said of an experiment whose runs have no finding."""
    if not complete:
        return Finding(code="incomplete", text="No result yet: not all of its runs have been made.")
    most = max((r.spec.placement.devices for r in records), default=0)
    runs = "1 run was" if len(records) == 1 else f"{len(records)} runs were"
    on = f", on at most {format_devices(most)}" if most else ""
    return Finding(code="nothing-compared", text=f"Nothing to compare: {runs} made{on}.")


def _incomplete(answer: Answer, left_out: int) -> Answer:
    """The answer with a note, in place of the warning that it has less than a paper by a rule."""
    runs = "1 more run" if left_out == 1 else f"{left_out} more runs"
    ended = f"the time for its runs ended before at least {runs}"
    why = ended if left_out else "not all of its runs have been made"
    note = f"Incomplete: {why}. The same command continues with those that are missing."
    return dataclasses.replace(
        answer,
        notes=(note, *answer.notes),
        warnings=tuple(w for w in answer.warnings if w.code != "reduced"),
    )


def _prepare(
    experiment: Experiment,
    specs: Sequence[RunSpec],
    request: Request,
    environments: Mapping[str, Environment],
    tuned: Callable[[RunSpec], RunSpec] | None,
) -> list[RunSpec]:
    requested = [
        _with_overrides(spec, request.overrides, experiment.plans_devices, tuned) for spec in specs
    ]
    prepared = [with_against(spec, request.against, environments) for spec in requested]
    check_names([*prepared, *(other for spec in prepared if (other := spec.other) is not None)])
    for spec in prepared:
        manifest.check(spec)
    return prepared


def _with_overrides(
    spec: RunSpec,
    overrides: Mapping[str, Any],
    planned: bool,
    tuned: Callable[[RunSpec], RunSpec] | None,
) -> RunSpec:
    """`spec` with the overrides, and with the settings of a tuning if one is applied: that checks
    them against the overrides."""
    if tuned is not None:
        others = {name: value for name, value in overrides.items() if name not in CHOSEN}
        with_tuning = tuned(apply(spec, others, plans_devices=planned))
        if with_tuning.tuned is not None:
            return with_tuning
    return apply(spec, overrides, plans_devices=planned)


def _saved(
    store: Store, experiment_run: ExperimentRun, records: Sequence[RunRecord], *, complete: bool
) -> ExperimentRun:
    run_ids = tuple(r.run_id for r in records)
    experiment_run = dataclasses.replace(experiment_run, run_ids=run_ids, complete=complete)
    store.save_experiment_run(experiment_run)
    return experiment_run
